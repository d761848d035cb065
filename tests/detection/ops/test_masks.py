"""Pasting by hand, against pycocotools, and both implementations against each other."""

import numpy as np
import pytest
import tensorflow as tf
from pycocotools import mask as reference

from detection.ops.masks import paste_masks, rle_of_crop, rle_of_window


def test_a_full_crop_fills_its_box_and_nothing_else() -> None:
    pasted = paste_masks(tf.ones([1, 4, 4]), tf.constant([[2.0, 3.0, 5.0, 7.0]]), height=6, width=9)[0].numpy()
    expected = np.zeros((6, 9), np.uint8)
    expected[2:5, 3:7] = 1
    assert pasted.dtype == np.uint8
    np.testing.assert_array_equal(pasted, expected)
    rle = rle_of_crop(np.ones((4, 4)), np.array([3.0, 2.0, 4.0, 3.0]), height=6, width=9)
    assert rle["size"] == [6, 9]
    np.testing.assert_array_equal(reference.decode(rle), expected)


def test_rows_are_y_and_the_interpolation_is_bilinear() -> None:
    """A crop of 2x2 cells over 4x8 pixels: cell centres lie at y = 1, 3 and x = 2, 6."""
    crop = np.array([[1.0, 1.0], [0.0, 0.0]])
    rle = rle_of_crop(crop, np.array([0.0, 0.0, 8.0, 4.0]), height=4, width=8)
    # Pixel centres y = 0.5, 1.5 have weights 0.75 of the upper row; x within half a cell of the sides weighs less.
    rows = np.array([0.75, 0.75, 0.25, 0.0])
    columns = np.array([0.625, 0.875, 1.0, 1.0, 1.0, 1.0, 0.875, 0.625])
    np.testing.assert_array_equal(reference.decode(rle), np.outer(rows, columns) >= 0.5)


@pytest.mark.parametrize("box", [[2.0, 3.0, 2.0, 7.0], [2.0, 3.0, 5.0, 3.0], [3.0, 3.0, 3.0, 3.0]])
def test_an_empty_box_has_no_pixel(box: list[float]) -> None:
    assert not paste_masks(tf.ones([1, 4, 4]), tf.constant([box]), height=6, width=9).numpy().any()
    top, left, bottom, right = box
    rle = rle_of_crop(np.ones((4, 4)), np.array([left, top, right - left, bottom - top]), height=6, width=9)
    assert reference.area(rle) == 0


def test_both_implementations_agree_on_boxes_anywhere() -> None:
    random = np.random.default_rng(0)
    for _ in range(100):
        height, width = random.integers(5, 60, 2).tolist()
        top, left = random.uniform(-5, height), random.uniform(-5, width)
        bottom, right = top + random.uniform(0, 1.2 * height), left + random.uniform(0, 1.2 * width)
        crop = random.random((7, 7)).astype(np.float32)
        pasted = paste_masks(
            tf.constant(crop[None]), tf.constant([[top, left, bottom, right]], tf.float32), height=height, width=width
        )
        rle = rle_of_crop(crop, np.array([left, top, right - left, bottom - top]), height=height, width=width)
        assert (reference.decode(rle) != pasted[0].numpy()).mean() < 0.002  # float32 and float64 round apart


def test_the_encoding_is_that_of_pycocotools() -> None:
    random = np.random.default_rng(0)
    for _ in range(2000):
        height, width = random.integers(1, 9, 2).tolist()
        rows, columns = int(random.integers(height + 1)), int(random.integers(width + 1))
        top, left = int(random.integers(height - rows + 1)), int(random.integers(width - columns + 1))
        window = random.random((rows, columns)) < random.choice([0, 0.3, 0.7, 1])
        whole = np.zeros((height, width), np.uint8)
        whole[top : top + rows, left : left + columns] = window
        expected = reference.encode(np.asfortranarray(whole))
        rle = rle_of_window(window, top=top, left=left, height=height, width=width)
        assert rle == {"size": [height, width], "counts": expected["counts"].decode()}


def test_compiles_under_xla() -> None:
    crops = tf.random.stateless_uniform([2, 3, 7, 7], [0, 0])
    boxes = tf.constant([[[1.0, 2.0, 9.0, 8.0]] * 3] * 2)
    compiled = tf.function(lambda *given: paste_masks(*given, height=12, width=10), jit_compile=True)
    assert compiled(crops, boxes).shape == (2, 3, 12, 10)
    np.testing.assert_array_equal(compiled(crops, boxes), paste_masks(crops, boxes, height=12, width=10))
