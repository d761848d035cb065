"""What every detector must pass: the smallest of each family in the registry, and others by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.detector import Detector
from detection.models.registry import build_detector
from detection.ops.replicas import micro_batch
from detection.types import Detections, ImageInfo
from tests.detection.models.harness import (
    BATCH,
    CLASSES,
    DETECTIONS,
    DETECTORS,
    HALVES,
    KEYPOINTS,
    PAIRS,
    QUERIES,
    SAMPLING,
    Adam,
    assert_gradients_near,
    build,
    check_detections,
    gradient_step,
    image_info,
    images,
    labels,
    preset,
    rows,
)


def test_builds_and_answers(detector: Detector) -> None:
    assert len({variable.path for variable in detector.variables}) == len(detector.variables)
    count = len(detector.variables)
    outputs = detector(images())
    assert {output.dtype for output in detector.named_outputs(outputs).values()} == {tf.float32}
    terms = detector.losses(outputs, labels())
    assert all(term.shape == () and term.dtype == tf.float32 and np.isfinite(term) for term in terms.values())
    check_detections(detector.detect(outputs, image_info()))
    assert len(detector.variables) == count
    paths = {variable.path for variable in detector.variables}
    assert {variable.path for variable in detector.backbone_variables} < paths


def test_losses_of_micro_batches_add_up(name: str, detector: Detector) -> None:
    """Means over samples whose number depends on the outputs: each micro-batch's counts by its number of images."""
    outputs = detector(images(), seed=tf.constant([1, 2]))
    whole = detector.losses(outputs, labels())
    positives = sum(detector.count_positives(rows(labels(), half)) for half in HALVES)
    parts, alone = [], []
    for index, half in enumerate(HALVES):
        with micro_batch(index, len(HALVES)):
            parts.append(detector.losses(rows(outputs, half), rows(labels(), half), positives))
            alone.append(detector.losses(rows(outputs, half), rows(labels(), half)))
    for key, term in whole.items():
        exact = key.startswith("rpn_") if name in SAMPLING else not (name in QUERIES and key.startswith(PAIRS))
        expected = term if exact else sum(part[key] for part in alone) / len(HALVES)
        # Noisy copies have other groups alone.
        bound = 0.5 if key.startswith("denoising_ddf_") else 1e-5
        np.testing.assert_allclose(sum(part[key] for part in parts), expected, rtol=bound, err_msg=key)
        np.testing.assert_allclose(expected, term, rtol=0.5, err_msg=key)


def test_of_another_shape_and_number_of_classes(name: str, detector: Detector) -> None:
    """It tells which variables depend on the number of classes, and takes images that are wider than high."""
    overrides = DETECTORS[name] | {"image_size": (32, 64)}
    more = build_detector(preset(name), num_classes=CLASSES + 2, overrides=overrides, keypoints=KEYPOINTS)
    shapes = {variable.path: tuple(variable.shape) for variable in more.variables}
    differ = {variable.path for variable in detector.variables if tuple(variable.shape) != shapes[variable.path]}
    told = detector.output_classes(CLASSES + 2)
    assert told.keys() == differ == detector.output_classes(CLASSES).keys()
    for path, classes in told.items():
        assert shapes[path][-1] == len(classes)
        assert set(range(CLASSES + 2)) <= set(classes.tolist()) <= set(range(-1, CLASSES + 2))
    more(tf.zeros([1, 32, 64, 3]))
    with pytest.raises(ValueError, match=r"images of 32 x 64 pixels \(height x width\) .* not of 64 x 32 pixels"):
        more(tf.zeros([1, 64, 32, 3]))


def test_traced_it_takes_any_batch_of_its_image_size(detector: Detector) -> None:
    """The pyramid of images of another size would not be that of the anchors."""

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3])], autograph=False)
    def traced(pixels: tf.Tensor) -> tuple[Any, Detections]:
        outputs, batch = detector(pixels), tf.shape(pixels)[0]
        return outputs, detector.detect(outputs, ImageInfo(tf.fill([batch, 2], 100.0), tf.fill([batch, 2], 0.64)))

    outputs, detections = traced(images())
    check_detections(detections)
    assert traced(images()[:1])[1].boxes.shape == (1, DETECTIONS, 4)
    known, unknown = (detector.named_outputs(one) for one in (detector(images()), outputs))
    for key, output in known.items():
        np.testing.assert_allclose(unknown[key], output, atol=1e-5, err_msg=key)
    for height, width in [(64, 96), (96, 64), (65, 64), (1, 1)]:
        pixels = tf.zeros([1, height, width, 3])
        sizes = rf"takes images of 64 x 64 pixels .* not of {height} x {width} pixels \(height x width\)"
        with pytest.raises(ValueError, match=sizes):
            detector(pixels)
        with pytest.raises(ValueError, match=sizes):
            tf.function(detector)(pixels)
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\[1,{height},{width},3\] .* \[\?,64,64,3\]"):
            traced(pixels)
    with pytest.raises(ValueError, match=r"not of shape \(64, 64, 3\)"):
        detector(tf.zeros([64, 64, 3]))


def test_black_padding_is_normalised_by_the_network(name: str, detector: Detector) -> None:
    black = build(name, padding="black")
    assert (black.pixel_mean, black.pixel_std) == ((0, 0, 0), (1, 1, 1))
    black.set_weights(detector.get_weights())
    pixels = 120.0 + 40.0 * images()
    normalised = (pixels - detector.pixel_mean) / detector.pixel_std
    expected = detector.named_outputs(detector(normalised))
    for key, output in black.named_outputs(black(pixels)).items():
        np.testing.assert_allclose(output, expected[key], atol=1e-4, err_msg=key)


def test_weights_are_those_of_the_seed_or_of_a_file(name: str, detector: Detector, tmp_path: Path) -> None:
    another = build(name)
    for ours, theirs in zip(another.get_weights(), detector.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for number, variable in enumerate(detector.variables):
        variable.assign(variable + 0.01 * number)
    detector.save_weights(tmp_path / "model.weights.h5")
    another.load_weights(tmp_path / "model.weights.h5")
    for ours, theirs in zip(another.variables, detector.variables, strict=True):
        assert ours.path == theirs.path
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


# float16 has the smaller range, and what is not cast shows with either.
@pytest.mark.parametrize("policy", [pytest.param("mixed_bfloat16", marks=pytest.mark.extended), "mixed_float16"])
def test_survives_mixed_precision(name: str, detector: Detector, policy: str) -> None:
    mixed = build(name, dtype=policy)
    assert {variable.dtype for variable in mixed.variables} == {"float32"}
    outputs, expected = (network.named_outputs(network(images())) for network in (mixed, detector))
    assert {output.dtype for output in outputs.values()} == {tf.float32}
    for key, output in outputs.items():
        # Rounding changes the order of queries.
        ours, theirs = (np.sort(one, axis=1) if name in QUERIES else one for one in (output, expected[key]))
        np.testing.assert_allclose(ours, theirs, atol=0.15, err_msg=key)
    terms, gradients = gradient_step(mixed, images(), labels())
    assert all(term.dtype == tf.float32 and np.isfinite(term) for term in terms.values())
    assert all(gradient.dtype == tf.float32 and np.isfinite(gradient).all() for gradient in gradients)


def _on_replicas(strategy: tf.distribute.Strategy, function: Callable[..., Any], *inputs: Any) -> Any:
    """Runs a function with half of the batch on each of two replicas."""

    def halves(value: tf.Tensor | None) -> Any:
        if value is None or value.shape[0] != BATCH:
            return value
        return strategy.experimental_distribute_values_from_function(
            lambda context: value[HALVES[context.replica_id_in_sync_group]]
        )

    return strategy.run(function, tf.nest.map_structure(halves, inputs))


def _assert_sums(strategy: tf.distribute.Strategy, parts: Any, terms: dict[str, tf.Tensor], rtol: float) -> None:
    for key, term in terms.items():
        total = sum(float(part) for part in strategy.experimental_local_results(parts[key]))
        np.testing.assert_allclose(total, term, rtol=rtol, err_msg=key)


def test_losses_of_replicas_add_up(detector: Detector, two_replicas: tf.distribute.Strategy) -> None:
    outputs = detector(images(), seed=tf.constant([1, 2]))
    terms = detector.losses(outputs, labels())
    _assert_sums(two_replicas, _on_replicas(two_replicas, detector.losses, outputs, labels()), terms, rtol=1e-5)


@pytest.mark.extended
def test_two_replicas_equal_one(name: str, detector: Detector, two_replicas: tf.distribute.Strategy) -> None:
    with two_replicas.scope():
        two = build(name)
    terms, gradients = gradient_step(detector, images(), labels())
    step = tf.function(lambda *halves: gradient_step(two, *halves), autograph=False)
    of_replicas, their_gradients = _on_replicas(two_replicas, step, images(), labels())
    _assert_sums(two_replicas, of_replicas, terms, rtol=1e-4)
    totals = [tf.add_n(two_replicas.experimental_local_results(gradient)) for gradient in their_gradients]
    assert_gradients_near(name, totals, gradients)
    for ours, theirs in zip(detector.non_trainable_variables, two.non_trainable_variables, strict=True):
        np.testing.assert_allclose(theirs.numpy(), ours.numpy(), rtol=1e-3, atol=1e-4)


def test_trains_the_same_twice(name: str, detector: Detector, op_determinism: None) -> None:
    """That it learns, see `test_compiled.py`."""
    another = build(name)
    optimizers = [Adam(detector), Adam(another)]
    for number in range(3):
        steps = [gradient_step(one, images(), labels(), tf.constant([number, 0])) for one in (detector, another)]
        losses = [optimizer.step(step) for optimizer, step in zip(optimizers, steps, strict=True)]
        assert losses[0] == losses[1]
    for ours, theirs in zip(another.variables, detector.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)
