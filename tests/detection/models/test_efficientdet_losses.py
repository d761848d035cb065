from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.dense.detector import RawOutputs
from detection.models.efficientdet.model import EfficientDet
from detection.models.registry import build_detector
from detection.ops.boxes import encode_yxyx
from detection.types import Labels

Oracles = dict[str, dict[str, Any]]
BACKGROUND = -20.0  # a logit whose loss as background is nothing


@pytest.fixture(scope="module")
def detector() -> EfficientDet:
    overrides = {"min_level": 3, "max_level": 5, "anchors": {"scale": 2.0}}
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


def _outputs(detector: EfficientDet, logits: np.ndarray | tf.Variable, encoded: np.ndarray | tf.Variable) -> RawOutputs:
    """[A, C] and [A, 4] as the network gives them; variables keep their gradients."""
    sides = [8, 4, 2]
    split = lambda values: [  # noqa: E731
        tf.reshape(part, [1, side, side, -1])
        for side, part in zip(
            sides, tf.split(tf.cast(values, tf.float32), [side * side * 9 for side in sides]), strict=True
        )
    ]
    return RawOutputs(split(logits), split(encoded))


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


def test_correct_answers_cost_nothing_and_each_error_its_part(detector: EfficientDet) -> None:
    box = [13.0, 5.0, 29.0, 21.0]
    labels = _labels([box], [2])
    encoded = encode_yxyx(tf.constant(box), tf.constant(detector.anchors)).numpy()
    low = np.maximum(detector.anchors[:, :2], box[:2])
    overlap = np.prod(np.maximum(np.minimum(detector.anchors[:, 2:], box[2:]) - low, 0), axis=1)
    areas = np.prod(detector.anchors[:, 2:] - detector.anchors[:, :2], axis=1) + 16 * 16
    positive = overlap / (areas - overlap) >= 0.5
    count = positive.sum()
    assert count > 1
    logits = np.full((len(encoded), 4), BACKGROUND)
    logits[positive, 2] = -BACKGROUND

    terms = detector.losses(_outputs(detector, logits, encoded), labels)
    np.testing.assert_allclose(terms["class_loss"], 0.0, atol=1e-6)
    np.testing.assert_allclose(terms["box_loss"], 0.0, atol=1e-6)

    # One code off by 0.3: Huber 0.1 * 0.3 - 0.005, times the weight of 50, over 4 (positives + 1).
    place = int(np.flatnonzero(positive)[0])
    encoded[place, 1] += 0.3
    encoded[np.flatnonzero(~positive)[0]] += 5.0
    terms = detector.losses(_outputs(detector, logits, encoded), labels)
    np.testing.assert_allclose(terms["box_loss"], 50 * 0.025 / (4 * (count + 1)), rtol=1e-4)

    # The wrong class at an anchor: a missed target and a false alarm, focal factors being 1.
    logits[place] = BACKGROUND
    logits[place, 3] = -BACKGROUND
    terms = detector.losses(_outputs(detector, logits, encoded), labels)
    np.testing.assert_allclose(terms["class_loss"], (0.25 * 20 + 0.75 * 20) / (count + 1), rtol=1e-3)


def test_anchors_in_a_crowd_count_neither_way(detector: EfficientDet) -> None:
    """The crowd is the left half: anchors with half of their area in it cost nothing, whatever they say."""
    labels = _labels([[8.0, 40.0, 24.0, 56.0]], [1])
    crowd = tf.constant([[[8.0, 40.0, 24.0, 56.0], [0.0, 0.0, 64.0, 32.0], [0.0] * 4]])
    with_crowd = labels._replace(boxes=crowd, crowds=tf.constant([[False, True, False]]))
    anchors = detector.anchors
    overlap = np.maximum(np.minimum(anchors[:, 2:], [64, 32]) - np.maximum(anchors[:, :2], 0), 0).prod(1)
    inside = overlap / (anchors[:, 2:] - anchors[:, :2]).prod(1) >= 0.5
    assert 0.2 < inside.mean() < 0.8
    encoded = encode_yxyx(tf.constant([8.0, 40.0, 24.0, 56.0]), tf.constant(anchors)).numpy()
    random = np.random.default_rng(0)
    logits = random.normal(-2.0, 1.0, (len(anchors), 4))

    def loss(logits: np.ndarray, labels: Labels) -> float:
        return float(detector.losses(_outputs(detector, logits, encoded), labels)["class_loss"])

    quiet = np.where(inside[:, None], BACKGROUND, logits)
    np.testing.assert_allclose(loss(logits, with_crowd), loss(quiet, labels), rtol=1e-4)
    loud = np.where(inside[:, None], 5.0, logits)
    np.testing.assert_allclose(loss(loud, with_crowd), loss(logits, with_crowd), rtol=1e-6)
    assert loss(loud, labels) > 2 * loss(logits, labels)


def test_an_object_in_a_crowd_keeps_its_anchors(detector: EfficientDet) -> None:
    box = [13.0, 5.0, 29.0, 21.0]
    labels = _labels([box], [2])
    covered = labels._replace(
        boxes=tf.constant([[box, [0.0, 0.0, 64.0, 64.0], [0.0] * 4]]), crowds=tf.constant([[False, True, False]])
    )
    encoded = encode_yxyx(tf.constant(box), tf.constant(detector.anchors)).numpy()
    logits = np.full((len(encoded), 4), BACKGROUND)
    ours, theirs = (detector.losses(_outputs(detector, logits, encoded + 0.2), each) for each in (covered, labels))
    assert ours["class_loss"] > 0.1
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5)


def test_images_without_objects_train_as_negatives(detector: EfficientDet) -> None:
    """They pull every class down, and leave the boxes alone."""
    count = len(detector.anchors)
    logits, encoded = tf.Variable(tf.zeros([count, 4])), tf.Variable(tf.ones([count, 4]))
    with tf.GradientTape() as tape:
        terms = detector.losses(_outputs(detector, logits, encoded), _labels([], []))
        total = tf.add_n(list(terms.values()))
    down, still = tape.gradient(total, [logits, encoded], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert np.isfinite(total)
    assert terms["box_loss"] == 0
    assert (down.numpy() > 0).all()
    assert (still.numpy() == 0).all()
