"""Masks as transparent pictures, against the masks that they show."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask

from detection.analysis.analysis_file import Box, MaskMatch
from detection.images.tags import Rectangle
from detection.reports.evaluation.overlays import Overlay, mask_overlay, outline_overlay
from detection.reports.evaluation.panels import mask_crop, side_by_side
from tests.detection.reports.evaluation.builders import image_result

HEIGHT, WIDTH = 30, 50


def shape() -> np.ndarray:
    """Asymmetric, with a hole, at the right border."""
    drawn = np.zeros((HEIGHT, WIDTH), np.uint8)
    drawn[4:21, 33:] = 1
    drawn[4:9, 33:40] = 0
    drawn[12:16, 42:45] = 0
    return drawn


def rle(drawn: np.ndarray) -> dict[str, Any]:
    encoded = mask.encode(np.asfortranarray(drawn))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}


def laid_out(overlay: Overlay) -> np.ndarray:
    """RGBA [HEIGHT, WIDTH, 4], the overlay at its place."""
    left, top, right, bottom = map(int, overlay.frame)
    picture = Image.open(io.BytesIO(overlay.png)).convert("RGBA")
    pixels = np.asarray(picture.resize((right - left, bottom - top), Image.Resampling.NEAREST))
    canvas = np.zeros((HEIGHT, WIDTH, 4), np.uint8)
    canvas[top:bottom, left:right] = pixels
    return canvas


def test_a_mask_is_filled() -> None:
    overlay = mask_overlay(rle(shape()), (10, 200, 30), scale=1.0)
    assert overlay is not None
    assert tuple(overlay.frame) == (33, 4, WIDTH, 21)
    pixels = laid_out(overlay)
    np.testing.assert_array_equal(pixels[..., 3] > 0, shape() > 0)
    assert set(map(tuple, pixels[shape() > 0])) == {(10, 200, 30, 120)}


def test_an_outline_is_what_touches_the_outside() -> None:
    overlay = outline_overlay(rle(shape()), scale=1.0)
    assert overlay is not None
    drawn = shape()
    expected = np.zeros_like(drawn, bool)
    for y in range(HEIGHT):
        for x in range(WIDTH):
            neighbours = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
            inside = [0 <= v < HEIGHT and 0 <= u < WIDTH and bool(drawn[v, u]) for v, u in neighbours]
            expected[y, x] = drawn[y, x] and not all(inside)
    np.testing.assert_array_equal(laid_out(overlay)[..., 3] == 255, expected)


def test_a_large_mask_is_stored_small() -> None:
    large = np.kron(shape(), np.ones((8, 8), np.uint8))
    overlay = mask_overlay(rle(large), (1, 2, 3), scale=0.125)
    assert overlay is not None
    assert tuple(overlay.frame) == (33 * 8, 4 * 8, WIDTH * 8, 21 * 8)
    small = Overlay(overlay.png, Rectangle(33, 4, WIDTH, 21))
    np.testing.assert_array_equal(laid_out(small)[..., 3] > 0, shape() > 0)


@pytest.mark.parametrize("make", [lambda one: mask_overlay(one, (1, 2, 3), scale=1.0), outline_overlay])
def test_an_empty_mask_has_no_overlay(make: Any) -> None:
    empty = rle(np.zeros((HEIGHT, WIDTH), np.uint8))
    assert (make(empty, scale=1.0) if make is outline_overlay else make(empty)) is None


def test_panels_show_masks_and_the_outlines_of_the_ground_truth() -> None:
    box = Box(1, [33.0, 4.0, 17.0, 17.0], None, "matched", rle(shape()))
    without = Box(1, [1.0, 1.0, 5.0, 5.0], 0.9, "Bkg")
    detections = [replace(box, score=0.8, status="TP"), without]
    result = replace(image_result(1), width=WIDTH, height=HEIGHT, ground_truth=[box], detections=detections)
    figure = side_by_side(result, {1: "cat"})
    assert [len(panel.overlays) for panel in figure.panels] == [2, 2]
    bare = side_by_side(replace(result, ground_truth=[replace(box, mask=None)], detections=[without]), {1: "cat"})
    assert [len(panel.overlays) for panel in bare.panels] == [0, 0]
    assert figure.markup > bare.markup + sum(len(one.png) for panel in figure.panels for one in panel.overlays)


def test_a_matched_mask_is_filled_below_the_outline_of_the_ground_truth() -> None:
    truth = Box(1, [33.0, 4.0, 17.0, 17.0], None, "matched", rle(shape()))
    smaller = shape().copy()
    smaller[:12] = 0
    detection = Box(1, [33.0, 12.0, 17.0, 9.0], 0.8, "TP", rle(smaller))
    figure = mask_crop(MaskMatch(4, "4.jpg", 0.5, 0.25, truth, detection), 3, {1: "cat"})
    filled, outline = figure.panels[0].overlays
    np.testing.assert_array_equal(laid_out(filled)[..., 3] > 0, smaller > 0)
    assert outline == outline_overlay(rle(shape()), scale=1.0)
    assert (figure.key, figure.image_id, figure.caption) == ("mask-3", 4, "cat 0.80, mask IoU 0.50, boundary IoU 0.25")
