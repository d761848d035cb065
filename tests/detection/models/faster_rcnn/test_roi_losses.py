"""Targets of two-stage detectors against loops over boxes, and the five losses against loops over samples."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.faster_rcnn.roi_losses import (
    mask_loss,
    roi_box_loss,
    roi_class_loss,
    rpn_box_loss,
    rpn_score_loss,
)
from detection.models.faster_rcnn.roi_targets import (
    CROWD_FRACTION,
    AnchorTargets,
    RoiOptions,
    RoiTargets,
    all_anchors,
    relabel_rois,
    sample_anchors,
    sample_rois,
)
from detection.models.faster_rcnn.rpn import RpnOptions
from detection.ops.anchors import Assignment, pyramid_anchors_yxyx
from detection.types import Labels

Oracles = dict[str, dict[str, Any]]
SEED = tf.constant([5, 6])
ANCHORS = pyramid_anchors_yxyx(
    (64, 64), min_level=3, max_level=5, num_scales=1, aspect_ratios=((1.0, 1.0), (1.4, 0.7)), anchor_scale=3.0
)
BOXES = np.array(
    [
        [[8, 8, 32, 30], [20, 30, 60, 62], [3, 40, 9, 47], [34, 2, 62, 28]],  # the last is not valid, like a crowd
        [[0, 0, 0, 0]] * 4,  # an image without objects
        [[10, 10, 26, 40], [12, 9, 27, 42], [50, 50, 51, 50.5], [0, 0, 64, 64]],
    ],
    np.float32,
)
VALID = np.array([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
CLASSES = np.array([[2, 0, 1, 0], [0, 0, 0, 0], [2, 2, 1, 0]], np.int32)


def _labels(**more: Any) -> Labels:
    return Labels(tf.constant(BOXES), tf.constant(CLASSES), tf.constant(VALID), **more)


def _assign(anchors: Any, labels: Labels) -> Assignment:
    return RpnOptions().matcher(np.asarray(anchors), labels, crowd_fraction=CROWD_FRACTION)


def _sample(anchors: Any, labels: Labels, **options: Any) -> AnchorTargets:
    sampling = RpnOptions().sampling.changed(options)
    return sample_anchors(tf.constant(anchors), labels, _assign(anchors, labels), sampling, seed=SEED)


def _rois(proposals: Any, valid: Any, labels: Labels, **options: Any) -> RoiTargets:
    """Samples RoIs; `options`: `background_iou`, and those of the sampling."""
    roi = RoiOptions().changed({name: options.pop(name) for name in ("background_iou",) if name in options})
    roi = roi.changed({"sampling": options})
    factors = (10.0, 10.0, 5.0, 5.0)
    boxes, valid = tf.convert_to_tensor(proposals), tf.convert_to_tensor(valid)
    return sample_rois(boxes, valid, labels, roi, seed=SEED, scale_factors=factors)


def _iou(first: np.ndarray, second: np.ndarray) -> float:
    height = min(first[2], second[2]) - max(first[0], second[0])
    width = min(first[3], second[3]) - max(first[1], second[1])
    overlap = max(height, 0.0) * max(width, 0.0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (first, second))
    return overlap / (areas - overlap) if areas > overlap else 0.0


def _fraction_inside(box: np.ndarray, crowd: np.ndarray) -> float:
    sides = np.minimum(box[2:], crowd[2:]) - np.maximum(box[:2], crowd[:2])
    area = np.prod(box[2:] - box[:2])
    return float(np.prod(np.maximum(sides, 0.0)) / area) if area > 0.0 else 0.0


def _encoded(box: np.ndarray, anchor: np.ndarray, factors: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> np.ndarray:
    size, anchor_size = box[2:] - box[:2], anchor[2:] - anchor[:2]
    offset = (box[:2] + size / 2 - anchor[:2] - anchor_size / 2) / anchor_size
    return np.concatenate([offset, np.log(size / anchor_size)]) * factors


def _plain_anchor_labels(image: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of all anchors (1 positive, 0 negative, -1 ignored), and their objects."""
    ious = np.array([[_iou(anchor, box) for box in BOXES[image]] for anchor in ANCHORS]) * VALID[image]
    best, index = ious.max(axis=1), ious.argmax(axis=1)
    labels = np.where(best >= 0.7, 1, np.where(best < 0.3, 0, -1))
    for number in reversed(range(BOXES.shape[1])):
        if VALID[image, number] and ious[:, number].max() > 0.0:
            forced = ious[:, number].argmax()
            labels[forced], index[forced] = 1, number
    return labels, index


@pytest.mark.parametrize("count", [8, 64, 1000])
def test_sampled_anchors(count: int) -> None:
    """1000 slots are more than there are anchors: then all that are not ignored are sampled, if not too many."""
    targets = _sample(ANCHORS, _labels(), count=count)
    for image in range(3):
        labels, index = _plain_anchor_labels(image)
        positives = min((labels == 1).sum(), count // 2)
        used = min(positives + (labels == 0).sum(), count)
        np.testing.assert_array_equal(targets.positive[image], np.arange(count) < positives)
        np.testing.assert_array_equal(targets.valid[image], np.arange(count) < used)
        sampled = targets.indices[image].numpy()
        assert len(set(sampled[:used].tolist())) == used
        assert (labels[sampled[:positives]] == 1).all()
        assert (labels[sampled[positives:used]] == 0).all()
        assert not targets.deltas[image, positives:].numpy().any()
        for slot in range(positives):
            expected = _encoded(BOXES[image, index[sampled[slot]]], ANCHORS[sampled[slot]])
            np.testing.assert_allclose(targets.deltas[image, slot], expected, atol=1e-4)


def test_all_positive_anchors() -> None:
    """Those of the sample, when it has room for all of them, but in the anchors' order."""
    labels = _labels(weights=tf.constant([[2.0, 3.0, 5.0, 7.0]] * 3))
    targets, sampled = all_anchors(tf.constant(ANCHORS), labels, _assign(ANCHORS, labels)), _sample(ANCHORS, labels)
    assert targets.weights is not None
    assert sampled.weights is not None
    np.testing.assert_array_equal(targets.indices, np.tile(np.arange(len(ANCHORS)), (3, 1)))
    for image, slot in np.argwhere(sampled.positive):
        anchor = int(sampled.indices[image, slot])
        assert targets.positive[image, anchor]
        np.testing.assert_array_equal(targets.deltas[image, anchor], sampled.deltas[image, slot])
        assert targets.weights[image, anchor] == sampled.weights[image, slot]
    np.testing.assert_array_equal(targets.positive.numpy().sum(axis=1), sampled.positive.numpy().sum(axis=1))
    assert not targets.deltas.numpy()[~targets.positive.numpy()].any()


def _proposals() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    near = BOXES[:, random.integers(0, 4, 40)] + random.normal(0, 4, (3, 40, 4))
    low = random.uniform(-10, 50, (3, 40, 2))
    far = np.concatenate([low, low + random.uniform(2, 40, (3, 40, 2))], axis=2)
    proposals = np.concatenate([near, far], axis=1)
    proposals[..., 2:] = np.maximum(proposals[..., 2:], proposals[..., :2])
    return proposals.astype(np.float32), random.random((3, 80)) < 0.8


@pytest.mark.parametrize(("count", "thresholds"), [(20, (0.0, 0.5)), (200, (0.0, 0.5)), (40, (0.1, 0.4))])
def test_sampled_rois(count: int, thresholds: tuple[float, float]) -> None:
    proposals, valid = _proposals()
    targets = _rois(proposals, valid, _labels(), count=count, background_iou=thresholds)
    for image in range(3):
        positive, background = [], []
        for box in [*proposals[image][valid[image]], *BOXES[image][VALID[image]]]:
            ious = [_iou(box, own) if real else -1.0 for own, real in zip(BOXES[image], VALID[image], strict=True)]
            if max(ious) > 0.5:
                positive.append((tuple(box), int(np.argmax(ious))))
            elif thresholds[0] <= max(*ious, 0.0) < thresholds[1]:
                background.append(tuple(box))
        positives = min(len(positive), count // 4)
        used = min(positives + len(background), count)
        np.testing.assert_array_equal(targets.positive[image], np.arange(count) < positives)
        np.testing.assert_array_equal(targets.valid[image], np.arange(count) < used)
        boxes = [tuple(box) for box in targets.boxes[image].numpy()]
        assert set(boxes[positives:used]) <= set(background)
        assert not targets.boxes[image, used:].numpy().any()
        assert not targets.classes[image, positives:].numpy().any()
        assert not targets.deltas[image, positives:].numpy().any()
        for slot in range(positives):
            own = int(targets.objects[image, slot])
            assert (boxes[slot], own) in positive
            assert targets.classes[image, slot] == CLASSES[image, own] + 1
            expected = _encoded(BOXES[image, own], np.array(boxes[slot]), (10.0, 10.0, 5.0, 5.0))
            np.testing.assert_allclose(targets.deltas[image, slot], expected, atol=1e-3)
    assert targets.positive.numpy().sum(axis=1)[1] == 0
    # The proposals of an image without objects are background, of IoU 0.
    assert targets.valid.numpy()[1].any() == (thresholds[0] == 0.0)


@pytest.mark.parametrize("threshold", [0.3, 0.6])
def test_relabelled_rois(threshold: float) -> None:
    """Boxes stay in their slots; each is positive, background or, inside a crowd, neither."""
    proposals, valid = _proposals()
    crowds = ~VALID
    factors = (20.0, 20.0, 10.0, 10.0)
    targets = relabel_rois(
        tf.constant(proposals),
        tf.constant(valid),
        _labels(crowds=tf.constant(crowds)),
        positive_threshold=threshold,
        scale_factors=factors,
    )
    seen = set()
    for image, slot in np.ndindex(*valid.shape):
        box = proposals[image, slot]
        ious = [_iou(box, own) if real else -1.0 for own, real in zip(BOXES[image], VALID[image], strict=True)]
        hidden = any(_fraction_inside(box, crowd) >= 0.5 for crowd in BOXES[image][crowds[image]])
        positive = bool(valid[image, slot]) and max(ious) > threshold
        used = positive or (bool(valid[image, slot]) and not hidden)
        seen.add((positive, used))
        assert bool(targets.positive[image, slot]) == positive
        assert bool(targets.valid[image, slot]) == used
        own = int(np.argmax(ious)) if positive else 0
        assert int(targets.objects[image, slot]) == own
        assert int(targets.classes[image, slot]) == (CLASSES[image, own] + 1 if positive else 0)
        expected = _encoded(BOXES[image, own], box, factors) if positive else np.zeros(4)
        np.testing.assert_allclose(targets.deltas[image, slot], expected, atol=1e-3)
        np.testing.assert_array_equal(targets.boxes[image, slot], box if used else np.zeros(4))
    assert seen == {(True, True), (False, True), (False, False)}


def test_an_iou_of_exactly_one_half_is_ignored(oracles: Oracles) -> None:
    assert oracles["roi.sampling"]["expected"]["iou_exactly_0_5"] == "ignored"
    labels = Labels(tf.constant([[[0.0, 0.0, 8.0, 8.0]]]), tf.constant([[3]]), tf.constant([[True]]))
    proposals = tf.constant([[[0.0, 0.0, 4.0, 8.0], [0.0, 0.0, 5.0, 8.0], [0.0, 0.0, 3.0, 8.0]]])
    targets = _rois(proposals, tf.ones([1, 3], tf.bool), labels, count=8, positive_fraction=0.5)
    used = targets.boxes[0].numpy()[targets.valid[0].numpy()]
    assert sorted(used[:, 2].tolist()) == [3.0, 5.0, 8.0]  # the object itself is a RoI, too
    np.testing.assert_array_equal(targets.classes[0, :3], [4, 4, 0])


def test_by_default_a_quarter_of_512_is_positive(oracles: Oracles) -> None:
    oracle = oracles["roi.sampling"]
    box = tf.constant([[[10.0, 10.0, 50.0, 50.0]]])
    labels = Labels(box, tf.constant([[0]]), tf.constant([[True]]))
    proposals = tf.concat([tf.repeat(box, 600, axis=1), tf.repeat(box + 100.0, 600, axis=1)], axis=1)
    targets = _rois(proposals, tf.ones([1, 1200], tf.bool), labels)
    assert targets.valid.shape == (1, oracle["inputs"]["batch_size_per_im"])
    assert targets.valid.numpy().all()
    assert targets.positive.numpy().sum() == oracle["expected"]["max_fg"]
    anchors = _sample(proposals[0], labels)
    assert anchors.valid.shape == (1, 256)
    assert anchors.positive.numpy().sum() == 128


def test_crowds_hide_what_lies_inside_them() -> None:
    """Boxes of the left half are inside the crowd; without it they are background."""
    boxes = tf.constant([[[0.0, 0.0, 64.0, 32.0], [40.0, 40.0, 60.0, 60.0]]])
    labels = Labels(boxes, tf.constant([[0, 1]]), tf.constant([[False, True]]))
    with_crowd = labels._replace(crowds=tf.constant([[True, False]]))
    proposals = tf.constant([[[5.0, 5.0, 20.0, 20.0], [5.0, 28.0, 20.0, 48.0], [40.0, 41.0, 60.0, 61.0]]])
    rois = partial(_rois, proposals, tf.ones([1, 3], tf.bool), count=8, positive_fraction=0.5)
    for given, backgrounds in ((labels, {5.0, 28.0}), (with_crowd, {28.0})):
        targets = rois(given)
        background = targets.valid[0].numpy() & ~targets.positive[0].numpy()
        assert set(targets.boxes[0].numpy()[background][:, 1].tolist()) == backgrounds
        assert targets.positive.numpy().sum() == 2
    anchors = partial(_sample, proposals[0], count=8)
    assert anchors(labels).valid.numpy().sum() == 3
    assert set(anchors(with_crowd).indices.numpy()[0, :2].tolist()) == {1, 2}
    assert anchors(with_crowd).valid.numpy().sum() == 2


def test_weights_of_objects_reach_their_samples() -> None:
    weights = np.array([[2.0, 3.0, 4.0, 9.0], [9.0] * 4, [5.0, 6.0, 7.0, 8.0]], np.float32)
    labels = _labels(weights=tf.constant(weights))
    proposals, valid = _proposals()
    rois = _rois(proposals, valid, labels, count=40)
    anchors = _sample(ANCHORS, labels, count=40)
    assert rois.weights is not None
    assert anchors.weights is not None
    for image in range(3):
        own = weights[image, rois.objects[image].numpy()]
        np.testing.assert_array_equal(rois.weights[image], np.where(rois.positive[image], own, 1.0))
        index = _plain_anchor_labels(image)[1][anchors.indices[image].numpy()]
        np.testing.assert_array_equal(
            anchors.weights[image], np.where(anchors.positive[image], weights[image, index], 1.0)
        )


def _anchor_targets(random: np.random.Generator, *, weights: bool) -> AnchorTargets:
    positive = np.arange(6) < np.array([[2], [0]])
    return AnchorTargets(
        indices=tf.constant([[3, 9, 0, 5, 1, 0], [7, 2, 4, 0, 0, 0]]),
        positive=tf.constant(positive),
        valid=tf.constant(np.arange(6) < np.array([[5], [3]])),
        deltas=tf.constant(random.normal(0, 0.3, (2, 6, 4)) * positive[..., None], tf.float32),
        weights=tf.constant(random.uniform(0.5, 2, (2, 6)), tf.float32) if weights else None,
    )


def _sampled(values: tf.Tensor, targets: AnchorTargets) -> tf.Tensor:
    return tf.gather(values, targets.indices, batch_dims=1)


def _plain_huber(error: float, delta: float) -> float:
    return error**2 / 2 if abs(error) <= delta else delta * (abs(error) - delta / 2)


@pytest.mark.parametrize("weights", [False, True])
def test_first_stage_losses(weights: bool) -> None:
    random = np.random.default_rng(0)
    targets = _anchor_targets(random, weights=weights)
    factors = np.ones((2, 6)) if targets.weights is None else targets.weights.numpy()
    logits, deltas = random.normal(0, 3, (2, 10)), random.normal(0, 0.3, (2, 10, 4))
    score, box = 0.0, 0.0
    for image, slot in np.ndindex(2, 6):
        anchor, factor = int(targets.indices[image, slot]), float(factors[image, slot])
        if targets.valid[image, slot]:
            probability = 1 / (1 + np.exp(-logits[image, anchor]))
            score -= factor * np.log(probability if targets.positive[image, slot] else 1 - probability)
        if targets.positive[image, slot]:
            errors = deltas[image, anchor] - targets.deltas[image, slot].numpy()
            box += factor * float(np.mean([_plain_huber(error, 1 / 9) for error in errors]))
    given = tf.constant(logits, tf.float32), tf.constant(deltas, tf.float32)
    np.testing.assert_allclose(rpn_score_loss(given[0], targets, normalizer=8.0), score / 8, rtol=1e-5)
    np.testing.assert_allclose(rpn_box_loss(_sampled(given[1], targets), targets, normalizer=2.0), box / 2, rtol=1e-5)


def test_a_normalizer_per_image_and_factors_of_the_deltas() -> None:
    random = np.random.default_rng(0)
    targets = _anchor_targets(random, weights=False)
    deltas = tf.constant(random.normal(0, 0.3, (2, 6, 4)), tf.float32)
    factors = (10.0, 10.0, 5.0, 5.0)
    box = 0.0
    for slot in range(2):  # the positives of image 0; image 1 has none
        errors = (deltas[0, slot].numpy() - targets.deltas[0, slot].numpy()) * factors
        box += float(np.mean([_plain_huber(error, 1.0) for error in errors])) / 5
    normalizer = tf.constant([[5.0], [3.0]])
    found = rpn_box_loss(deltas, targets, normalizer=normalizer, delta=1.0, factors=factors)
    np.testing.assert_allclose(found, box, rtol=1e-5)
    score = rpn_score_loss(tf.zeros([2, 10]), targets, normalizer=normalizer)
    np.testing.assert_allclose(score, 2 * np.log(2.0), rtol=1e-5)


def test_objects_of_weight_zero_have_no_samples() -> None:
    weights = np.ones((3, 4), np.float32)
    weights[0, 1] = 0.0
    labels = _labels(weights=tf.constant(weights))
    proposals, valid = _proposals()
    every, rois = (_rois(proposals, valid, one, count=40) for one in (_labels(), labels))
    of_object = [int(np.sum((one.objects[0].numpy() == 1) & one.positive[0].numpy())) for one in (every, rois)]
    assert of_object[0] > of_object[1] == 0
    anchors = _sample(ANCHORS, labels, count=40)
    owners = _plain_anchor_labels(0)[1][anchors.indices[0].numpy()]
    assert not (anchors.positive[0].numpy() & (owners == 1)).any()


def test_only_sampled_anchors_have_a_gradient() -> None:
    targets = _anchor_targets(np.random.default_rng(0), weights=False)
    logits, deltas = tf.zeros([2, 10]), tf.fill([2, 10, 4], 3.0)
    with tf.GradientTape() as tape:
        tape.watch([logits, deltas])
        total = rpn_score_loss(logits, targets, normalizer=1.0) + rpn_box_loss(
            _sampled(deltas, targets), targets, normalizer=1.0
        )
    of_logits, of_deltas = (
        tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(total, [logits, deltas])
    )
    assert [np.flatnonzero(row).tolist() for row in of_logits] == [[0, 1, 3, 5, 9], [2, 4, 7]]
    assert [np.flatnonzero(row.any(axis=1)).tolist() for row in of_deltas] == [[3, 9], []]


def _roi_targets(deltas: np.ndarray, classes: list[list[int]], valid: list[list[int]]) -> RoiTargets:
    numbers = tf.constant(classes)
    return RoiTargets(
        boxes=tf.zeros(deltas.shape),
        positive=numbers > 0,
        valid=tf.constant(valid) > 0,
        classes=numbers,
        deltas=tf.constant(deltas, tf.float32),
        objects=tf.zeros_like(numbers),
        weights=None,
    )


def test_box_loss_of_the_second_stage(oracles: Oracles) -> None:
    """The oracle's predictions stand in the row of their class; all other rows must not count."""
    oracle = oracles["loss.frcnn_box"]
    pred, target, classes = (oracle["inputs"][key] for key in ("pred", "target", "classes"))
    deltas = np.full((1, 2, 5, 4), 7.0, np.float32)
    for row, number in enumerate(classes):
        deltas[0, row, number] = pred[row]
    targets = _roi_targets(np.array([target]), [classes], [[1, 1]])
    loss = roi_box_loss(tf.constant(deltas), targets, normalizer=1.0)  # one positive
    np.testing.assert_allclose(loss, oracle["expected"], atol=oracle["tolerance"])


@pytest.mark.parametrize("weights", [False, True])
def test_second_stage_losses(weights: bool) -> None:
    random = np.random.default_rng(1)
    classes, valid = [[3, 1, 0, 0], [2, 0, 0, 0]], [[1, 1, 1, 0], [1, 1, 0, 0]]
    targets = _roi_targets(random.normal(size=(2, 4, 4)), classes, valid)
    factors = random.uniform(0.5, 2, (2, 4)).astype(np.float32) if weights else np.ones((2, 4))
    targets = targets._replace(weights=tf.constant(factors) if weights else None)
    logits, deltas = random.normal(size=(2, 4, 4)), random.normal(0, 2, (2, 4, 4, 4))
    masks, cells = random.random((2, 4, 3, 3)) < 0.5, random.normal(size=(2, 4, 3, 3, 4))
    score, box, mask = 0.0, 0.0, 0.0
    for image, slot in np.ndindex(2, 4):
        number, factor = classes[image][slot], float(factors[image, slot])
        if valid[image][slot]:
            score += factor * (np.log(np.exp(logits[image, slot]).sum()) - logits[image, slot, number])
        if number > 0:
            errors = deltas[image, slot, number] - targets.deltas[image, slot].numpy()
            box += factor * float(np.mean([_plain_huber(error, 1.0) for error in errors]))
            probabilities = 1 / (1 + np.exp(-cells[image, slot, :, :, number]))
            mask -= factor * np.log(np.where(masks[image, slot], probabilities, 1 - probabilities)).mean()
    np.testing.assert_allclose(
        roi_class_loss(tf.constant(logits, tf.float32), targets, normalizer=5.0), score / 5, rtol=1e-5
    )
    np.testing.assert_allclose(
        roi_box_loss(tf.constant(deltas, tf.float32), targets, normalizer=3.0), box / 3, rtol=1e-5
    )
    own = tf.gather(tf.constant(cells, tf.float32), targets.classes, axis=4, batch_dims=2)
    loss = mask_loss(own, tf.cast(masks, tf.float32), targets.positive, normalizer=3.0, weights=targets.weights)
    np.testing.assert_allclose(loss, mask / 3, rtol=1e-5)


def test_losses_without_positives_are_finite_and_without_gradient() -> None:
    targets = _roi_targets(np.zeros((1, 3, 4)), [[0, 0, 0]], [[0, 0, 0]])
    deltas, logits = tf.ones([1, 3, 4, 4]), tf.ones([1, 3, 4])
    with tf.GradientTape() as tape:
        tape.watch([deltas, logits])
        total = roi_box_loss(deltas, targets, normalizer=1.0) + roi_class_loss(logits, targets, normalizer=1.0)
    assert total == 0.0
    assert not any(tf.convert_to_tensor(gradient).numpy().any() for gradient in tape.gradient(total, [deltas, logits]))
