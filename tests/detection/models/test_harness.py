"""What every detector must pass: the smallest of each family in the registry, and others by name."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.models.detector import Detector
from detection.models.registry import build_detector
from detection.ops.replicas import micro_batch
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
    "ssd-nano": {},
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
SLOW = SAMPLING - {"mask-rcnn-nano"} | {
    "centernet-nano",
    "efficientdet-nano",
    "efficientdet-d0",
    "efficientdet-lite0",
    "retinanet-nano",
    "retinanet-nano, od-api",
    "ssd-nano, softmax",
}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.extended) if name in SLOW else name for name in DETECTORS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _preset(name: str) -> str:
    """The detector of a name; what follows a comma tells variants apart."""
    return name.partition(",")[0]


def _build(name: str, dtype: str | None = None) -> Detector:
    keras.utils.set_random_seed(0)
    return build_detector(
        _preset(name),
        num_classes=CLASSES,
        image_size=SIDE,
        overrides=DETECTORS[name],
        postprocess={"max_detections": DETECTIONS},
        keypoints=KEYPOINTS,
        dtype=dtype,
    )


def _images() -> tf.Tensor:
    return tf.random.stateless_normal([BATCH, SIDE, SIDE, 3], [0, 0])


def _labels() -> Labels:
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


def _rows(nest: Any, rows: slice) -> Any:
    def of(value: tf.Tensor | None) -> tf.Tensor | None:
        return value if value is None or value.shape[0] != BATCH else value[rows]

    return tf.nest.map_structure(of, nest)


def _image_info() -> ImageInfo:
    return ImageInfo(original_size=tf.fill([BATCH, 2], 100.0), scale=tf.fill([BATCH, 2], 0.64))


def _gradient_step(detector: Detector, images: tf.Tensor, labels: Labels, seed: tf.Tensor | None = None) -> Any:
    variables = [variable.value for variable in detector.trainable_variables]
    with tf.GradientTape() as tape:
        terms = detector.losses(detector(images, training=True, seed=seed), labels)
        total = tf.add_n(list(terms.values()))
    return terms, tape.gradient(total, variables)


def _assert_near(name: str, ours: list[tf.Tensor], theirs: list[tf.Tensor]) -> None:
    """Gradients alike as a whole: rounding moves single activations over the kinks of relu6 and max-pooling."""
    differences = [tf.norm(first - second) for first, second in zip(ours, theirs, strict=True)]
    # Images times 1 + 3e-7 change this one's gradients by 0.8 %.
    bound = 0.03 if name == "efficientdet-lite0" else 0.01
    assert tf.norm(differences) < bound * tf.linalg.global_norm(theirs)


def _check(detections: Detections) -> None:
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


def test_builds_and_answers(name: str) -> None:
    detector = _build(name)
    assert len({variable.path for variable in detector.variables}) == len(detector.variables)
    count = len(detector.variables)
    outputs = detector(_images())
    assert {output.dtype for output in detector.named_outputs(outputs).values()} == {tf.float32}
    terms = detector.losses(outputs, _labels())
    assert all(term.shape == () and term.dtype == tf.float32 and np.isfinite(term) for term in terms.values())
    _check(detector.detect(outputs, _image_info()))
    assert len(detector.variables) == count
    paths = {variable.path for variable in detector.variables}
    assert {variable.path for variable in detector.backbone_variables} < paths


def test_losses_of_micro_batches_add_up(name: str) -> None:
    """Means over samples whose number depends on the outputs: each micro-batch's counts by its number of images."""
    detector = _build(name)
    outputs = detector(_images(), seed=tf.constant([1, 2]))
    whole = detector.losses(outputs, _labels())
    positives = sum(detector.count_positives(_rows(_labels(), half)) for half in HALVES)
    parts, alone = [], []
    for index, half in enumerate(HALVES):
        with micro_batch(index, len(HALVES)):
            parts.append(detector.losses(_rows(outputs, half), _rows(_labels(), half), positives))
            alone.append(detector.losses(_rows(outputs, half), _rows(_labels(), half)))
    for key, term in whole.items():
        exact = name not in SAMPLING or key.startswith("rpn_")
        expected = term if exact else sum(part[key] for part in alone) / len(HALVES)
        np.testing.assert_allclose(sum(part[key] for part in parts), expected, rtol=1e-5, err_msg=key)
        np.testing.assert_allclose(expected, term, rtol=0.5, err_msg=key)


def test_tells_which_variables_depend_on_the_number_of_classes(name: str) -> None:
    detector = _build(name)
    more = build_detector(
        _preset(name), num_classes=CLASSES + 2, image_size=SIDE, overrides=DETECTORS[name], keypoints=KEYPOINTS
    )
    shapes = {variable.path: tuple(variable.shape) for variable in more.variables}
    differ = {variable.path for variable in detector.variables if tuple(variable.shape) != shapes[variable.path]}
    told = detector.output_classes(CLASSES + 2)
    assert told.keys() == differ == detector.output_classes(CLASSES).keys()
    for path, classes in told.items():
        assert shapes[path][-1] == len(classes)
        assert set(range(CLASSES + 2)) <= set(classes.tolist()) <= set(range(-1, CLASSES + 2))


def test_works_with_any_batch_size_when_traced(name: str) -> None:
    detector = _build(name)

    @tf.function(input_signature=[tf.TensorSpec([None, SIDE, SIDE, 3])], autograph=False)
    def detect(images: tf.Tensor) -> Detections:
        batch = tf.shape(images)[0]
        return detector.detect(detector(images), ImageInfo(tf.fill([batch, 2], 100.0), tf.fill([batch, 2], 0.64)))

    _check(detect(_images()))
    assert detect(_images()[:1]).boxes.shape == (1, DETECTIONS, 4)


def test_images_of_another_size_are_refused(name: str) -> None:
    """Their pyramid would not be that of the anchors."""
    detector = _build(name)

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3])])
    def traced(images: tf.Tensor) -> Any:
        return detector(images)

    for height, width in [(80, 80), (64, 96), (96, 64), (32, 64), (65, 64), (1, 1)]:
        images = tf.zeros([1, height, width, 3])
        sizes = rf"takes images of 64 x 64 pixels .* not of {height} x {width} pixels \(height x width\)"
        with pytest.raises(ValueError, match=sizes):
            detector(images)
        with pytest.raises(ValueError, match=sizes):
            tf.function(detector)(images)
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\[1,{height},{width},3\] .* \[\?,64,64,3\]"):
            traced(images)
    with pytest.raises(ValueError, match=r"not of shape \(64, 64, 3\)"):
        detector(tf.zeros([64, 64, 3]))
    known, unknown = (detector.named_outputs(outputs) for outputs in (detector(_images()), traced(_images())))
    for key, output in known.items():
        np.testing.assert_allclose(unknown[key], output, atol=1e-5, err_msg=key)


def test_a_detector_may_be_wider_than_high(name: str) -> None:
    overrides = DETECTORS[name] | {"image_size": (32, 64)}
    detector = build_detector(_preset(name), num_classes=CLASSES, overrides=overrides, keypoints=KEYPOINTS)
    detector(tf.zeros([1, 32, 64, 3]))
    with pytest.raises(ValueError, match=r"images of 32 x 64 pixels \(height x width\) .* not of 64 x 32 pixels"):
        detector(tf.zeros([1, 64, 32, 3]))


def test_saves_and_loads_equal(name: str, tmp_path: Path) -> None:
    first, second = _build(name), _build(name)
    for number, variable in enumerate(first.variables):
        variable.assign(variable + 0.01 * number)
    first.save_weights(tmp_path / "model.weights.h5")
    second.load_weights(tmp_path / "model.weights.h5")
    for ours, theirs in zip(second.variables, first.variables, strict=True):
        assert ours.path == theirs.path
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_survives_mixed_precision(name: str, policy: str) -> None:
    detector, reference = _build(name, dtype=policy), _build(name)
    reference.set_weights(detector.get_weights())
    assert {variable.dtype for variable in detector.variables} == {"float32"}
    outputs, expected = (network.named_outputs(network(_images())) for network in (detector, reference))
    assert {output.dtype for output in outputs.values()} == {tf.float32}
    for key, output in outputs.items():
        np.testing.assert_allclose(output, expected[key], atol=0.15, err_msg=key)
    terms, gradients = _gradient_step(detector, _images(), _labels())
    assert all(term.dtype == tf.float32 and np.isfinite(term) for term in terms.values())
    assert all(gradient.dtype == tf.float32 and np.isfinite(gradient).all() for gradient in gradients)


def test_compiles_under_xla(name: str) -> None:
    detector = _build(name)
    seed = tf.constant([1, 2])

    @tf.function(jit_compile=True, autograph=False)
    def compiled(images: tf.Tensor, labels: Labels, info: ImageInfo) -> Any:
        terms = detector.losses(detector(images, training=True, seed=seed), labels)
        return terms, detector.detect(detector(images), info)

    weights = detector.get_weights()
    terms, detections = compiled(_images(), _labels(), _image_info())
    _check(detections)
    detector.set_weights(weights)
    expected = detector.losses(detector(_images(), training=True, seed=seed), _labels())
    for key, term in terms.items():
        np.testing.assert_allclose(term, expected[key], rtol=5e-3)


@pytest.mark.extended
def test_gradients_compile_under_xla(name: str) -> None:
    detector = _build(name)
    _, gradients = tf.function(lambda *args: _gradient_step(detector, *args), jit_compile=True, autograph=False)(
        _images(), _labels()
    )
    _, expected = _gradient_step(detector, _images(), _labels())
    _assert_near(name, gradients, expected)


def _on_replicas(strategy: tf.distribute.Strategy, function: Callable[..., Any], *inputs: Any) -> Any:
    """Runs a traced function with half of the batch on each of two replicas."""

    def halves(value: tf.Tensor | None) -> Any:
        if value is None or value.shape[0] != BATCH:
            return value
        return strategy.experimental_distribute_values_from_function(
            lambda context: value[HALVES[context.replica_id_in_sync_group]]
        )

    inputs = tf.nest.map_structure(halves, inputs)
    return tf.function(lambda *halves: strategy.run(function, halves), autograph=False)(*inputs)


def _assert_sums(strategy: tf.distribute.Strategy, parts: Any, terms: dict[str, tf.Tensor], rtol: float) -> None:
    for key, term in terms.items():
        total = sum(float(part) for part in strategy.experimental_local_results(parts[key]))
        np.testing.assert_allclose(total, term, rtol=rtol, err_msg=key)


def test_losses_of_replicas_add_up(name: str, two_replicas: tf.distribute.Strategy) -> None:
    detector = _build(name)
    outputs = detector(_images(), seed=tf.constant([1, 2]))
    terms = detector.losses(outputs, _labels())
    _assert_sums(two_replicas, _on_replicas(two_replicas, detector.losses, outputs, _labels()), terms, rtol=1e-5)


@pytest.mark.extended
def test_two_replicas_equal_one(name: str, two_replicas: tf.distribute.Strategy) -> None:
    one = _build(name)
    with two_replicas.scope():
        two = _build(name)
    two.set_weights(one.get_weights())
    terms, gradients = _gradient_step(one, _images(), _labels())
    step = functools.partial(_gradient_step, two)
    of_replicas, their_gradients = _on_replicas(two_replicas, step, _images(), _labels())
    _assert_sums(two_replicas, of_replicas, terms, rtol=1e-4)
    totals = [tf.add_n(two_replicas.experimental_local_results(gradient)) for gradient in their_gradients]
    _assert_near(name, totals, gradients)
    for ours, theirs in zip(one.non_trainable_variables, two.non_trainable_variables, strict=True):
        np.testing.assert_allclose(theirs.numpy(), ours.numpy(), rtol=1e-3, atol=1e-4)


def test_trains_the_same_twice_and_learns(name: str, op_determinism: None) -> None:
    detector = _build(name)
    optimizer = keras.optimizers.Adam(5e-3)
    optimizer.build(detector.trainable_variables)
    start = [variable.numpy() for variable in (*detector.variables, *optimizer.variables)]

    @tf.function(autograph=False)
    def step(number: tf.Tensor) -> tf.Tensor:
        terms, gradients = _gradient_step(detector, _images(), _labels(), seed=tf.stack([number, 0]))
        optimizer.apply(gradients, detector.trainable_variables)
        return tf.add_n(list(terms.values()))

    def losses() -> list[float]:
        for variable, value in zip((*detector.variables, *optimizer.variables), start, strict=True):
            variable.assign(value)
        return [float(step(tf.constant(number))) for number in range(20)]

    first = losses()
    assert first == losses()
    assert first[-1] < 0.5 * first[0]


def test_equal_seeds_give_equal_weights(name: str) -> None:
    for ours, theirs in zip(_build(name).get_weights(), _build(name).get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
