"""Losses of two-stage detectors: losses of sampled anchors, of RoIs, and of positive RoIs' masks.

Losses are sums over this replica's samples, divided by a normalizer that the caller has summed
over all replicas; it is a scalar, or one per image, [B, 1].

Source of the formulas: TPU Mask R-CNN.  Its first-stage box loss excludes deltas that are
exactly 0; here all deltas of an anchor are included.
"""

import tensorflow as tf

from detection.models.faster_rcnn.roi_targets import AnchorTargets, RoiTargets
from detection.ops.boxes import ScaleFactors
from detection.ops.losses import huber_loss

_DELTAS = 4  # per box


def rpn_score_loss(logits: tf.Tensor, targets: AnchorTargets, *, normalizer: tf.Tensor | float) -> tf.Tensor:
    """Returns the sum of the sigmoid cross-entropies of the sampled anchors, divided by the normaliser.

    Args:
        logits: float32 [B, A], objectness of all anchors.
        targets: sampled anchors.
        normalizer: scalar or [B, 1], the number of sampled anchors in TPU Mask R-CNN.
    """
    sampled = tf.gather(logits, targets.indices, batch_dims=1)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(targets.positive, tf.float32), sampled)
    return _masked_sum(losses, targets.valid, targets.weights, normalizer)


def rpn_box_loss(
    deltas: tf.Tensor,
    targets: AnchorTargets,
    *,
    normalizer: tf.Tensor | float,
    delta: float = 1.0 / 9.0,
    factors: ScaleFactors = (1.0, 1.0, 1.0, 1.0),
) -> tf.Tensor:
    """Returns the sum of the Huber losses of the positive anchors, divided by the normaliser.

    Args:
        deltas: float32 [B, S, 4], predicted for the anchors of the targets.
        targets: sampled anchors, or all.
        normalizer: scalar or [B, 1], the number of positives; TPU Mask R-CNN sums such means over the levels.
        delta: error, times its factor, at which the loss becomes linear.
        factors: factors of the errors of (ty, tx, th, tw).

    Returns:
        float32 scalar; each anchor's loss is the mean over its four deltas.
    """
    losses = tf.reduce_mean(huber_loss((deltas - targets.deltas) * factors, delta=delta), axis=-1)
    return _masked_sum(losses, targets.positive, targets.weights, normalizer)


def roi_class_loss(logits: tf.Tensor, targets: RoiTargets, *, normalizer: tf.Tensor | float) -> tf.Tensor:
    """Returns the sum of the softmax cross-entropies of the sampled RoIs, divided by the normaliser.

    Args:
        logits: float32 [B, S, C + 1].
        targets: sampled RoIs.
        normalizer: scalar or [B, 1], the number of sampled RoIs in TPU Mask R-CNN.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets.classes, logits)
    return _masked_sum(losses, targets.valid, targets.weights, normalizer)


def roi_box_loss(
    deltas: tf.Tensor, targets: RoiTargets, *, normalizer: tf.Tensor | float, delta: float = 1.0
) -> tf.Tensor:
    """Returns the sum of the Huber losses of the sampled positive RoIs, divided by the normaliser.

    Args:
        deltas: float32 [B, S, C + 1, 4], per class; or [B, S, 1, 4], class-agnostic.
        targets: sampled RoIs; the loss uses the deltas of their class.
        normalizer: scalar or [B, 1], the number of sampled positives in TPU Mask R-CNN.
        delta: error at which the loss becomes linear.

    Returns:
        float32 scalar; each RoI's loss is the mean over its four deltas.
    """
    if deltas.shape[2] == 1:
        own = deltas[:, :, 0]
    else:
        own = tf.squeeze(tf.gather(deltas, targets.classes[..., tf.newaxis], axis=2, batch_dims=2), axis=2)
    losses = tf.reduce_mean(huber_loss(own - targets.deltas, delta=delta), axis=-1)
    return _masked_sum(losses, targets.positive, targets.weights, normalizer)


def rois_with_masks(masks: tf.Tensor, targets: RoiTargets) -> tf.Tensor:
    """Marks the positive RoIs whose object was annotated with a mask: bool [B, S].

    Args:
        masks: uint8 [B, N, m, m], the objects' masks within their boxes; all 0: none was annotated.
        targets: sampled RoIs.
    """
    annotated = tf.reduce_any(masks > 0, axis=[2, 3])
    return targets.positive & tf.gather(annotated, targets.objects, batch_dims=1)


def mask_loss(
    logits: tf.Tensor,
    masks: tf.Tensor,
    masked: tf.Tensor,
    *,
    normalizer: tf.Tensor | float,
    weights: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the sum of the sigmoid cross-entropies of the RoIs' masks, divided by the normaliser.

    Args:
        logits: float32 [B, S, h, w], of the class of each RoI.
        masks: float32 [B, S, h, w], 0..1.
        masked: bool [B, S], the RoIs that `rois_with_masks` marks.
        normalizer: scalar or [B, 1], the number of positive RoIs in TPU Mask R-CNN, where every object has a mask.
        weights: float32 [B, S], weights of the RoIs; None: all are 1.

    Returns:
        float32 scalar; each RoI's loss is the mean over its cells.
    """
    losses = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(masks, logits), axis=[2, 3])
    return _masked_sum(losses, masked, weights, normalizer)


def per_image_normalizers(images: tf.Tensor, valid: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the normalizers [B, 1] of an image's score and box losses, which are sums over the deltas.

    Args:
        images: float32 scalar, number of images in the update's batch.
        valid: bool [B, S], the samples.
    """
    samples = images * tf.maximum(tf.reduce_sum(tf.cast(valid, tf.float32), axis=1, keepdims=True), 1.0)
    return samples, samples / _DELTAS


def _masked_sum(
    losses: tf.Tensor, mask: tf.Tensor, weights: tf.Tensor | None, normalizer: tf.Tensor | float
) -> tf.Tensor:
    """Returns the sum of losses [B, S] where the mask is True, times the weights, divided by the normalizer."""
    if weights is not None:
        losses *= weights
    return tf.reduce_sum(tf.where(mask, losses, 0.0) / normalizer)
