"""Losses of D-FINE: classes weighted by quality, boxes, distributions of sides, and what the last layer teaches.

Sources: Peng et al., "D-FINE", 2024 (FGL, DDF); Zhang et al., "VarifocalNet", 2021 (VFL); Huang et al., "DEIM", 2025
(MAL).
"""

from typing import Literal, NamedTuple

import tensorflow as tf

from detection.models.dfine.distributions import bin_distances
from detection.models.dfine.matching import Objects, corners_of
from detection.ops.boxes import iou_yxyx
from detection.ops.losses import iou_loss

ClassLoss = Literal["mal", "vfl"]
_VFL_ALPHA, _MAL_GAMMA = 0.75, 1.5
_TEMPERATURE = 5.0
_TINY = 1e-16


class Targets(NamedTuple):
    """What each query learns.

    boxes: float32 [B, Q, 4], (cx, cy, w, h).
    classes: int32 [B, Q].
    matched: bool [B, Q], False for a query without an object.
    used: bool [Q], False for a slot that is no query.
    """

    boxes: tf.Tensor
    classes: tf.Tensor
    matched: tf.Tensor
    used: tf.Tensor


def targets_of(objects: Objects, object_of: tf.Tensor, used: tf.Tensor | None = None) -> Targets:
    """Returns the targets of queries, by their objects, int32 [B, Q], or -1; without `used`, all are queries."""
    used = tf.ones([object_of.shape[1]], tf.bool) if used is None else used
    index = tf.maximum(object_of, 0)
    boxes, classes = (tf.gather(values, index, batch_dims=1) for values in (objects.boxes, objects.classes))
    return Targets(boxes, classes, object_of >= 0, used)


def class_loss(logits: tf.Tensor, boxes: tf.Tensor, targets: Targets, *, kind: ClassLoss) -> tf.Tensor:
    """Returns the sum of the classes' losses; the target of an object's class is the IoU of its query's box.

    vfl: cross-entropy with the IoU t, weighted by t, and by 0.75 p^2 for other classes.
    mal: cross-entropy with t^1.5, weighted by 1, and by p^1.5 for other classes.

    Args:
        logits: float32 [B, Q, classes].
        boxes: float32 [B, Q, 4], (cx, cy, w, h).
        targets: the queries' targets.
        kind: formula.
    """
    hits = tf.one_hot(tf.where(targets.matched, targets.classes, -1), logits.shape[-1])
    quality = tf.stop_gradient(iou_yxyx(corners_of(boxes), corners_of(targets.boxes)))[..., tf.newaxis] * hits
    probability = tf.stop_gradient(tf.sigmoid(logits))
    if kind == "vfl":
        weight = _VFL_ALPHA * probability**2 * (1.0 - hits) + quality
    else:
        quality = quality**_MAL_GAMMA
        weight = probability**_MAL_GAMMA * (1.0 - hits) + hits
    losses = weight * tf.nn.sigmoid_cross_entropy_with_logits(labels=quality, logits=logits)
    return tf.reduce_sum(tf.where(targets.used[:, tf.newaxis], losses, 0.0))


def box_losses(boxes: tf.Tensor, targets: Targets) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sums over the queries with an object of the L1 loss and of 1 - GIoU.

    Args:
        boxes: float32 [B, Q, 4], (cx, cy, w, h).
        targets: the queries' targets.
    """
    distance = tf.reduce_sum(tf.abs(boxes - targets.boxes), axis=-1)
    giou = iou_loss(corners_of(boxes), corners_of(targets.boxes), kind="giou")
    return tuple(tf.reduce_sum(tf.where(targets.matched, loss, 0.0)) for loss in (distance, giou))


def encode_distances(distances: tf.Tensor, *, bins: int, up: float, scale: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the bin below each distance, int32 [...], up to bins - 2, and the weight of the next bin, float32 [...].

    Args:
        distances: float32 [...].
        bins: as for `bin_distances`.
        up: as for `bin_distances`.
        scale: as for `bin_distances`.
    """
    edges = tf.constant(bin_distances(bins, up=up, scale=scale))
    below = tf.reduce_sum(tf.cast(edges <= distances[..., tf.newaxis], tf.int32), axis=-1) - 1
    lower = tf.clip_by_value(below, 0, bins - 2)
    low, high = tf.gather(edges, lower), tf.gather(edges, lower + 1)
    return lower, tf.clip_by_value((distances - low) / (high - low), 0.0, 1.0)


def distribution_loss(
    corners: tf.Tensor, boxes: tf.Tensor, reference: tf.Tensor, targets: Targets, *, up: float, scale: float
) -> tf.Tensor:
    """Returns the fine-grained localization loss (FGL), summed over the sides of the queries with an object.

    It is the cross-entropy with the two bins around the distance of the object's side, weighted by the box's IoU.

    Args:
        corners: float32 [B, Q, 4, bins], log-probabilities, not normalised.
        boxes: float32 [B, Q, 4], (cx, cy, w, h), of the same layer.
        reference: float32 [B, Q, 4], boxes whose sides the distances move.
        targets: the queries' targets.
        up: as for `bin_distances`.
        scale: as for `bin_distances`.
    """
    centers, sides = tf.split(tf.stop_gradient(reference), 2, axis=-1)
    low, high = tf.split(corners_of(targets.boxes), 2, axis=-1)
    unit = sides / scale + _TINY
    distances = tf.concat([(centers - low) / unit, (high - centers) / unit], axis=-1) - 0.5 * scale
    bins = corners.shape[-1]
    lower, share = encode_distances(distances, bins=bins, up=up, scale=scale)
    log_probabilities = tf.nn.log_softmax(corners)
    parts = (tf.one_hot(lower, bins), 1.0 - share), (tf.one_hot(lower + 1, bins), share)
    entropy = tf.add_n([-tf.reduce_sum(log_probabilities * hit, axis=-1) * weight for hit, weight in parts])
    quality = tf.stop_gradient(iou_yxyx(corners_of(boxes), corners_of(targets.boxes)))
    return tf.reduce_sum(tf.where(targets.matched, quality * tf.reduce_sum(entropy, axis=-1), 0.0))


class Distillation(NamedTuple):
    """Sums of the divergence from the last layer's distributions, over queries with and without an object."""

    matched: tf.Tensor
    others: tf.Tensor


def distillation(
    corners: tf.Tensor, boxes: tf.Tensor, targets: Targets, *, last_corners: tf.Tensor, last_logits: tf.Tensor
) -> Distillation:
    """Returns what a layer learns from the last one (DDF).

    The Kullback-Leibler divergence at temperature 5 is weighted by the IoU of the layer's box, or for queries without
    an object by the last layer's highest score.

    Args:
        corners: float32 [B, Q, 4, bins] of the layer.
        boxes: float32 [B, Q, 4] of the layer.
        targets: the queries' targets.
        last_corners: float32 [B, Q, 4, bins] of the last layer.
        last_logits: float32 [B, Q, classes] of the last layer.
    """
    teacher = tf.stop_gradient(last_corners) / _TEMPERATURE
    student = tf.nn.log_softmax(corners / _TEMPERATURE)
    divergence = tf.reduce_sum(tf.nn.softmax(teacher) * (tf.nn.log_softmax(teacher) - student), axis=-1)
    quality = iou_yxyx(corners_of(boxes), corners_of(targets.boxes))
    score = tf.reduce_max(tf.sigmoid(last_logits), axis=-1)
    weight = tf.stop_gradient(tf.where(targets.matched, quality, score))
    each = _TEMPERATURE**2 * weight * tf.reduce_mean(divergence, axis=-1)
    parts = (targets.matched, ~targets.matched & targets.used)
    return Distillation(*(tf.reduce_sum(tf.where(part, each, 0.0)) for part in parts))


def query_counts(targets: Targets) -> tf.Tensor:
    """Returns the numbers of queries with and without an object, float32 [2]."""
    parts = (targets.matched, ~targets.matched & targets.used)
    return tf.stack([tf.reduce_sum(tf.cast(part, tf.float32)) for part in parts])


def distillation_weights(counts: tf.Tensor, matching: tf.Tensor) -> tf.Tensor:
    """Returns the weights of the two sums of `Distillation`, float32 [2].

    Each sum counts as its mean, and the means as the roots of the numbers of matching queries.

    Args:
        counts: `query_counts` of the sums.
        matching: `query_counts` of the matching queries.
    """
    roots = tf.sqrt(matching)
    return tf.math.divide_no_nan(roots, counts * tf.reduce_sum(roots))
