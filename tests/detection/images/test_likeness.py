"""Copies of pictures, made here of real ones, and what is taken for a copy among real ones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from detection.images.likeness import copies, thumbnail

SETS = ("raccoon", "bccd", "coco2017_ccby", "dali_masks", "aquarium", "playing_cards", "nuclei")
Change = Callable[[Image.Image], Image.Image]
CHANGES: dict[str, tuple[Change, float]] = {
    "mirrored": (lambda picture: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 1.0),
    "turned": (lambda picture: picture.transpose(Image.Transpose.ROTATE_90), 1.0),
    "upside down": (lambda picture: picture.transpose(Image.Transpose.ROTATE_180), 1.0),
    "half the size": (lambda picture: picture.resize((picture.width // 2, picture.height // 2)), 0.99),
    "blurred": (lambda picture: picture.filter(ImageFilter.GaussianBlur(picture.width / 100)), 0.99),
    "darker": (lambda picture: ImageEnhance.Brightness(picture).enhance(0.6), 0.97),
    "brighter": (lambda picture: ImageEnhance.Brightness(picture).enhance(1.25), 0.97),
    "less contrast": (lambda picture: ImageEnhance.Contrast(picture).enhance(0.7), 0.97),
    "grey": (lambda picture: picture.convert("L").convert("RGB"), 0.99),
}


def _thumbnail(picture: Image.Image) -> bytes:
    return thumbnail(np.asarray(picture.convert("RGB")))


@pytest.fixture(scope="module")
def pictures(shared_data: Path) -> list[Image.Image]:
    paths = [path for name in SETS for path in sorted((shared_data / name).rglob("*.jpg"))[:40]]
    return [_read(path) for path in paths]


def _read(path: Path) -> Image.Image:
    """At most 512 pixels wide and high, which is enough and quicker to change."""
    picture = Image.open(path)
    picture.thumbnail((512, 512))
    return picture.convert("RGB")


@pytest.fixture(scope="module")
def own(pictures: list[Image.Image]) -> list[bytes]:
    return [_thumbnail(picture) for picture in pictures]


def test_real_pictures_are_not_copies(own: list[bytes]) -> None:
    # Those that are: shots of one second, and one that a data set has twice.
    assert len(copies(own)) <= 0.01 * len(own)


@pytest.mark.parametrize("name", CHANGES)
def test_changed_copies_are_found(pictures: list[Image.Image], own: list[bytes], name: str) -> None:
    change, least = CHANGES[name]
    found = copies(own + [_thumbnail(change(picture)) for picture in pictures])
    comparable = [number for number, one in enumerate(own) if one]
    seen = sum((number, number + len(own)) in found for number in comparable)
    assert seen >= least * len(comparable)
    assert sum(low % len(own) != high % len(own) for low, high in found) <= 4 * 0.01 * len(own)


def test_an_object_that_moved_makes_another_picture() -> None:
    background = np.random.default_rng(0).integers(0, 255, (16, 16, 3)).astype(np.uint8)
    scene = np.asarray(Image.fromarray(background).resize((320, 320), Image.Resampling.BICUBIC))
    first, second = scene.copy(), scene.copy()
    first[40:100, 40:100] = second[200:260, 220:280] = 255
    assert copies([thumbnail(first), thumbnail(second), thumbnail(first[:, ::-1])]) == {(0, 2)}


def test_flat_pictures_are_like_none() -> None:
    flat = np.full((50, 60, 3), 90, np.uint8)
    assert thumbnail(flat) == b""
    assert copies([b"", b"", _thumbnail(Image.effect_noise((64, 64), 90))]) == set()
    assert copies([]) == set()


def test_many_pictures_need_little_time_and_their_copies_are_found() -> None:
    random = np.random.default_rng(1)
    smooth = random.normal(size=(5_000, 4, 4)).repeat(4, axis=1).repeat(4, axis=2)
    smooth = (smooth - smooth.mean((1, 2), keepdims=True)) / smooth.std((1, 2), keepdims=True)
    stored = np.clip(smooth * 24 + 128, 0, 255).astype(np.uint8)
    thumbnails = [one.tobytes() for one in stored]
    thumbnails += [np.rot90(one).tobytes() for one in stored[:50]]
    expected = {(number, 5_000 + number) for number in range(50)}
    assert expected <= copies(thumbnails)
