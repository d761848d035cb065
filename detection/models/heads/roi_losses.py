"""Targets and losses of two-stage detectors: of sampled anchors, sampled RoIs, and masks of positive RoIs.

Class 0 of the heads is background; class c of the labels is c + 1 here.  Losses are sums over
this replica's samples, divided by a number that the caller has summed over all replicas.

Source of thresholds, numbers and formulas: TPU Mask R-CNN.  Its box loss of the first stage
takes all anchors that match, and leaves out deltas that are exactly 0; here it takes the
sampled anchors, and all their deltas.
"""

from typing import NamedTuple

import tensorflow as tf

from detection.ops.anchors import anchors_inside, assign_anchors
from detection.ops.boxes import ScaleFactors, encode_yxyx, pairwise_iou_yxyx
from detection.ops.losses import huber_loss
from detection.ops.sampling import sample_balanced
from detection.types import Labels

_CROWD_FRACTION = 0.5  # of a box inside a crowd makes it ignored: where COCO's evaluation begins
_ANCHOR_DRAW, _ROI_DRAW = 2**20, 2**20 + 1  # see `own_random_bits`; layers of the network have small numbers


class AnchorTargets(NamedTuple):
    """Targets of S sampled anchors per image; positives come first, unused slots last.

    indices: int32 [B, S], indices of the anchors; 0 for unused slots.
    positive: bool [B, S], the anchor is assigned to an object.
    valid: bool [B, S], the slot is used.
    deltas: float32 [B, S, 4], encoded box of the object; 0 if not positive.
    weights: float32 [B, S], weight of the object, 1 if not positive; None: all are 1.
    """

    indices: tf.Tensor
    positive: tf.Tensor
    valid: tf.Tensor
    deltas: tf.Tensor
    weights: tf.Tensor | None


class RoiTargets(NamedTuple):
    """S sampled RoIs per image with their targets; positives come first, unused slots last.

    boxes: float32 [B, S, 4], (ymin, xmin, ymax, xmax); 0 for unused slots.
    positive: bool [B, S], the RoI is assigned to an object.
    valid: bool [B, S], the slot is used.
    classes: int32 [B, S], class of the object plus 1; 0 (background) if not positive.
    deltas: float32 [B, S, 4], encoded box of the object; 0 if not positive.
    objects: int32 [B, S], index of the object; 0 if not positive.
    weights: float32 [B, S], weight of the object, 1 if not positive; None: all are 1.
    """

    boxes: tf.Tensor
    positive: tf.Tensor
    valid: tf.Tensor
    classes: tf.Tensor
    deltas: tf.Tensor
    objects: tf.Tensor
    weights: tf.Tensor | None


def sample_anchors(
    anchors: tf.Tensor,
    labels: Labels,
    *,
    seed: tf.Tensor,
    count: int = 256,
    positive_fraction: float = 0.5,
    match_threshold: float = 0.7,
    unmatched_threshold: float = 0.3,
    scale_factors: ScaleFactors | None = None,
    pixel_offset: float = 0.0,
) -> AnchorTargets:
    """Assigns anchors to objects, and samples positives and negatives.

    Anchors are positive from `match_threshold` on, or if no other overlaps an object more;
    negative below `unmatched_threshold`, except inside crowds.

    Args:
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        labels: ground truth.
        seed: int32 [2], seed of this training step.
        count: S.
        positive_fraction: max fraction of positives among the S.
        match_threshold: see `assign_anchors`.
        unmatched_threshold: see `assign_anchors`.
        scale_factors: see `encode_yxyx`.
        pixel_offset: see `encode_yxyx`.
    """
    assignment = assign_anchors(
        anchors,
        labels.boxes,
        labels.valid,
        match_threshold=match_threshold,
        unmatched_threshold=unmatched_threshold,
    )
    negative = ~assignment.positive
    if assignment.ignored is not None:
        negative &= ~assignment.ignored
    if labels.crowds is not None:
        negative &= ~anchors_inside(anchors, labels.boxes, labels.crowds, min_fraction=_CROWD_FRACTION)
    slots = sample_balanced(
        assignment.positive,
        negative,
        count=count,
        positive_fraction=positive_fraction,
        seed=seed,
        index=_ANCHOR_DRAW,
    )
    objects = tf.where(slots.positive, tf.gather(assignment.index, slots.indices, batch_dims=1), 0)
    deltas = encode_yxyx(
        tf.gather(labels.boxes, objects, batch_dims=1),
        tf.gather(anchors, slots.indices),
        scale_factors=scale_factors,
        pixel_offset=pixel_offset,
    )
    return AnchorTargets(
        indices=slots.indices,
        positive=slots.positive,
        valid=slots.valid,
        deltas=tf.where(slots.positive[..., tf.newaxis], deltas, 0.0),
        weights=_object_weights(labels, objects, slots.positive),
    )


def sample_rois(
    proposals: tf.Tensor,
    valid: tf.Tensor,
    labels: Labels,
    *,
    seed: tf.Tensor,
    count: int = 512,
    positive_fraction: float = 0.25,
    positive_threshold: float = 0.5,
    background_thresholds: tuple[float, float] = (0.0, 0.5),
    scale_factors: ScaleFactors | None = (10.0, 10.0, 5.0, 5.0),
    pixel_offset: float = 0.0,
) -> RoiTargets:
    """Assigns proposals and the objects' own boxes to objects, and samples positives and background.

    A box is positive if its best IoU is above `positive_threshold`, and background if that is
    in low <= IoU < high of `background_thresholds`, except inside crowds.  Without objects
    the best IoU is 0.

    Args:
        proposals: float32 [B, P, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        valid: bool [B, P], False for padding.
        labels: ground truth.
        seed: int32 [2], seed of this training step.
        count: S.
        positive_fraction: max fraction of positives among the S.
        positive_threshold: 0 <= threshold < 1.
        background_thresholds: (low, high), 0 <= low < high <= 1.
        scale_factors: see `encode_yxyx`.
        pixel_offset: see `encode_yxyx`.
    """
    boxes = tf.stop_gradient(tf.concat([proposals, labels.boxes], axis=1))
    candidate = tf.concat([valid, labels.valid], axis=1)
    ious = tf.where(labels.valid[:, tf.newaxis], pairwise_iou_yxyx(boxes, labels.boxes), -1.0)
    best = tf.maximum(tf.reduce_max(ious, axis=2), 0.0)
    low, high = background_thresholds
    positive = candidate & (best > positive_threshold)
    background = candidate & (best >= low) & (best < high) & ~positive
    if labels.crowds is not None:
        # Boxes [B, 1, P, 4] of each image where anchors are those of all images.
        background &= ~anchors_inside(boxes[:, tf.newaxis], labels.boxes, labels.crowds, min_fraction=_CROWD_FRACTION)
    slots = sample_balanced(
        positive, background, count=count, positive_fraction=positive_fraction, seed=seed, index=_ROI_DRAW
    )
    objects = tf.gather(tf.argmax(ious, axis=2, output_type=tf.int32), slots.indices, batch_dims=1)
    objects = tf.where(slots.positive, objects, 0)
    sampled = tf.where(slots.valid[..., tf.newaxis], tf.gather(boxes, slots.indices, batch_dims=1), 0.0)
    deltas = encode_yxyx(
        tf.gather(labels.boxes, objects, batch_dims=1), sampled, scale_factors=scale_factors, pixel_offset=pixel_offset
    )
    return RoiTargets(
        boxes=sampled,
        positive=slots.positive,
        valid=slots.valid,
        classes=tf.where(slots.positive, tf.gather(labels.classes, objects, batch_dims=1) + 1, 0),
        deltas=tf.where(slots.positive[..., tf.newaxis], deltas, 0.0),
        objects=objects,
        weights=_object_weights(labels, objects, slots.positive),
    )


def _object_weights(labels: Labels, objects: tf.Tensor, positive: tf.Tensor) -> tf.Tensor | None:
    if labels.weights is None:
        return None
    return tf.where(positive, tf.gather(labels.weights, objects, batch_dims=1), 1.0)


def rpn_score_loss(logits: tf.Tensor, targets: AnchorTargets, *, normalizer: tf.Tensor | float) -> tf.Tensor:
    """Returns the sum of the sigmoid cross-entropies of the sampled anchors, divided by the normaliser.

    Args:
        logits: float32 [B, A], of all anchors.
        targets: sampled anchors.
        normalizer: scalar, the number of sampled anchors in TPU Mask R-CNN.
    """
    sampled = tf.gather(logits, targets.indices, batch_dims=1)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(targets.positive, tf.float32), sampled)
    return _masked_sum(losses, targets.valid, targets.weights) / normalizer


def rpn_box_loss(
    deltas: tf.Tensor, targets: AnchorTargets, *, normalizer: tf.Tensor | float, delta: float = 1.0 / 9.0
) -> tf.Tensor:
    """Returns the sum of the Huber losses of the sampled positive anchors, divided by the normaliser.

    Args:
        deltas: float32 [B, A, 4], of all anchors.
        targets: sampled anchors.
        normalizer: scalar, the number of sampled positives in TPU Mask R-CNN.
        delta: see `huber_loss`.

    Returns:
        float32 scalar; each anchor's loss is the mean over its four deltas.
    """
    errors = tf.gather(deltas, targets.indices, batch_dims=1) - targets.deltas
    losses = tf.reduce_mean(huber_loss(errors, delta=delta), axis=-1)
    return _masked_sum(losses, targets.positive, targets.weights) / normalizer


def roi_class_loss(logits: tf.Tensor, targets: RoiTargets, *, normalizer: tf.Tensor | float) -> tf.Tensor:
    """Returns the sum of the softmax cross-entropies of the sampled RoIs, divided by the normaliser.

    Args:
        logits: float32 [B, S, C + 1].
        targets: sampled RoIs.
        normalizer: scalar, the number of sampled RoIs in TPU Mask R-CNN.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets.classes, logits)
    return _masked_sum(losses, targets.valid, targets.weights) / normalizer


def roi_box_loss(
    deltas: tf.Tensor, targets: RoiTargets, *, normalizer: tf.Tensor | float, delta: float = 1.0
) -> tf.Tensor:
    """Returns the sum of the Huber losses of the sampled positive RoIs, divided by the normaliser.

    Args:
        deltas: float32 [B, S, C + 1, 4], of each class.
        targets: sampled RoIs; the deltas of their class count.
        normalizer: scalar, the number of sampled positives in TPU Mask R-CNN.
        delta: see `huber_loss`.

    Returns:
        float32 scalar; each RoI's loss is the mean over its four deltas.
    """
    own = tf.squeeze(tf.gather(deltas, targets.classes[..., tf.newaxis], axis=2, batch_dims=2), axis=2)
    losses = tf.reduce_mean(huber_loss(own - targets.deltas, delta=delta), axis=-1)
    return _masked_sum(losses, targets.positive, targets.weights) / normalizer


def masks_of_class(logits: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    """Returns the masks [B, S, h, w] of one class per RoI.

    Args:
        logits: float [B, S, h, w, C + 1].
        classes: int32 [B, S], 0 <= class <= C.
    """
    # One pass over the logits; the gradient of a gather along the last axis transposes them.
    is_class = tf.range(logits.shape[-1]) == classes[..., tf.newaxis, tf.newaxis, tf.newaxis]
    return tf.reduce_sum(tf.where(is_class, logits, tf.zeros([], logits.dtype)), axis=-1)


def mask_loss(
    logits: tf.Tensor,
    masks: tf.Tensor,
    positive: tf.Tensor,
    *,
    normalizer: tf.Tensor | float,
    weights: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the sum of the sigmoid cross-entropies of the positive RoIs' masks, divided by the normaliser.

    Args:
        logits: float32 [B, S, h, w], of each RoI's own class.
        masks: float32 [B, S, h, w], 0..1, see `crop_masks`.
        positive: bool [B, S].
        normalizer: scalar, the number of positive RoIs in TPU Mask R-CNN.
        weights: float32 [B, S], weights of the RoIs; None: all are 1.

    Returns:
        float32 scalar; each RoI's loss is the mean over its cells.
    """
    losses = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(masks, logits), axis=[2, 3])
    return _masked_sum(losses, positive, weights) / normalizer


def _masked_sum(losses: tf.Tensor, mask: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
    """Returns the sum of losses [B, S] where the mask is True, times the weights."""
    if weights is not None:
        losses *= weights
    return tf.reduce_sum(tf.where(mask, losses, 0.0))
