"""The report's pictures: encoded small, once each, within a budget."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detection.reports.evaluation import pictures
from detection.reports.evaluation.panels import Figure, Region, label_crop
from detection.reports.evaluation.pictures import CROP_SIDE, LONGEST_SIDE, encode_pictures, pictures_in
from schemas.errors import DataError
from tests.detection.reports.evaluation.builders import label_errors

PLENTY = 10**9


def opened(webp: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(webp))
    assert image.format == "WEBP"
    return image


def colored(width: int, height: int) -> Image.Image:
    """Red, and blue in its right half."""
    image = Image.new("RGB", (width, height), (250, 10, 10))
    image.paste((10, 10, 250), (width // 2, 0, width, height))
    return image


def figure(key: str, image_id: int, region: Region | None = None) -> Figure:
    return Figure(key, image_id, region, Region(0, 0, 1, 1), 0.0, [], "", "")


MARKUP = figure("a", 1).markup


def encode_one(image: Image.Image, region: Region | None = None) -> tuple[Image.Image, Region]:
    encoded = encode_pictures([figure("a", 1, region)], lambda _: image, budget=PLENTY)
    return opened(encoded.pictures["a"].webp), encoded.pictures["a"].region


def test_a_large_image_becomes_small_and_keeps_its_shape() -> None:
    small, region = encode_one(colored(2048, 1000))
    assert small.size == (LONGEST_SIDE, 250)
    assert region == (0, 0, 2048, 1000)
    red, blue = np.asarray(small)[100, 50].astype(int), np.asarray(small)[100, 500].astype(int)
    assert red[0] - red[2] > 200
    assert blue[2] - blue[0] > 200


def test_a_small_image_stays_as_it_is() -> None:
    assert encode_one(colored(40, 30))[0].size == (40, 30)
    assert encode_one(colored(5000, 2))[0].size == (LONGEST_SIDE, 1)


def test_a_region_is_cut_out_within_the_image() -> None:
    part, region = encode_one(colored(1000, 800), Region(600, 500, 900, 900))
    assert region == (600, 500, 400, 300)
    assert part.size == (CROP_SIDE, 192)
    assert (np.asarray(part)[..., 2] > 200).all()


def test_a_region_beyond_the_image_has_no_picture() -> None:
    encoded = encode_pictures([figure("a", 1, Region(50, 5, 9, 9))], lambda _: colored(40, 30), budget=PLENTY)
    assert (encoded.pictures, encoded.shown, encoded.unreadable, encoded.left_out) == ({}, [], 1, 0)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "I;16", "F"])
def test_every_colour_mode_is_shown(mode: str) -> None:
    image = Image.new(mode, (40, 30))
    assert encode_one(image)[0].mode == "RGB"


def test_what_an_image_carries_beside_its_pixels_stays_behind() -> None:
    turned = colored(40, 30)
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    exif[0x010F] = "somebody's camera"
    stream = io.BytesIO()
    turned.save(stream, "JPEG", exif=exif, comment="secret")
    encoded = encode_pictures([figure("a", 1, None)], lambda _: Image.open(stream), budget=PLENTY)
    assert not opened(encoded.pictures["a"].webp).getexif()
    assert b"camera" not in encoded.pictures["a"].webp


def noise(image_id: int) -> Image.Image | None:
    if image_id == 7:
        return None
    return Image.fromarray(np.random.default_rng(image_id).integers(0, 256, (100, 100, 3), np.uint8))


def wanted(*image_ids: int) -> list[Figure]:
    return [figure(f"image-{image_id}", image_id) for image_id in image_ids]


def page_bytes(image_id: int) -> int:
    encoded = encode_pictures(wanted(image_id), noise, budget=PLENTY)
    return len(encoded.pictures[f"image-{image_id}"].webp) * 4 // 3 + 4 + MARKUP


def test_the_budget_ends_with_the_first_that_does_not_fit() -> None:
    figures = wanted(1, 2, 3, 4)
    budget = page_bytes(1) + page_bytes(2)
    encoded = encode_pictures(figures, noise, budget=budget)
    assert (set(encoded.pictures), encoded.shown, encoded.left_out) == ({"image-1", "image-2"}, figures[:2], 2)
    encoded = encode_pictures(figures, noise, budget=budget - 1)
    assert (set(encoded.pictures), encoded.shown, encoded.left_out) == ({"image-1"}, figures[:1], 3)


def test_an_image_shown_twice_is_paid_once() -> None:
    figures = wanted(1, 1, 1, 2)
    encoded = encode_pictures(figures, noise, budget=page_bytes(1) + 2 * MARKUP)
    assert (set(encoded.pictures), encoded.shown, encoded.left_out) == ({"image-1"}, figures[:3], 1)


def test_images_that_are_not_there_cost_nothing() -> None:
    figures = wanted(7, 7, 1)
    encoded = encode_pictures(figures, noise, budget=page_bytes(1))
    assert (encoded.shown, encoded.unreadable, encoded.left_out) == (figures[2:], 2, 0)


def test_a_label_error_is_seen_with_what_surrounds_it() -> None:
    error = label_errors(1)[0]
    x, y, width, height = error.bbox
    view = label_crop(error, 0, {}).view
    assert view.left == 0, "the margin ends with the image"
    assert view.left + view.width >= x + 1.5 * width
    assert view.top + view.height >= y + height + 24
    (shape,) = label_crop(error, 0, {}).panels[0].shapes
    assert shape.frame == (x, y, x + width, y + height)


def png(color: tuple[int, int, int] = (1, 2, 3)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (6, 4), color).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.png").write_bytes(png())
    (folder / "cut.png").write_bytes(png()[:50])
    (folder / "text.png").write_text("no image")
    (tmp_path / "outside.png").write_bytes(png())
    return folder


def test_an_image_is_decoded_by_its_id(folder: Path) -> None:
    image = pictures_in(folder, [{"id": 7, "file_name": "sub/a.png"}])(7)
    assert image
    assert (np.asarray(image) == [1, 2, 3]).all()
    assert image.size == (6, 4)


@pytest.mark.parametrize(
    "file_name", ["none.png", "cut.png", "text.png", "sub", "../outside.png", "/etc/hostname", "a\0b", ""]
)
def test_what_is_no_image_below_the_folder_is_none(folder: Path, file_name: str) -> None:
    assert pictures_in(folder, [{"id": 7, "file_name": file_name}])(7) is None


def test_an_unknown_id_and_one_without_a_name_are_none(folder: Path) -> None:
    source = pictures_in(folder, [{"id": 7}])
    assert source(7) is None
    assert source(8) is None


def test_a_huge_image_is_not_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 23)
    assert pictures_in(folder, [{"id": 7, "file_name": "sub/a.png"}])(7) is None
    monkeypatch.setattr(pictures, "MAX_PIXELS", 24)
    assert pictures_in(folder, [{"id": 7, "file_name": "sub/a.png"}])(7)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder of images"):
        pictures_in(tmp_path / "none", [])
