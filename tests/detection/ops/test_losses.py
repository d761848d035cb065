from typing import Any, get_args

import numpy as np
import pytest
import tensorflow as tf

from detection.ops.losses import IouLoss, focal_loss, huber_loss, iou_loss

Oracles = dict[str, dict[str, Any]]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("loss.focal_g1.5", {}),
        ("loss.focal_g2", {"gamma": 2.0}),
        ("loss.focal_label_smoothing", {"label_smoothing": 0.1}),
    ],
)
def test_focal_loss(oracles: Oracles, name: str, options: dict[str, float]) -> None:
    inputs = oracles[name]["inputs"]
    targets = np.array(inputs["targets"]) == 1
    result = focal_loss(np.array(inputs["logits"], np.float32), targets, **options)
    np.testing.assert_allclose(result, oracles[name]["expected"], atol=1e-6)


def test_focal_loss_of_the_untrained_head(oracles: Oracles) -> None:
    expected = oracles["head.class_bias"]["expected"]
    result = focal_loss(np.array([expected["bias"]] * 2, np.float32), np.array([False, True]))
    np.testing.assert_allclose(result, [expected["focal_negative"], expected["focal_positive"]], rtol=1e-5)


def test_focal_loss_and_its_gradient_are_finite_for_any_logit() -> None:
    logits = tf.constant([-200.0, -30.0, 0.0, 30.0, 200.0])
    for gamma in (0.0, 0.5, 1.5):
        for target in (False, True):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                loss = focal_loss(logits, tf.fill([5], target), gamma=gamma)
            assert np.isfinite(loss).all()
            assert np.isfinite(tape.gradient(loss, logits)).all()


def test_without_focusing_it_is_weighted_cross_entropy() -> None:
    logits = np.array([-1.5, 0.3, 2.0], np.float32)
    result = focal_loss(logits, np.array([True, True, True]), alpha=0.25, gamma=0.0)
    np.testing.assert_allclose(result, 0.25 * np.log1p(np.exp(-logits)), rtol=1e-5)


def test_huber_loss(oracles: Oracles) -> None:
    oracle = oracles["loss.box_huber_0.1"]
    targets = np.array(oracle["inputs"]["targets"], np.float32)
    losses = huber_loss(np.array(oracle["inputs"]["predictions"], np.float32) - targets, delta=0.1).numpy()
    # The original leaves out the coordinate whose target is 0; ours has its loss too.
    np.testing.assert_allclose(losses[targets != 0].sum() / 4, oracle["expected"][0], atol=1e-7)
    np.testing.assert_allclose(losses[targets == 0], [0.1 * 0.3 - 0.005], atol=1e-7)


def test_huber_loss_is_quadratic_then_linear() -> None:
    np.testing.assert_allclose(
        huber_loss(np.array([-0.2, 0.5, 3.0], np.float32), delta=0.5), [0.02, 0.125, 1.375], rtol=1e-6
    )


IOU_LOSSES = get_args(IouLoss)


@pytest.mark.parametrize("kind", IOU_LOSSES)
def test_iou_losses_of_the_original(oracles: Oracles, kind: IouLoss) -> None:
    family = oracles["loss.iou_family"]
    boxes, targets = (tf.constant(family["inputs"][name], tf.float32) for name in ("pred", "target"))
    np.testing.assert_allclose(iou_loss(boxes, targets, kind=kind), family["expected"][kind], atol=1e-5)
    single = oracles["loss.iou_single"]
    if kind in single["expected"]:
        box, target = (tf.constant(single["inputs"][name], tf.float32) for name in ("pred", "target"))
        np.testing.assert_allclose(iou_loss(box, target, kind=kind), single["expected"][kind], atol=1e-6)


def _plain_iou_loss(box: np.ndarray, target: np.ndarray, kind: str, alpha: float | None = None) -> float:
    """The papers' formulas for one pair of boxes with an area, in float64; `alpha` is fixed if it is given."""
    (t, l, b, r), (tt, tl, tb, tr) = box.astype(float), target.astype(float)  # noqa: E741
    overlap = max(0.0, min(b, tb) - max(t, tt)) * max(0.0, min(r, tr) - max(l, tl))
    union = (b - t) * (r - l) + (tb - tt) * (tr - tl) - overlap
    hull_height, hull_width = max(b, tb) - min(t, tt), max(r, tr) - min(l, tl)
    loss = 1.0 - overlap / union
    if kind == "giou":
        return loss + (hull_height * hull_width - union) / (hull_height * hull_width)
    if kind in ("diou", "ciou"):
        distance = ((t + b - tt - tb) ** 2 + (l + r - tl - tr) ** 2) / 4.0
        loss += distance / (hull_height**2 + hull_width**2)
    if kind == "ciou":
        shape = 4.0 / np.pi**2 * (np.arctan((tr - tl) / (tb - tt)) - np.arctan((r - l) / (b - t))) ** 2
        loss += (_plain_alpha(box, target, shape) if alpha is None else alpha) * shape
    return loss


def _plain_alpha(box: np.ndarray, target: np.ndarray, shape: float) -> float:
    return float(shape / (_plain_iou_loss(box, target, "iou") + shape)) if shape else 0.0


def _random_boxes(seed: int, count: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 20, (count, 2))
    return np.concatenate([corners, corners + random.uniform(2, 30, (count, 2))], axis=1).astype(np.float32)


@pytest.mark.parametrize("kind", IOU_LOSSES)
def test_iou_losses_and_their_gradients_equal_the_papers_formulas(kind: IouLoss) -> None:
    boxes, targets = _random_boxes(0, 50), _random_boxes(1, 50)
    variable = tf.Variable(boxes)
    with tf.GradientTape() as tape:
        losses = iou_loss(variable, tf.constant(targets), kind=kind)
    gradients = tape.gradient(losses, variable).numpy()
    step = 1e-4
    for box, target, loss, gradient in zip(boxes, targets, losses.numpy(), gradients, strict=True):
        np.testing.assert_allclose(loss, _plain_iou_loss(box, target, kind), atol=1e-5)
        ratios = [np.arctan((one[3] - one[1]) / (one[2] - one[0])) for one in (box, target)]
        alpha = _plain_alpha(box, target, 4.0 / np.pi**2 * (ratios[0] - ratios[1]) ** 2)
        for side in range(4):
            change = np.eye(4)[side] * step
            low, high = (_plain_iou_loss(box + sign * change, target, kind, alpha) for sign in (-1.0, 1.0))
            np.testing.assert_allclose(gradient[side], (high - low) / (2 * step), atol=2e-4)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e5])
def test_iou_losses_and_their_gradients_are_finite_for_any_boxes(scale: float) -> None:
    """Points, lines, boxes that touch, equal and disjoint ones: every pair of boxes on a small grid."""
    spans = [(low, high) for low in range(4) for high in range(low, 4)]
    grid = np.array([(t, l, b, r) for t, b in spans for l, r in spans], np.float32) * np.float32(scale)  # noqa: E741
    boxes, targets = tf.Variable(np.repeat(grid, len(grid), axis=0)), tf.constant(np.tile(grid, (len(grid), 1)))
    for kind in IOU_LOSSES:
        with tf.GradientTape() as tape:
            losses = iou_loss(boxes, targets, kind=kind)
        greatest = {"iou": 1.0, "giou": 2.0, "diou": 2.0, "ciou": 3.0}[kind]
        assert ((losses.numpy() >= 0.0) & (losses.numpy() <= greatest)).all()
        assert np.isfinite(tape.gradient(losses, boxes).numpy()).all()


def test_boxes_that_are_right_cost_nothing_and_only_disjoint_ones_without_hull_lose_their_gradient() -> None:
    boxes = tf.constant(_random_boxes(2, 5))
    far = boxes + 1000.0
    for kind in IOU_LOSSES:
        np.testing.assert_allclose(iou_loss(boxes, boxes, kind=kind), np.zeros(5), atol=1e-6)
        with tf.GradientTape() as tape:
            tape.watch(far)
            losses = iou_loss(far, boxes, kind=kind)
        assert bool((tape.gradient(losses, far).numpy() == 0.0).all()) == (kind == "iou")
