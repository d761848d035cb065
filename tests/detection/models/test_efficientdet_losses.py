from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.geometry.box_coder import encode_yxyx
from detection.models.efficientdet import EfficientDet, RawOutputs
from detection.models.registry import build_detector
from detection.types import Labels

Oracles = dict[str, dict[str, Any]]
BACKGROUND = -20.0  # a logit whose loss as background is nothing


@pytest.fixture(scope="module")
def detector() -> EfficientDet:
    overrides = {"min_level": 3, "max_level": 5, "anchor_scale": 2.0}
    detector = build_detector("efficientdet-nano", num_classes=4, image_size=64, overrides=overrides)
    assert isinstance(detector, EfficientDet)
    return detector


def _labels(boxes: list[list[float]], classes: list[int]) -> Labels:
    padding = 3 - len(boxes)
    return Labels(
        boxes=tf.constant([boxes + [[0.0] * 4] * padding], tf.float32),
        classes=tf.constant([classes + [0] * padding]),
        valid=tf.constant([[True] * len(boxes) + [False] * padding]),
    )


def _outputs(detector: EfficientDet, logits: np.ndarray, codes: np.ndarray) -> RawOutputs:
    """[A, C] and [A, 4] as the network gives them."""
    sides = [8, 4, 2]
    cuts = np.cumsum([side * side * 9 for side in sides])[:-1]
    split = lambda values: [  # noqa: E731
        tf.reshape(tf.constant(part, tf.float32), [1, side, side, -1])
        for side, part in zip(sides, np.split(values, cuts), strict=True)
    ]
    return RawOutputs(split(logits), split(codes))


def test_an_empty_image_costs_what_the_original_says(oracles: Oracles) -> None:
    expected = oracles["head.class_bias"]["expected"]
    detector = build_detector("efficientdet-d0", num_classes=90)
    assert isinstance(detector, EfficientDet)
    outputs = RawOutputs(
        [tf.fill([1, side, side, 810], expected["bias"]) for side in (64, 32, 16, 8, 4)],
        [tf.zeros([1, side, side, 36]) for side in (64, 32, 16, 8, 4)],
    )
    terms = detector.losses(outputs, _labels([], []))
    np.testing.assert_allclose(terms["class_loss"], expected["d0_empty_image_cls_loss"], rtol=1e-4)
    assert terms["box_loss"] == 0.0


def test_right_answers_cost_nothing_and_each_wrong_one_its_share(detector: EfficientDet) -> None:
    box = [13.0, 5.0, 29.0, 21.0]
    labels = _labels([box], [2])
    codes = encode_yxyx(tf.constant(box), tf.constant(detector.anchors)).numpy()
    low = np.maximum(detector.anchors[:, :2], box[:2])
    overlap = np.prod(np.maximum(np.minimum(detector.anchors[:, 2:], box[2:]) - low, 0), axis=1)
    areas = np.prod(detector.anchors[:, 2:] - detector.anchors[:, :2], axis=1) + 16 * 16
    positive = overlap / (areas - overlap) >= 0.5
    count = positive.sum()
    assert count > 1
    logits = np.full((len(codes), 4), BACKGROUND)
    logits[positive, 2] = -BACKGROUND

    terms = detector.losses(_outputs(detector, logits, codes), labels)
    np.testing.assert_allclose(terms["class_loss"], 0.0, atol=1e-6)
    np.testing.assert_allclose(terms["box_loss"], 0.0, atol=1e-6)

    # One code off by 0.3: Huber 0.1 * 0.3 - 0.005, times the weight of 50, over 4 (positives + 1).
    place = int(np.flatnonzero(positive)[0])
    codes[place, 1] += 0.3
    codes[np.flatnonzero(~positive)[0]] += 5.0
    terms = detector.losses(_outputs(detector, logits, codes), labels)
    np.testing.assert_allclose(terms["box_loss"], 50 * 0.025 / (4 * (count + 1)), rtol=1e-4)

    # The wrong class at an anchor: a missed target and a false alarm, focal factors being 1.
    logits[place] = BACKGROUND
    logits[place, 3] = -BACKGROUND
    terms = detector.losses(_outputs(detector, logits, codes), labels)
    np.testing.assert_allclose(terms["class_loss"], (0.25 * 20 + 0.75 * 20) / (count + 1), rtol=1e-3)
