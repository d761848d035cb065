"""Pasting by hand, against pycocotools, and both implementations against each other; cropping against loops."""

import math

import numpy as np
import pytest
import tensorflow as tf
from pycocotools import mask as reference

from detection.ops.masks import crop_masks, encode_rle, paste_masks, rle_of_crop, rle_of_window


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


def test_the_encoding_in_the_graph_is_that_of_pycocotools() -> None:
    """To the byte; the last masks have runs that take up to four characters."""
    random = np.random.default_rng(0)
    encode = tf.function(encode_rle, input_signature=[tf.TensorSpec([None, None, None], tf.uint8)], autograph=False)
    for height, width, count in ((1, 1, 4), (5, 7, 60), (40, 33, 20), (3, 3, 0), (300, 410, 6)):
        masks = (random.random((count, height, width)) < random.random((count, 1, 1))).astype(np.uint8)
        masks[:1], masks[1:2], masks[2:4] = 0, 1, 0  # empty, full
        masks[2:3, 0, 0] = 1  # the first pixel alone
        masks[3:4, -1, -1] = 1  # the last one
        masks[4:5, :, : width // 2] = 1
        expected = [reference.encode(np.asfortranarray(mask))["counts"] for mask in masks]
        assert encode(masks).numpy().tolist() == expected


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


def _plain_crop(mask: np.ndarray, box: np.ndarray, roi: np.ndarray, *, size: int) -> np.ndarray:
    cells = len(mask)
    result = np.zeros((size, size))
    if min(box[2] - box[0], box[3] - box[1], roi[2] - roi[0], roi[3] - roi[1]) <= 0.0:
        return result
    for i, j in np.ndindex(size, size):
        y = (roi[0] + (i + 0.5) / size * (roi[2] - roi[0]) - box[0]) / (box[2] - box[0])
        x = (roi[1] + (j + 0.5) / size * (roi[3] - roi[1]) - box[1]) / (box[3] - box[1])
        if not (0.0 < y < 1.0 and 0.0 < x < 1.0):
            continue
        row = min(max(y * cells - 0.5, 0.0), cells - 1.0)
        column = min(max(x * cells - 0.5, 0.0), cells - 1.0)
        top, left = math.floor(row), math.floor(column)
        for r, by_row in ((top, top + 1 - row), (min(top + 1, cells - 1), row - top)):
            for c, by_column in ((left, left + 1 - column), (min(left + 1, cells - 1), column - left)):
                result[i, j] += by_row * by_column * mask[r, c]
    return result


def _crop_case() -> tuple[np.ndarray, ...]:
    """RoIs around, beside and far from their objects, tiny and empty ones, and an object without area."""
    random = np.random.default_rng(0)
    masks = (random.random((2, 4, 11, 11)) < 0.5).astype(np.uint8)
    low = random.uniform(0, 60, (2, 4, 2))
    boxes = np.concatenate([low, low + random.uniform(5, 50, (2, 4, 2))], axis=2)
    boxes[1, 3, 2:] = boxes[1, 3, :2]
    index = random.integers(0, 4, (2, 30))
    index[1, :3] = 3
    rois = np.take_along_axis(boxes, index[..., None], axis=1) + random.normal(0, 6, (2, 30, 4))
    rois[0, 0] = [500, 500, 520, 530]
    rois[0, 1, 2:] = rois[0, 1, :2]
    rois[0, 2, 2:] = rois[0, 2, :2] + 0.01
    return masks, boxes.astype(np.float32), rois.astype(np.float32), index.astype(np.int32)


def test_crops_equal_loops() -> None:
    masks, boxes, rois, index = _crop_case()
    cropped = crop_masks(masks, boxes, rois, index, size=7).numpy()
    assert cropped.shape == (2, 30, 7, 7)
    assert cropped.dtype == np.float32
    assert 0.1 < cropped.mean() < 0.9
    for image, number in np.ndindex(2, 30):
        own = index[image, number]
        values = _plain_crop(
            masks[image, own], boxes[image, own].astype(float), rois[image, number].astype(float), size=7
        )
        clear = np.abs(values - 0.5) > 1e-3  # float32 and float64 may fall on different sides of the threshold
        np.testing.assert_array_equal(cropped[image, number][clear], (values >= 0.5)[clear])


def test_the_crop_of_a_full_mask_is_its_box() -> None:
    """A RoI of 8x8 cells of 1 pixel, whose rows 2 to 4 and columns 3 to 7 are the object's."""
    rois, boxes = np.array([[[10, 20, 18, 28]]], np.float32), np.array([[[12, 23, 15, 40]]], np.float32)
    expected = np.zeros((8, 8))
    expected[2:5, 3:] = 1.0
    cropped = crop_masks(np.ones((1, 1, 5, 5), np.uint8), boxes, rois, np.zeros((1, 1), np.int32), size=8)
    np.testing.assert_array_equal(cropped[0, 0], expected)


def test_the_crop_of_a_box_itself_is_its_mask() -> None:
    masks, boxes, _, _ = _crop_case()
    cropped = crop_masks(masks[:1], boxes[:1], boxes[:1], np.arange(4)[None].astype(np.int32), size=11)
    np.testing.assert_array_equal(cropped, masks[:1])
