"""Float32 fractions of an image back to the decimals of a COCO file."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detection.datasets.importers.coco_geometry import coco_box, pixels_of_fraction


def stored(value: float) -> float:
    return float(np.float32(value))


def corners(box: list[float], *, height: int, width: int) -> list[float]:
    """As create_coco_tf_record.py computes them, in double precision, and stores them, in single."""
    x, y, box_width, box_height = box
    return [stored(x / width), stored(y / height), stored((x + box_width) / width), stored((y + box_height) / height)]


@st.composite
def boxes_in_images(draw: st.DrawFn, largest: int) -> tuple[list[float], int, int]:
    height, width = draw(st.integers(1, largest)), draw(st.integers(1, largest))
    x, y = draw(st.integers(0, 100 * width)), draw(st.integers(0, 100 * height))
    right, bottom = draw(st.integers(x, 100 * width)), draw(st.integers(y, 100 * height))
    return [x / 100, y / 100, (right - x) / 100, (bottom - y) / 100], height, width


@given(boxes_in_images(2_000))
def test_every_box_with_two_decimals_comes_back(drawn: tuple[list[float], int, int]) -> None:
    box, height, width = drawn
    assert coco_box(*corners(box, height=height, width=width), height=height, width=width) == box


@given(boxes_in_images(80_000))
def test_two_decimals_come_back_in_the_largest_images_that_the_text_names(drawn: tuple[list[float], int, int]) -> None:
    box, height, width = drawn
    assert coco_box(*corners(box, height=height, width=width), height=height, width=width) == box


def test_a_box_of_coco() -> None:
    box = [236.98, 142.51, 24.7, 69.5]
    assert coco_box(*corners(box, height=427, width=640), height=427, width=640) == box


def test_the_shortest_decimal_wins() -> None:
    assert pixels_of_fraction(stored(100 / 300), 300) == (100.0, 0)
    assert pixels_of_fraction(stored(100.5 / 300), 300) == (100.5, 1)
    assert pixels_of_fraction(stored(0.1234 / 300), 300) == (0.1234, 4)
    assert pixels_of_fraction(0.0, 300) == (0.0, 0)
    assert pixels_of_fraction(1.0, 300) == (300.0, 0)


def test_outside_the_image_is_kept() -> None:
    assert coco_box(stored(-2.5 / 60), 0.5, stored(62.25 / 60), 1.0, height=40, width=60) == [-2.5, 20, 64.75, 20]


def test_fractions_finer_than_six_places_are_rounded() -> None:
    fraction = stored(1e-9)
    assert pixels_of_fraction(fraction, 100) == (round(fraction * 100, 6), 6)


def test_a_box_that_cannot_be_drawn_is_none() -> None:
    assert coco_box(math.nan, 0.0, 1.0, 1.0, height=4, width=6) is None
    assert coco_box(0.0, 0.0, math.inf, 1.0, height=4, width=6) is None
    assert coco_box(0.0, -3e38, 1.0, 1.0, height=4, width=6) is None
