import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from detection.ops.boxes import area_yxyx, clip_yxyx, intersection_yxyx, iou_yxyx, pairwise_iou_yxyx


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
