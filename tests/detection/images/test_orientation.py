"""EXIF orientations against Pillow's `exif_transpose`."""

import numpy as np
import pytest
from PIL import Image, ImageOps
from pycocotools import mask

from detection.images.files import EXIF_ORIENTATION
from detection.images.orientation import upright_boxes, upright_mask, upright_pixels, upright_points

SIZE = {"height": 20, "width": 33}


def transposed(pixels: np.ndarray, exif: int) -> np.ndarray:
    image = Image.fromarray(pixels)
    image.getexif()[EXIF_ORIENTATION] = exif
    return np.asarray(ImageOps.exif_transpose(image))


def box_of(inside: np.ndarray) -> list[int]:
    """x, y, width, height of the pixels above 0."""
    ys, xs = np.nonzero(inside)
    return [xs.min(), ys.min(), xs.max() + 1 - xs.min(), ys.max() + 1 - ys.min()]


@pytest.mark.parametrize("exif", range(1, 9))
def test_as_pillow_shows_it(exif: int) -> None:
    pixels = np.random.default_rng(exif).integers(0, 256, (20, 33, 3), np.uint8)
    np.testing.assert_array_equal(upright_pixels(pixels, exif), transposed(pixels, exif))
    inside = np.zeros((20, 33), np.uint8)
    inside[3:9, 10:29] = 1
    shown = transposed(inside, exif)
    np.testing.assert_array_equal(upright_boxes([[10, 3, 19, 6]], exif, **SIZE), [box_of(shown)])
    moved = upright_mask(mask.encode(np.asfortranarray(inside)), exif)
    np.testing.assert_array_equal(mask.decode(moved), shown)


@pytest.mark.parametrize("exif", range(1, 9))
def test_points_move_with_their_pixels(exif: int) -> None:
    pixels = np.zeros((20, 33), np.uint8)
    pixels[4, 30] = 1
    centre = np.add(box_of(transposed(pixels, exif))[:2], 0.5)
    np.testing.assert_array_equal(upright_points([[30.5, 4.5]], exif, **SIZE), [centre])


def test_no_box() -> None:
    assert upright_boxes(np.empty((0, 4)), 6, **SIZE).shape == (0, 4)
