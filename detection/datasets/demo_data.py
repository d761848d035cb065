"""Generates the demo data set: scikit-learn's handwritten digits on noisy canvases.

A COCO data set (annotations/instances_{train,val}.json, images in train/ and val/) that
depends on a seed only.  `python -m detection.datasets.demo_data DIR` writes it.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from detection.datasets.masks import encode_mask
from detection.storage.atomic import new_directory
from schemas.errors import DataError

CANVAS = 128  # pixels, both sides
MAX_DIGITS = 6  # per image

_MANIFEST = "demo_data.json"
_VERSION = 1  # version of the generator, raised when equal parameters give other files
_EVAL_FRACTION = 0.2  # fraction of the handwriting samples used for eval
_SIDES = (26.0, 60.0)  # min and max side in pixels to which an 8x8 sample is scaled
_INK = 0.45  # min fraction of ink of the mask's pixels
_MAX_COVERED = 0.15  # max covered fraction of the smaller of two boxes
_TRIES = 20  # positions tried per digit
_JPEG_QUALITY = 90

Array = NDArray[Any]


class _Digit(NamedTuple):
    value: int
    mask: Array  # bool [CANVAS, CANVAS]
    box: tuple[int, int, int, int]  # x, y, width, height in pixels


class _Samples(NamedTuple):
    images: Array  # float64 [n, 8, 8], fraction of ink
    values: Array  # int64 [n], 0..9


def make_demo_data(directory: str | Path, *, train_images: int = 600, eval_images: int = 100, seed: int = 0) -> None:
    """Writes the data set, unless the folder already holds it with these parameters.

    Equal parameters give equal files.  The folder appears complete or not at all.

    Args:
        directory: folder of the data set.
        train_images: number of images in `train`.
        eval_images: number of images in `val`; their handwriting is not in `train`.
        seed: seed of all randomness.

    Raises:
        DataError: `directory` holds other files, or cannot be written.
    """
    directory = Path(directory)
    parameters = {"version": _VERSION, "train_images": train_images, "eval_images": eval_images, "seed": seed}
    if _is_there(directory, parameters):
        return
    _remove_outdated(directory)
    with new_directory(directory) as beside:
        _write(beside, train_images, eval_images, seed)
        (beside / _MANIFEST).write_text(json.dumps(parameters))


def _is_there(directory: Path, parameters: dict[str, int]) -> bool:
    try:
        written = json.loads((directory / _MANIFEST).read_text())
    except (OSError, ValueError):
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise DataError(
                f"{directory} exists and is not the demo data set. Choose another folder, or remove this one."
            ) from None
        return False
    counts = {"train": parameters["train_images"], "val": parameters["eval_images"]}
    return written == parameters and all(
        (directory / f"annotations/instances_{split}.json").is_file()
        and sum(1 for _ in (directory / split).glob("*")) == count
        for split, count in counts.items()
    )


def _remove_outdated(directory: Path) -> None:
    if (directory / _MANIFEST).is_file():
        outdated = directory.with_name(f".{directory.name}.outdated")
        shutil.rmtree(outdated, ignore_errors=True)
        directory.rename(outdated)
        shutil.rmtree(outdated)


def _write(directory: Path, train_images: int, eval_images: int, seed: int) -> None:
    train, held_out = _samples(seed)
    (directory / "annotations").mkdir()
    _write_split(directory, "train", train, range(1, train_images + 1), seed)
    _write_split(directory, "val", held_out, range(train_images + 1, train_images + eval_images + 1), seed)


def _samples(seed: int) -> tuple[_Samples, _Samples]:
    """Returns the handwriting samples of train and of eval."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    eval_count = round(len(order) * _EVAL_FRACTION)
    chosen = (order[eval_count:], order[:eval_count])
    train, held_out = (_Samples(digits.images[one] / 16.0, digits.target[one]) for one in chosen)
    return train, held_out


def _write_split(directory: Path, split: str, samples: _Samples, image_ids: range, seed: int) -> None:
    (directory / split).mkdir()
    images, annotations = [], []
    for image_id in image_ids:
        pixels, digits = _draw(samples, np.random.default_rng([seed, image_id]))
        name = f"{image_id:06d}.{'jpg' if image_id % 2 else 'png'}"
        Image.fromarray(pixels).save(directory / split / name, quality=_JPEG_QUALITY)
        images.append({"id": image_id, "file_name": name, "width": CANVAS, "height": CANVAS})
        annotations += [_annotation(image_id, number, digit) for number, digit in enumerate(digits, 1)]
    tree = {
        "info": {"description": "Handwritten digits of scikit-learn on noisy canvases", "version": str(_VERSION)},
        "licenses": [],
        "images": images,
        "annotations": annotations,
        "categories": [{"id": value + 1, "name": str(value), "supercategory": "digit"} for value in range(10)],
    }
    (directory / f"annotations/instances_{split}.json").write_text(json.dumps(tree))


def _annotation(image_id: int, number: int, digit: _Digit) -> dict[str, Any]:
    return {
        "id": image_id * 10 + number,
        "image_id": image_id,
        "category_id": digit.value + 1,
        "bbox": [float(value) for value in digit.box],
        "area": float(digit.mask.sum()),
        "segmentation": encode_mask(digit.mask),
        "iscrowd": 0,
    }


def _draw(samples: _Samples, rng: np.random.Generator) -> tuple[Array, list[_Digit]]:
    """Draws an image, uint8 [CANVAS, CANVAS, 3]; returns it with its digits from back to front."""
    dark = bool(rng.integers(2))
    pixels = _background(rng, dark)
    digits: list[_Digit] = []
    for _ in range(rng.integers(1, MAX_DIGITS + 1)):
        sample = int(rng.integers(len(samples.values)))
        ink = _scaled(samples.images[sample], rng)
        colour = rng.uniform(150, 255, 3) if dark else rng.uniform(0, 105, 3)
        position = _free_position(ink, digits, rng)
        if position is not None:
            layer = _placed(ink, position)
            pixels += layer[..., None] * (colour - pixels)
            digits = [_uncovered(digit, layer >= _INK) for digit in digits]
            digits.append(_Digit(int(samples.values[sample]), layer >= _INK, _box(layer >= _INK)))
    pixels += rng.normal(0.0, 6.0, pixels.shape)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), digits


def _background(rng: np.random.Generator, dark: bool) -> Array:
    """Draws blotches of similar colours and coarse noise, float64 [CANVAS, CANVAS, 3]."""
    base = rng.uniform(10, 70, 3) if dark else rng.uniform(185, 245, 3)
    blotches = base + rng.normal(0.0, 12.0, (5, 5, 3))
    return _resized(blotches, CANVAS) + rng.normal(0.0, 6.0, (CANVAS, CANVAS, 3))


def _scaled(sample: Array, rng: np.random.Generator) -> Array:
    """Enlarges a sample to a random size and steepens its edges; fraction of ink, 0..1."""
    side = round(float(np.exp(rng.uniform(*np.log(_SIDES)))))
    return np.clip((_resized(sample, side) - _INK) * 2.5 + _INK, 0.0, 1.0)


def _resized(image: Array, side: int) -> Array:
    """Resizes [h, w] or [h, w, c] to a square, bicubically."""
    planes = image[..., None] if image.ndim == 2 else image
    resized = [
        np.asarray(Image.fromarray(plane.astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC))
        for plane in np.moveaxis(planes, -1, 0)
    ]
    return np.stack(resized, -1).astype(np.float64).reshape(side, side, *image.shape[2:])


def _free_position(ink: Array, digits: list[_Digit], rng: np.random.Generator) -> tuple[int, int] | None:
    """Finds a corner (y, x) for the sample at which it hardly overlaps other digits; None: none found."""
    x, y, width, height = _box(ink >= _INK)
    for _ in range(_TRIES):
        left, top = int(rng.integers(CANVAS - width + 1)), int(rng.integers(CANVAS - height + 1))
        if all(_covered((left, top, width, height), digit.box) <= _MAX_COVERED for digit in digits):
            return top - y, left - x
    return None


def _covered(box: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> float:
    """Returns the intersection of two (x, y, width, height) boxes over the area of the smaller one."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = box, other
    width, height = min(ax + aw, bx + bw) - max(ax, bx), min(ay + ah, by + bh) - max(ay, by)
    return max(width, 0) * max(height, 0) / min(aw * ah, bw * bh)


def _placed(ink: Array, position: tuple[int, int]) -> Array:
    """Places the ink on a layer of the canvas's size; its faint rim may lie outside."""
    side = len(ink)
    padded = np.zeros((CANVAS + 2 * side, CANVAS + 2 * side))
    top, left = position[0] + side, position[1] + side
    padded[top : top + side, left : left + side] = ink
    return padded[side : side + CANVAS, side : side + CANVAS]


def _uncovered(digit: _Digit, cover: Array) -> _Digit:
    mask = digit.mask & ~cover
    return digit._replace(mask=mask, box=_box(mask))


def _box(mask: Array) -> tuple[int, int, int, int]:
    """Returns the tight box (x, y, width, height) around the True pixels of [h, w]."""
    ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(xs[0]), int(ys[0]), int(xs[-1] - xs[0]) + 1, int(ys[-1] - ys[0]) + 1


def main() -> None:
    """Writes the data set to the folder given on the command line."""
    parser = argparse.ArgumentParser(prog="python -m detection.datasets.demo_data", description=__doc__)
    parser.add_argument("directory", help="folder to write; unchanged if it already holds the data set")
    make_demo_data(parser.parse_args().directory)


if __name__ == "__main__":
    main()
