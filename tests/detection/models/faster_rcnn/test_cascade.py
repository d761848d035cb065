"""Cascades: boxes from stage to stage against loops over boxes, and the probabilities of all heads."""

import math

import numpy as np
import tensorflow as tf

from detection.models.faster_rcnn.cascade import BoxRefinement, run_cascade, stage_factors
from detection.models.faster_rcnn.roi_heads import BoxHeadOutputs
from detection.models.faster_rcnn.rpn import Proposals

FACTORS = (10.0, 10.0, 5.0, 5.0)
LIMITS = np.array([[60.0, 50.0], [40.0, 64.0]])


def _decoded(box: np.ndarray, deltas: np.ndarray, factors: tuple[float, ...], limit: np.ndarray) -> np.ndarray:
    ty, tx, th, tw = (delta / factor for delta, factor in zip(deltas, factors, strict=True))
    height, width = box[2] - box[0], box[3] - box[1]
    y, x = box[0] + height / 2 + ty * height, box[1] + width / 2 + tx * width
    height, width = height * math.exp(min(th, 1.5)), width * math.exp(min(tw, 1.5))
    corners = np.array([y - height / 2, x - width / 2, y + height / 2, x + width / 2])
    return np.clip(corners, 0.0, np.tile(limit, 2))


def test_factors_of_the_paper() -> None:
    assert [stage_factors(FACTORS, stage) for stage in range(3)] == [(10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)]


def test_boxes_go_from_stage_to_stage_and_all_heads_classify_the_last_ones() -> None:
    random = np.random.default_rng(0)
    low = random.uniform(0, 30, (2, 6, 2))
    boxes = np.concatenate([low, low + random.uniform(2, 30, (2, 6, 2))], axis=2)
    deltas = random.normal(0, 3, (3, 2, 6, 1, 4))
    proposals = Proposals(tf.constant(boxes, tf.float32), tf.ones([2, 6]), tf.ones([2, 6], tf.bool))

    def head(stage: int) -> object:
        def run(features: tf.Tensor) -> BoxHeadOutputs:
            # Logits depend on the boxes, so that it counts which ones were classified.
            logits = tf.stack([features[..., 0] * (stage + 1), features[..., 1], tf.zeros([2, 6])], axis=-1) / 50.0
            return BoxHeadOutputs(logits, tf.constant(deltas[stage], tf.float32))

        return run

    refine = BoxRefinement(tf.constant(LIMITS, tf.float32), 0.0, 1.5)
    outputs, rois = run_cascade([head(stage) for stage in range(3)], tf.identity, proposals, refine, FACTORS)
    for image, number in np.ndindex(2, 6):
        box = boxes[image, number]
        for stage in range(2):
            factors = tuple(factor * (stage + 1) for factor in FACTORS)
            box = _decoded(box, deltas[stage, image, number, 0], factors, LIMITS[image])
        np.testing.assert_allclose(rois.boxes[image, number], box, atol=1e-3)
        logits = np.array([[box[0] * (stage + 1), box[1], 0.0] for stage in range(3)]) / 50.0
        expected = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).mean(axis=0)
        np.testing.assert_allclose(tf.nn.softmax(outputs.class_logits)[image, number], expected, atol=1e-5)
    np.testing.assert_array_equal(outputs.box_deltas, deltas[2].astype(np.float32))


def test_no_gradient_flows_through_refined_boxes() -> None:
    deltas = tf.zeros([2, 6, 1, 4])
    with tf.GradientTape() as tape:
        tape.watch(deltas)
        refined = BoxRefinement(tf.constant(LIMITS, tf.float32), 0.0, 1.5)(tf.ones([2, 6, 4]), deltas, FACTORS)
    assert tape.gradient(refined, deltas) is None
