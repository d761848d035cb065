"""Whole losses against plain NumPy, and the state of the normaliser."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.heads.dense_losses import DenseLosses, DenseLossOptions, PositivesNormalizer
from detection.models.heads.matcher import Matcher
from detection.models.registry import build_detector, detector_config
from detection.ops.anchors import pyramid_anchors_yxyx
from detection.ops.boxes import decode_yxyx
from detection.types import Labels
from schemas.errors import ConfigError

Oracles = dict[str, dict[str, Any]]
CLASSES, BATCH = 3, 2
ANCHORS = pyramid_anchors_yxyx(
    (64, 64), min_level=3, max_level=5, num_scales=3, aspect_ratios=(1.0, 2.0, 0.5), anchor_scale=2.0
)
AUTOML = {
    "focal_alpha": 0.25,
    "focal_gamma": 1.5,
    "label_smoothing": 0.0,
    "huber_delta": 0.1,
    "code_weights": (1.0, 1.0, 1.0, 1.0),
    "box_loss_weight": 50.0,
    "iou_loss_type": None,
    "iou_loss_weight": 1.0,
    "normalizer": "positives_plus_one",
    "positives_momentum": 0.0,
    "background_class": False,
}
# The EfficientDets of the Object Detection API; docs/losses.md has the same.
OD_API = AUTOML | {
    "huber_delta": 1.0,
    "code_weights": (10.0, 10.0, 5.0, 5.0),
    "box_loss_weight": 1.0,
    "normalizer": "positives",
}
EVERYTHING = OD_API | {
    "label_smoothing": 0.1,
    "iou_loss_type": "ciou",
    "iou_loss_weight": 2.0,
    "positives_momentum": 0.9,
}


HALF, BAND = Matcher(), Matcher(positive_iou=0.6, negative_iou=0.3, force_match=False)


def _losses(options: dict[str, Any], matcher: Matcher = HALF, **changes: Any) -> DenseLosses:
    return DenseLosses(DenseLossOptions(**(options | changes)), matcher, anchors=ANCHORS, num_classes=CLASSES)


def _outputs(seed: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    random = np.random.default_rng(seed)
    logits = random.normal(-3.0, 1.5, (BATCH, len(ANCHORS), CLASSES))
    deltas = random.normal(0.0, 0.4, (BATCH, len(ANCHORS), 4))
    return tf.constant(logits, tf.float32), tf.constant(deltas, tf.float32)


def _labels(seed: int = 0) -> Labels:
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 32, (BATCH, 4, 2))
    boxes = np.concatenate([corners, corners + random.uniform(8, 32, (BATCH, 4, 2))], axis=-1)
    valid = np.array([[True, True, True, False], [True, False, False, False]])
    return Labels(
        boxes=tf.constant(boxes * valid[..., None], tf.float32),
        classes=tf.constant(random.integers(0, CLASSES, (BATCH, 4)), tf.int32),
        valid=tf.constant(valid),
    )


def _plain_iou(box: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    low, high = np.maximum(box[:2], anchors[:, :2]), np.minimum(box[2:], anchors[:, 2:])
    overlap = np.maximum(high - low, 0.0).prod(1)
    return np.asarray(overlap / ((box[2:] - box[:2]).prod() + (anchors[:, 2:] - anchors[:, :2]).prod(1) - overlap))


def _plain_od_api_losses(logits: np.ndarray, deltas: np.ndarray, labels: Labels) -> dict[str, float]:
    """The Object Detection API's EfficientDet loss, written from its proto defaults and pipeline.config, in float64.

    Sigmoid focal loss (alpha 0.25, gamma 1.5) and smooth L1 (delta 1) on codes times 10, 10,
    5, 5; matcher 0.5/0.5 with `force_match_for_each_row`; both divided by max(matches, 1),
    the box loss also by the code size of 4.
    """
    anchors = ANCHORS.astype(np.float64)
    centres, sizes = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:] - anchors[:, :2]
    class_sum = box_sum = matches = 0.0
    for image in range(BATCH):
        valid = labels.valid[image].numpy()
        boxes = labels.boxes[image].numpy()[valid].astype(np.float64)
        overlaps = np.stack([_plain_iou(box, anchors) for box in boxes])
        match = np.where(overlaps.max(0) >= 0.5, overlaps.argmax(0), -1)
        for row in reversed(range(len(boxes))):
            match[overlaps[row].argmax()] = row
        targets = np.zeros((len(anchors), CLASSES))
        classes = labels.classes[image].numpy()[valid]
        for anchor in np.flatnonzero(match >= 0):
            targets[anchor, classes[match[anchor]]] = 1.0
            box = boxes[match[anchor]]
            centre, size = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
            code = np.concatenate([(centre - centres[anchor]) / sizes[anchor], np.log(size / sizes[anchor])])
            error = np.abs((deltas[image, anchor] - code) * [10, 10, 5, 5])
            box_sum += np.where(error <= 1.0, 0.5 * error**2, error - 0.5).sum()
        probability = 1 / (1 + np.exp(-logits[image].astype(np.float64)))
        p_t = np.where(targets == 1, probability, 1 - probability)
        class_sum += (np.where(targets == 1, 0.25, 0.75) * (1 - p_t) ** 1.5 * -np.log(p_t)).sum()
        matches += (match >= 0).sum()
    return {"class_loss": class_sum / max(matches, 1), "box_loss": box_sum / (max(matches, 1) * 4)}


def test_the_loss_of_an_od_api_efficientdet() -> None:
    logits, deltas = _outputs()
    terms = _losses(OD_API)(logits, deltas, _labels(), training=True)
    expected = _plain_od_api_losses(logits.numpy(), deltas.numpy(), _labels())
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name], value, rtol=1e-5)


def test_without_objects_the_od_api_divides_by_one() -> None:
    logits, deltas = _outputs()
    none = _labels()._replace(valid=tf.zeros([BATCH, 4], tf.bool))
    p = 1 / (1 + np.exp(-logits.numpy().astype(np.float64)))
    terms = _losses(OD_API)(logits, deltas, none, training=True)
    np.testing.assert_allclose(terms["class_loss"], (0.75 * p**1.5 * -np.log(1 - p)).sum(), rtol=1e-5)
    assert float(terms["box_loss"]) == 0.0


@pytest.mark.parametrize(("options", "place", "name"), [(AUTOML, 0, "automl"), (OD_API, 1, "odapi_centre")])
def test_box_errors_cost_what_each_original_says(
    oracles: Oracles, options: dict[str, Any], place: int, name: str
) -> None:
    """One coordinate of one positive anchor is off: quadratic cost, then linear."""
    expected = oracles["loss.loc_scale_compare"]["expected"]
    labels = _labels()
    losses = _losses(options)
    targets = losses.assign(labels)
    positives = float(tf.reduce_sum(tf.cast(targets.positive, tf.float32)))
    normalizer = positives + 1 if options is AUTOML else positives
    image, anchor = (int(axis[0]) for axis in np.nonzero(targets.positive.numpy()))
    logits = tf.zeros([BATCH, len(ANCHORS), CLASSES])
    perfect = _encoded(targets.boxes.numpy())

    def cost(coordinate: int, error: float) -> float:
        deltas = perfect.copy()
        deltas[image, anchor, coordinate] += error
        return float(losses(logits, tf.constant(deltas), labels, training=True)["box_loss"]) * normalizer

    for coordinate, key in ((place, name), (2, "odapi_size" if options is OD_API else name)):
        rules = expected[key]
        small, large = 0.9 * rules["quad_until"], 3.0 * rules["quad_until"]
        np.testing.assert_allclose(cost(coordinate, small), rules["quad_coeff"] * small**2, rtol=1e-3)
        slope = (cost(coordinate, large) - cost(coordinate, 0.5 * large)) / (0.5 * large)
        np.testing.assert_allclose(slope, rules["linear_slope"], rtol=1e-3)


def _encoded(boxes: np.ndarray) -> np.ndarray:
    centre, size = (boxes[..., :2] + boxes[..., 2:]) / 2, np.maximum(boxes[..., 2:] - boxes[..., :2], 1e-3)
    anchor_centre, anchor_size = (ANCHORS[:, :2] + ANCHORS[:, 2:]) / 2, ANCHORS[:, 2:] - ANCHORS[:, :2]
    return np.concatenate([(centre - anchor_centre) / anchor_size, np.log(size / anchor_size)], axis=-1).astype(
        np.float32
    )


def test_the_iou_loss_is_one_value_per_positive_anchor_over_the_normaliser() -> None:
    """The original divides it by 4 more (defect 9 of the inventory)."""
    logits, deltas = _outputs()
    labels = _labels()
    losses = _losses(AUTOML, iou_loss_type="iou", iou_loss_weight=3.0)
    targets = losses.assign(labels)
    decoded = decode_yxyx(deltas, tf.constant(ANCHORS)).numpy()
    total = count = 0.0
    for image, anchor in zip(*np.nonzero(targets.positive.numpy()), strict=True):
        total += 1.0 - _plain_iou(targets.boxes.numpy()[image, anchor], decoded[image, anchor][None])[0]
        count += 1
    terms = losses(logits, deltas, labels, training=True)
    np.testing.assert_allclose(terms["box_iou_loss"], 3.0 * total / (count + 1), rtol=1e-5)
    without = _losses(AUTOML)(logits, deltas, labels, training=True)
    assert {name: float(value) for name, value in terms.items() if name != "box_iou_loss"} == {
        name: float(value) for name, value in without.items()
    }


def test_anchors_between_the_thresholds_count_neither_way() -> None:
    logits, deltas = _outputs()
    labels = _labels()
    losses = _losses(AUTOML, Matcher(positive_iou=0.6, negative_iou=0.3))
    targets = losses.assign(labels)
    assert targets.ignored is not None
    assert int(tf.reduce_sum(tf.cast(targets.ignored, tf.int32))) > 20
    loud = tf.where(targets.ignored[..., None], 9.0, logits)
    expected = losses(logits, deltas, labels, training=True)
    for name, value in losses(loud, deltas, labels, training=True).items():
        np.testing.assert_array_equal(value, expected[name])
    background = tf.where(targets.ignored[..., None], -30.0, logits)
    without_band = _losses(AUTOML, Matcher(positive_iou=0.6))(background, deltas, labels, training=True)
    np.testing.assert_allclose(without_band["class_loss"], expected["class_loss"], rtol=1e-5)


def test_an_object_counts_as_often_as_its_weight_says() -> None:
    """In every term; background keeps its weight of 1, and the normaliser counts anchors."""
    logits, deltas = _outputs()
    labels = _labels()
    losses = _losses(AUTOML, iou_loss_type="giou")

    def terms(weights: list[list[float]] | None) -> np.ndarray:
        weighted = labels._replace(weights=None if weights is None else tf.constant(weights))
        return np.array([float(value) for value in losses(logits, deltas, weighted, training=True).values()])

    one = terms([[1.0] * 4] * BATCH)
    np.testing.assert_array_equal(one, terms(None))
    parts = one - terms([[0.0, 1.0, 1.0, 1.0], [1.0] * 4])
    assert (parts > 0).all()
    np.testing.assert_allclose(terms([[3.5, 1.0, 1.0, 9.0], [1.0] * 4]), one + 2.5 * parts, rtol=1e-5)
    background = terms([[0.0] * 4] * BATCH)
    assert background[0] > 0.0
    np.testing.assert_array_equal(background[1:], 0.0)


def test_the_moving_average_starts_with_the_first_number() -> None:
    """Started from 0, as in google/automl, it would divide the first losses by a hundredth of their anchors."""
    normalizer = PositivesNormalizer(kind="positives_plus_one", momentum=0.99)
    counts = [40, 0, 100, 7]
    average = 41.0
    for number, count in enumerate(counts):
        average = average if number == 0 else 0.99 * average + 0.01 * (count + 1)
        np.testing.assert_allclose(normalizer(tf.constant(float(count)), training=True), average, rtol=1e-6)
    before = normalizer.average.numpy() if normalizer.average is not None else None
    assert float(normalizer(tf.constant(7.0), training=False)) == 8.0
    assert normalizer.average is not None
    assert normalizer.average.numpy() == before


def test_every_option_compiles_under_xla_with_finite_gradients() -> None:
    losses = _losses(EVERYTHING, BAND)
    labels = _labels()._replace(weights=tf.fill([BATCH, 4], 2.0), crowds=~_labels().valid)

    @tf.function(jit_compile=True)
    def compiled(logits: tf.Tensor, deltas: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([logits, deltas])
            terms = losses(logits, deltas, labels, training=False)
            total = tf.add_n(list(terms.values()))
        return terms, tape.gradient(total, [logits, deltas])

    logits, deltas = _outputs()
    terms, _ = compiled(logits, deltas)
    expected = losses(logits, deltas, labels, training=False)
    assert terms.keys() == {"class_loss", "box_loss", "box_iou_loss"}
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name], value, rtol=1e-4)
    # An untrained network's wildest answers.
    for scale in (1e-3, 1e3):
        _, gradients = compiled(logits * scale, deltas * scale)
        assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_two_replicas_equal_one(two_replicas: tf.distribute.Strategy) -> None:
    one = _losses(EVERYTHING, BAND)
    with two_replicas.scope():
        two = _losses(EVERYTHING, BAND)

    def distribute(value: tf.Tensor | None) -> Any:
        if value is None:
            return None
        return two_replicas.experimental_distribute_values_from_function(
            lambda context: tf.split(value, 2)[context.replica_id_in_sync_group]
        )

    run = tf.function(lambda *args: two_replicas.run(lambda *own: two(*own, training=True), args), autograph=False)
    for seed in range(2):
        logits, deltas = _outputs(seed)
        expected = one(logits, deltas, _labels(seed), training=True)
        parts = run(distribute(logits), distribute(deltas), Labels(*map(distribute, _labels(seed))))
        for name, value in expected.items():
            total = sum(float(part) for part in two_replicas.experimental_local_results(parts[name]))
            np.testing.assert_allclose(total, value, rtol=1e-5)
    (ours,), (theirs,) = one.statistics, two.statistics
    for copy in two_replicas.experimental_local_results(theirs.value):
        np.testing.assert_allclose(copy.numpy(), ours.numpy(), rtol=1e-6)


def test_the_average_belongs_to_training_and_not_to_the_model() -> None:
    overrides: dict[str, Any] = {"neck": {"filters": 8, "cells": 1}, "head": {"layers": 1}}
    plain = build_detector("efficientdet-nano", num_classes=2, overrides=overrides)
    detector = build_detector(
        "efficientdet-nano", num_classes=2, overrides=overrides | {"loss": {"positives_momentum": 0.9}}
    )
    assert plain.loss_statistics == []
    assert [variable.path for variable in detector.loss_statistics] == ["average_positives"]
    assert [variable.path for variable in detector.variables] == [variable.path for variable in plain.variables]


def test_fields_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model\.overrides\.matcher: negative_iou = 0\.6 is above positive_iou"):
        detector_config("efficientdet-d0", overrides={"matcher": {"negative_iou": 0.6}})
    with pytest.raises(ConfigError, match=r"model\.overrides\.loss: iou_loss_weight = 2\.0 does nothing without iou_l"):
        detector_config("efficientdet-d0", overrides={"loss": {"iou_loss_weight": 2.0}})
    with pytest.raises(ConfigError, match=r"model\.overrides\.loss\.positives_momentum = -1: "):
        detector_config("efficientdet-d0", overrides={"loss": {"positives_momentum": -1}})


def test_the_docs_options_are_those_of_this_test() -> None:
    text = (Path(__file__).parents[4] / "docs/losses.md").read_text(encoding="utf-8")
    block = text.partition("```yaml\n")[2].partition("```")[0]
    assert "efficientdet-d0" in block
    for key in ("huber_delta", "code_weights", "box_loss_weight", "normalizer"):
        value = OD_API[key]
        shown = json.dumps(list(value)) if isinstance(value, tuple) else str(value)
        assert f"{key}: {shown}" in block
