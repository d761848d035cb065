"""Elementwise losses; detectors apply weights and normalizers."""

import math
from typing import Literal

import tensorflow as tf

from detection.ops.boxes import area_yxyx, centre_and_size, enclosing_yxyx, intersection_yxyx, iou_yxyx

IouLoss = Literal["iou", "giou", "diou", "ciou"]
_TINY = 1e-30


def focal_loss(
    logits: tf.Tensor,
    is_target: tf.Tensor,
    *,
    alpha: float | None = 0.25,
    gamma: float = 1.5,
    label_smoothing: float = 0.0,
) -> tf.Tensor:
    """Alpha-balanced sigmoid focal loss (Lin et al., "Focal Loss for Dense Object Detection", 2017).

    alpha_t (1 - p_t)^gamma CE, with the factor before CE computed from the true label, and CE
    from the smoothed label y (1 - s) + s / 2.  Computed from the margin z = +-logit, so that
    neither value nor gradient overflows: CE = softplus(-z) + z s / 2 and
    log(1 - p_t) = -softplus(z).

    Args:
        logits: float32 [...].
        is_target: bool [...], True for the true class.
        alpha: weight of targets; other classes have weight 1 - alpha.  None: all have weight 1.
        gamma: focusing parameter, >= 0; with 0 and without alpha, this is the sigmoid cross-entropy.
        label_smoothing: s, 0 <= s < 1.

    Returns:
        float32 [...].
    """
    margin = tf.where(is_target, logits, -logits)
    cross_entropy = tf.math.softplus(-margin)
    modulator = tf.exp(-gamma * (cross_entropy + margin))
    balanced = modulator if alpha is None else tf.where(is_target, alpha, 1.0 - alpha) * modulator
    return balanced * (cross_entropy + 0.5 * label_smoothing * margin)


def softmax_loss(
    logits: tf.Tensor, is_target: tf.Tensor, *, logit_scale: float = 1.0, soften_targets: bool = False
) -> tf.Tensor:
    """Cross-entropy of the softmax over classes.

    Source: `weighted_softmax` and, with softened targets, `weighted_logits_softmax` of the TF Object Detection API.

    Args:
        logits: float32 [..., C].
        is_target: bool [..., C], True for the true class; without one, the loss is 0.
        logit_scale: divisor of the logits, > 0.
        soften_targets: the targets are a softmax of the 0 and 1, divided by the logit scale, too.

    Returns:
        float32 [...].
    """
    targets = tf.cast(is_target, tf.float32)
    if soften_targets:
        targets = tf.nn.softmax(targets / logit_scale)
    return -tf.reduce_sum(targets * tf.nn.log_softmax(logits / logit_scale), axis=-1)


def softmax_log_odds(logits: tf.Tensor) -> tf.Tensor:
    """Returns logits [..., C] whose sigmoids are the softmax of other logits [..., C]."""
    parts = tf.exp(logits - tf.reduce_max(logits, axis=-1, keepdims=True))
    others = tf.reduce_sum(parts, axis=-1, keepdims=True) - parts
    return tf.math.log(tf.maximum(parts, _TINY)) - tf.math.log(tf.maximum(others, _TINY))


def bootstrapped_loss(logits: tf.Tensor, is_target: tf.Tensor, *, alpha: float, hard: bool = False) -> tf.Tensor:
    """Sigmoid cross-entropy whose targets are mixed with the predictions.

    The target is alpha t + (1 - alpha) p, with p the probability, or, if `hard`, 1 for p > 0.5 and else 0 (Reed et
    al., "Training Deep Neural Networks on Noisy Labels with Bootstrapping", 2014).

    Args:
        logits: float32 [...].
        is_target: bool [...], True for the true class.
        alpha: 0 <= alpha <= 1.
        hard: use decisions in place of probabilities.

    Returns:
        float32 [...].
    """
    predicted = tf.cast(logits > 0.0, tf.float32) if hard else tf.sigmoid(logits)
    targets = alpha * tf.cast(is_target, tf.float32) + (1.0 - alpha) * predicted
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)


def huber_loss(errors: tf.Tensor, *, delta: float) -> tf.Tensor:
    """Returns the Huber loss [...] of errors [...]: e^2 / 2 up to |e| = delta, then linear with slope delta."""
    size = tf.abs(errors)
    inside = tf.minimum(size, delta)
    return inside * (size - 0.5 * inside)


def iou_loss(boxes: tf.Tensor, targets: tf.Tensor, *, kind: IouLoss) -> tf.Tensor:
    """Computes one loss per box from the overlap with its target.

    iou: 1 - IoU.
    giou: 1 - IoU + (C - U) / C, with U the area of the union and C the area of the smallest
        enclosing box (Rezatofighi et al., "Generalized Intersection over Union", 2019, eq. 1
        to 3); 0 to 2.
    diou: 1 - IoU + d^2 / c^2, with d the distance of the centres and c the diagonal of the
        smallest enclosing box (Zheng et al., "Distance-IoU Loss", 2020, eq. 5 to 7); 0 to 2.
    ciou: diou + alpha v, with v = 4 / pi^2 (atan(w'/h') - atan(w/h))^2 of the aspect ratios
        and alpha = v / (1 - IoU + v), which has no gradient (Zheng et al., eq. 8 to 11).

    Values and gradients are finite for boxes without an area, too: division by 0 gives 0.

    Args:
        boxes: float32 [..., 4], (ymin, xmin, ymax, xmax), any unit, min <= max.
        targets: same shape, layout and unit.
        kind: formula.

    Returns:
        float32 [...].
    """
    iou = iou_yxyx(boxes, targets)
    if kind == "iou":
        return 1.0 - iou
    enclosing = enclosing_yxyx(boxes, targets)
    if kind == "giou":
        hull, overlap = area_yxyx(enclosing), intersection_yxyx(boxes, targets)
        union = area_yxyx(boxes) + area_yxyx(targets) - overlap
        return 1.0 - iou + tf.math.divide_no_nan(hull - union, hull)
    centre, size = centre_and_size(boxes)
    target_centre, target_size = centre_and_size(targets)
    distance = tf.reduce_sum(tf.square(centre - target_centre), axis=-1)
    diagonal = tf.reduce_sum(tf.square(enclosing[..., 2:] - enclosing[..., :2]), axis=-1)
    loss = 1.0 - iou + tf.math.divide_no_nan(distance, diagonal)
    if kind == "diou":
        return loss
    difference = 4.0 / math.pi**2 * tf.square(_aspect_angle(target_size) - _aspect_angle(size))
    alpha = tf.stop_gradient(tf.math.divide_no_nan(difference, 1.0 - iou + difference))
    return loss + alpha * difference


def code_iou_loss(codes: tf.Tensor, targets: tf.Tensor, *, generalized: bool) -> tf.Tensor:
    """IoU or GIoU loss of encoded boxes, taken for corners, as by the TF Object Detection API's `weighted_(g)iou`.

    It differs from `iou_loss` by the areas of inverted boxes, which are signed.

    Args:
        codes: float32 [..., 4].
        targets: float32 [..., 4].
        generalized: GIoU.

    Returns:
        float32 [...].
    """
    (height, width), (target_height, target_width) = (
        tf.unstack(values[..., 2:] - values[..., :2], axis=-1) for values in (codes, targets)
    )
    overlap = intersection_yxyx(codes, targets)
    union = height * width + target_height * target_width - overlap
    loss = 1.0 - tf.math.divide_no_nan(overlap, union)
    hull = area_yxyx(enclosing_yxyx(codes, targets))
    return loss + tf.math.divide_no_nan(hull - union, hull) if generalized else loss


def _aspect_angle(size: tf.Tensor) -> tf.Tensor:
    """Returns atan(width / height), [...], of sizes (height, width), [..., 2]; 0 if both are 0."""
    height, width = tf.unstack(size, axis=-1)
    # The gradient divides by width^2 + height^2, which float32 rounds to 0 well before either is 0.
    is_box = tf.square(height) + tf.square(width) > 0.0
    return tf.where(is_box, tf.atan2(width, tf.where(is_box, height, 1.0)), 0.0)
