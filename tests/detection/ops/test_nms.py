from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.ops.nms import hard_nms

Oracles = dict[str, dict[str, Any]]


def _nms(boxes: Any, scores: Any, classes: Any = None, **options: Any) -> list[list[int]]:
    boxes, scores = np.array(boxes, np.float32), np.array(scores, np.float32)
    if boxes.ndim == 2:
        boxes, scores = boxes[None], scores[None]
    classes = np.zeros(scores.shape, np.int32) if classes is None else np.int32(classes).reshape(scores.shape)
    arguments = {"iou_threshold": 0.5, "score_threshold": 0.0, "max_outputs": 10} | options
    picked, num = hard_nms(tf.constant(boxes), tf.constant(scores), tf.constant(classes), **arguments)
    assert picked.shape[1] == arguments["max_outputs"]
    assert all((row[count:] == 0).all() for row, count in zip(picked.numpy(), num.numpy(), strict=True))
    return [row[:count].tolist() for row, count in zip(picked.numpy(), num.numpy(), strict=True)]


def _greedy(boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, threshold: float, limit: int) -> list[int]:
    """Reference: one box at a time, in plain numpy."""
    kept: list[int] = []
    for place in np.argsort(-scores, kind="stable"):
        clear = True
        for other in kept:
            low = np.maximum(boxes[place, :2], boxes[other, :2])
            high = np.minimum(boxes[place, 2:], boxes[other, 2:])
            overlap = np.prod(np.maximum(high - low, 0.0))
            union = (
                np.prod(boxes[place, 2:] - boxes[place, :2]) + np.prod(boxes[other, 2:] - boxes[other, :2]) - overlap
            )
            clear &= not (classes[place] == classes[other] and overlap / union > threshold)
        if clear and len(kept) < limit:
            kept.append(int(place))
    return kept


def test_the_originals_case(oracles: Oracles) -> None:
    oracle = oracles["nms.hard"]
    inputs = oracle["inputs"]
    assert _nms(inputs["boxes"], inputs["scores"], max_outputs=4) == [oracle["expected"]["kept"]]


def test_a_low_threshold(oracles: Oracles) -> None:
    oracle = oracles["nms.tiled_low_threshold"]
    inputs = oracle["inputs"]
    kept = _nms(inputs["boxes"], inputs["scores"], iou_threshold=inputs["thr"])
    assert kept == [oracle["expected"]["correct_keep"]]


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.5, 0.7, 1.0])
def test_equals_a_plain_greedy_search(threshold: float) -> None:
    random = np.random.default_rng(int(threshold * 10))
    corners = random.uniform(0, 60, (3, 80, 2))
    boxes = np.concatenate([corners, corners + random.uniform(4, 40, (3, 80, 2))], axis=-1).astype(np.float32)
    scores = random.permutation(np.linspace(0.01, 0.99, 240)).reshape(3, 80).astype(np.float32)
    classes = random.integers(0, 3, (3, 80))
    for limit in (5, 80):
        expected = [_greedy(*image, threshold, limit) for image in zip(boxes, scores, classes, strict=True)]
        assert _nms(boxes, scores, classes, iou_threshold=threshold, max_outputs=limit) == expected


def test_an_overlap_of_exactly_the_threshold_stays() -> None:
    boxes = [[0, 0, 2, 1], [0, 0, 1, 1]]
    assert _nms(boxes, [0.9, 0.8], iou_threshold=0.5) == [[0, 1]]
    assert _nms(boxes, [0.9, 0.8], iou_threshold=0.49) == [[0]]


def test_classes_do_not_suppress_each_other() -> None:
    assert _nms([[0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 4, 4]], [0.5, 0.6, 0.4], [0, 1, 0]) == [[1, 0]]


def test_scores_at_the_threshold_do_not_count() -> None:
    boxes = [[0, 0, 1, 1], [5, 5, 6, 6], [9, 9, 10, 10]]
    assert _nms(boxes, [0.5, 0.25, 0.1], score_threshold=0.25) == [[0]]


def test_equal_scores_keep_their_order() -> None:
    assert _nms([[0, 0, 1, 1], [5, 5, 6, 6]], [0.5, 0.5]) == [[0, 1]]


def test_nothing_to_pick() -> None:
    assert _nms([[0, 0, 1, 1]], [0.1], score_threshold=0.5) == [[]]


def test_compiles_under_xla() -> None:
    boxes = tf.constant([[[0.0, 0.0, 10.0, 10.0], [0.0, 1.0, 10.0, 11.0], [0.0, 20.0, 10.0, 30.0]]])
    run = tf.function(
        lambda boxes, scores, classes: hard_nms(
            boxes, scores, classes, iou_threshold=0.5, score_threshold=0.0, max_outputs=5
        ),
        jit_compile=True,
    )
    picked, num = run(boxes, tf.constant([[0.7, 0.9, 0.8]]), tf.zeros([1, 3], tf.int32))
    assert picked.numpy()[0, : num.numpy()[0]].tolist() == [1, 2]
