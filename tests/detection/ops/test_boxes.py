from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from detection.ops.boxes import (
    area_yxyx,
    clip_yxyx,
    decode_yxyx,
    encode_yxyx,
    intersection_yxyx,
    iou_yxyx,
    pairwise_iou_yxyx,
)


def test_worked_by_hand() -> None:
    # 4 high and 2 wide; 1 of it in y and 2 in x lie in the other, 2 high and 5 wide.
    first, second = np.array([0, 0, 4, 2], np.float32), np.array([3, 0, 5, 5], np.float32)
    assert area_yxyx(first) == 8.0
    assert intersection_yxyx(first, second) == 2.0
    np.testing.assert_allclose(iou_yxyx(first, second), 2.0 / 16.0)


def test_empty_boxes_overlap_nothing() -> None:
    point = np.array([1, 1, 1, 1], np.float32)
    assert iou_yxyx(point, point) == 0.0
    assert area_yxyx(np.array([4, 0, 0, 4], np.float32)) == 0.0


def test_clipping_takes_height_for_y_and_width_for_x() -> None:
    boxes = np.array([[-5, -5, 50, 50], [2, 3, 4, 5]], np.float32)
    np.testing.assert_array_equal(clip_yxyx(boxes, 10.0, 20.0), [[0, 0, 10, 20], [2, 3, 4, 5]])


_boxes = st.lists(st.tuples(*[st.integers(0, 40)] * 2, *[st.integers(1, 30)] * 2), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(_boxes, _boxes)
def test_pairwise_iou_equals_pycocotools(first: list[tuple[int, ...]], second: list[tuple[int, ...]]) -> None:
    def xywh(boxes: list[tuple[int, ...]]) -> np.ndarray:
        return np.array([[x, y, w, h] for y, x, h, w in boxes], np.float64)

    def yxyx(boxes: list[tuple[int, ...]]) -> np.ndarray:
        return np.array([[y, x, y + h, x + w] for y, x, h, w in boxes], np.float32)

    expected = coco_mask.iou(xywh(first), xywh(second), [0] * len(second))
    np.testing.assert_allclose(pairwise_iou_yxyx(yxyx(first), yxyx(second)), expected, atol=1e-6)


Oracles = dict[str, dict[str, Any]]
ANCHOR = np.array([0, 0, 32, 16], np.float32)


def test_encoding(oracles: Oracles) -> None:
    expected = oracles["coder.automl_encode"]["expected"]["unscaled"]
    np.testing.assert_allclose(encode_yxyx(np.array([10, 5, 30, 17], np.float32), ANCHOR), expected, atol=1e-5)


def test_decoding(oracles: Oracles) -> None:
    expected = oracles["coder.automl_decode"]["expected"]
    np.testing.assert_allclose(decode_yxyx(np.array([0.1, -0.2, 0.2, -0.1], np.float32), ANCHOR), expected, atol=1e-3)


_box = st.tuples(st.floats(-50, 50), st.floats(-50, 50), st.floats(1, 100), st.floats(1, 100))


@settings(max_examples=40, deadline=None)
@given(_box, _box)
def test_decoding_inverts_encoding(box: tuple[float, ...], anchor: tuple[float, ...]) -> None:
    def yxyx(values: tuple[float, ...]) -> np.ndarray:
        y, x, height, width = values
        return np.array([y, x, y + height, x + width], np.float32)

    decoded = decode_yxyx(encode_yxyx(yxyx(box), yxyx(anchor)), yxyx(anchor))
    np.testing.assert_allclose(decoded, yxyx(box), atol=1e-2)


def test_an_empty_box_and_a_wild_code_stay_finite() -> None:
    assert np.isfinite(encode_yxyx(np.zeros(4, np.float32), ANCHOR)).all()
    assert np.isfinite(decode_yxyx(np.array([0, 0, 1e4, 1e4], np.float32), ANCHOR)).all()


def test_boxes_without_four_coordinates_are_refused() -> None:
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        encode_yxyx(np.zeros([2, 5], np.float32), ANCHOR)


TWO_STAGE: dict[str, Any] = {"scale_factors": (10.0, 10.0, 5.0, 5.0), "pixel_offset": 1.0}
PIXELS = np.array([0, 0, 31, 15], np.float32)  # the same region as ANCHOR, by first and last pixel


def test_encoding_of_inclusive_pixels(oracles: Oracles) -> None:
    expected = oracles["coder.maskrcnn_plus1"]["expected"]["encode"]
    encoded = encode_yxyx(np.array([10, 5, 29, 16], np.float32), PIXELS, **TWO_STAGE)
    np.testing.assert_allclose(encoded, expected, atol=1e-5)


def test_decoding_of_inclusive_pixels(oracles: Oracles) -> None:
    expected = oracles["coder.maskrcnn_plus1"]["expected"]
    deltas = np.array([0.1, -0.2, 0.2, -0.1], np.float32)
    np.testing.assert_allclose(decode_yxyx(deltas, PIXELS, pixel_offset=1.0), expected["decode"], atol=1e-4)
    scaled = deltas * np.array(TWO_STAGE["scale_factors"], np.float32)
    np.testing.assert_allclose(decode_yxyx(scaled, PIXELS, **TWO_STAGE), expected["decode"], atol=1e-4)


def test_the_limit_of_sizes_applies_to_unscaled_deltas(oracles: Oracles) -> None:
    limit = oracles["coder.maskrcnn_plus1"]["expected"]["clip"]  # ln(1000 / 16)
    deltas = np.array([0.0, 0.0, 5.0 * limit + 1.0, 5.0 * (limit - 1.0)], np.float32)
    decoded = decode_yxyx(deltas, ANCHOR, scale_factors=(10.0, 10.0, 5.0, 5.0), max_log_size=limit).numpy()
    np.testing.assert_allclose(decoded[2:] - decoded[:2], [32 * 62.5, 16 * 62.5 / np.e], rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(_box, _box, st.sampled_from([0.0, 1.0]))
def test_decoding_inverts_encoding_with_options(
    box: tuple[float, ...], anchor: tuple[float, ...], pixel_offset: float
) -> None:
    def yxyx(values: tuple[float, ...]) -> np.ndarray:
        y, x, height, width = values
        return np.array([y, x, y + height, x + width], np.float32)

    options: dict[str, Any] = {"scale_factors": (10.0, 9.0, 5.0, 4.0), "pixel_offset": pixel_offset}
    decoded = decode_yxyx(encode_yxyx(yxyx(box), yxyx(anchor), **options), yxyx(anchor), **options)
    np.testing.assert_allclose(decoded, yxyx(box), atol=1e-2)


def test_coding_with_options_compiles_under_xla() -> None:
    boxes, anchors = np.array([[10, 5, 29, 16]] * 3, np.float32), np.stack([PIXELS] * 3)

    def both(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        deltas = encode_yxyx(boxes, anchors, **TWO_STAGE)
        return deltas, decode_yxyx(deltas, anchors, **TWO_STAGE)

    for compiled, plain in zip(tf.function(both, jit_compile=True)(boxes), both(boxes), strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-5)
