"""The detectors of the tests of all detectors, small, and what these tests do with them."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from detection.models.detector import Detector
from detection.models.registry import build_detector
from detection.types import Detections, ImageInfo, Labels
from schemas.config.section import merged
from tests.detection import mask_keypoint_detector
from tests.detection.families import smallest_detectors

mask_keypoint_detector.register()

SIDE, CLASSES, BATCH, OBJECTS, DETECTIONS = 64, 3, 4, 3, 10
HALVES = (slice(0, BATCH // 2), slice(BATCH // 2, BATCH))

# Overrides make a network smaller where its depth teaches nothing new.
PROPOSALS = {"post_nms_top_k": 30}
SMALL_HEADS: dict[str, Any] = {
    "min_level": 4,
    "neck": {"filters": 16},
    "anchors": {"scale": 1.0},
    "rpn": {"sampling": {"count": 32}, "train": PROPOSALS, "test": PROPOSALS},
    "roi": {"sampling": {"count": 32}},
    "box_head": {"layers": 1, "units": 32},
}
SMALL_MASKS = {"mask_head": {"filters": 16, "layers": 1}}
DETECTORS: dict[str, dict[str, Any]] = {name: {} for name in smallest_detectors()} | {
    "efficientdet-nano": {"neck": {"filters": 16, "cells": 1}, "head": {"layers": 1}, "min_level": 4, "max_level": 6},
    "retinanet-nano": {"neck": {"filters": 16}, "head": {"layers": 1}, "min_level": 4, "max_level": 6},
    "retinanet-nano, od-api": {
        "neck": {"filters": 16, "separable_conv": True},
        "head": {"layers": 1, "share_tower": True, "separable_conv": True},
        "max_level": 6,
        "dialect": "od-api",
        "loss": {"background_class": True},
    },
    "ssd-nano": {"neck": {"filters": (16,)}},
    "ssd-nano, softmax": {
        "neck": {"separable_conv": True},
        "head": {"separable_conv": True},
        "loss": {
            "background_class": True,
            "background_target": True,
            "class_loss": "softmax",
            "hard_example_miner": {"max_negatives_per_positive": 3.0},
        },
    },
    "efficientdet-d0": {"neck": {"cells": 1}, "head": {"layers": 1}},
    "efficientdet-lite0": {"neck": {"cells": 1}, "head": {"layers": 1}},
    "faster-rcnn-nano": SMALL_HEADS,
    "mask-rcnn-nano": merged(SMALL_HEADS, SMALL_MASKS),
    "mask-rcnn-nano, cascade": merged(
        SMALL_HEADS, SMALL_MASKS | {"box_head": {"cascade_ious": (0.4, 0.5, 0.6)}, "dialect": "tpu"}
    ),
    "faster-rcnn-nano, od-api": merged(
        SMALL_HEADS, {"dialect": "od-api", "rpn": {"filters": 24}, "activation": "relu6"}
    ),
    "faster-rcnn-r50-c4": {
        "backbone": {"name": "resnet-18", "frozen_stages": 0, "train_batch_norm": True},
        "anchors": {"scale": 1.0, "crossing": "ignore"},
        "rpn": {"filters": 16, "sampling": {"count": 32}, "train": PROPOSALS, "test": PROPOSALS},
        "roi": {"sampling": {"count": 32}},
        "box_head": {"roi_size": 2},
        "dialect": "od-api",
        "padding": "black",
    },
    "centernet-nano": {"neck": {"filters": (32, 16, 16, 16)}, "head": {"filters": 16}},
    "centernet-nano-kpts": {"neck": {"filters": (32, 16, 16, 16)}, "head": {"filters": 16}},
    "dfine-pico": {"decoder": {"layers": 2, "queries": 30}, "loss": {"denoising_queries": 10}},
    "mask-keypoint": {},
}
# By class; the second has none.
KEYPOINTS = [["nose", "tail"], [], ["tip"]]
# Their losses are means over samples, whose number depends on the outputs except in the RPN.
SAMPLING = {
    "faster-rcnn-r50-c4",
    "faster-rcnn-nano",
    "faster-rcnn-nano, od-api",
    "mask-rcnn-nano",
    "mask-rcnn-nano, cascade",
}
# `efficientdet-nano` is that of most tests of training.
# Terms of D-FINE that are means over pairs, whose number depends on the outputs.
QUERIES = {"dfine-pico"}
PAIRS = ("box_", "giou_", "fgl_", "ddf_", "denoising_ddf_")
SLOW = SAMPLING - {"mask-rcnn-nano"} | {
    "centernet-nano",
    "dfine-pico",
    "efficientdet-nano",
    "efficientdet-d0",
    "efficientdet-lite0",
    "retinanet-nano",
    "retinanet-nano, od-api",
    "ssd-nano, softmax",
}


def preset(name: str) -> str:
    """The detector of a name; what follows a comma tells variants apart."""
    return name.partition(",")[0]


def build(name: str, dtype: str | None = None, **overrides: Any) -> Detector:
    keras.utils.set_random_seed(0)
    return build_detector(
        preset(name),
        num_classes=CLASSES,
        image_size=SIDE,
        overrides=DETECTORS[name] | overrides,
        postprocess={"max_detections": DETECTIONS},
        keypoints=KEYPOINTS,
        dtype=dtype,
    )


def images() -> tf.Tensor:
    return tf.random.stateless_normal([BATCH, SIDE, SIDE, 3], [0, 0])


def labels() -> Labels:
    random = np.random.default_rng(0)
    corners = random.uniform(0, 32, (BATCH, OBJECTS, 2))
    boxes = np.concatenate([corners, corners + random.uniform(12, 32, (BATCH, OBJECTS, 2))], axis=-1)
    valid = np.array([[True] * OBJECTS, [True, False, False], [True, True, False], [False] * OBJECTS])
    keypoints = np.concatenate([boxes.reshape(BATCH, OBJECTS, 2, 2), np.full((BATCH, OBJECTS, 2, 1), 2)], -1)
    return Labels(
        boxes=tf.constant(boxes * valid[..., None], tf.float32),
        classes=tf.constant(random.integers(0, CLASSES, (BATCH, OBJECTS)), tf.int32),
        valid=tf.constant(valid),
        masks=tf.tile(tf.constant(np.tri(28), tf.uint8)[tf.newaxis, tf.newaxis], [BATCH, OBJECTS, 1, 1]),
        keypoints=tf.constant(keypoints, tf.float32),
    )


def rows(nest: Any, rows: slice) -> Any:
    def of(value: tf.Tensor | None) -> tf.Tensor | None:
        return value if value is None or value.shape[0] != BATCH else value[rows]

    return tf.nest.map_structure(of, nest)


def image_info() -> ImageInfo:
    return ImageInfo(original_size=tf.fill([BATCH, 2], 100.0), scale=tf.fill([BATCH, 2], 0.64))


def gradient_step(detector: Detector, images: tf.Tensor, labels: Labels, seed: tf.Tensor | None = None) -> Any:
    variables = [variable.value for variable in detector.trainable_variables]
    with tf.GradientTape() as tape:
        terms = detector.losses(detector(images, training=True, seed=seed), labels)
        total = tf.add_n(list(terms.values()))
    return terms, tape.gradient(total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)


class Adam:
    """The rule in plain ops; an optimizer's takes as long as the gradients, if it is not traced."""

    def __init__(self, detector: Detector):
        self._detector = detector
        self._count = 0
        self._means: list[Any] = [0.0] * len(detector.trainable_variables)
        self._squares = list(self._means)

    def step(self, terms_and_gradients: Any) -> float:
        """Takes a step; returns the loss before it."""
        terms, gradients = terms_and_gradients
        self._count += 1
        for number, (variable, gradient) in enumerate(zip(self._detector.trainable_variables, gradients, strict=True)):
            self._means[number] = 0.9 * self._means[number] + 0.1 * gradient
            self._squares[number] = 0.999 * self._squares[number] + 0.001 * gradient**2
            mean = self._means[number] / (1.0 - 0.9**self._count)
            variable.assign_sub(5e-3 * mean / (tf.sqrt(self._squares[number] / (1.0 - 0.999**self._count)) + 1e-7))
        return float(tf.add_n(list(terms.values())))


def assert_gradients_near(name: str, ours: list[tf.Tensor], theirs: list[tf.Tensor]) -> None:
    """Gradients alike as a whole: rounding moves single activations over the kinks of relu6 and max-pooling."""
    differences = [tf.norm(first - second) for first, second in zip(ours, theirs, strict=True)]
    # Images times 1 + 3e-7 change this one's gradients by 0.8 %.
    bound = 0.03 if name == "efficientdet-lite0" else 0.01
    assert tf.norm(differences) < bound * tf.linalg.global_norm(theirs)


def check_detections(detections: Detections) -> None:
    boxes, scores, num = detections.boxes.numpy(), detections.scores.numpy(), detections.num.numpy()
    assert boxes.shape == (BATCH, DETECTIONS, 4)
    assert (detections.boxes.dtype, detections.scores.dtype) == (tf.float32, tf.float32)
    assert (detections.classes.dtype, detections.num.dtype) == (tf.int32, tf.int32)
    assert (boxes[..., :2] <= boxes[..., 2:]).all()
    assert ((boxes >= 0) & (boxes <= 1)).all()
    assert (np.diff(scores, axis=1) <= 0).all()
    assert ((scores > 0).sum(axis=1) == num).all()
    assert ((detections.classes.numpy() >= 0) & (detections.classes.numpy() < CLASSES)).all()
    if detections.masks is not None:
        masks = detections.masks.numpy()
        assert (masks.dtype, masks.shape) == (np.float32, (BATCH, DETECTIONS, 28, 28))
        assert ((masks >= 0) & (masks <= 1)).all()
    if detections.keypoints is not None:
        keypoints = detections.keypoints.numpy()
        assert (keypoints.dtype, keypoints.shape[:2], keypoints.shape[3]) == (np.float32, (BATCH, DETECTIONS), 3)
        assert np.isfinite(keypoints).all()
