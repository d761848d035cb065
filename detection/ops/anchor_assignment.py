"""Which anchor answers for which object."""

from typing import NamedTuple

import tensorflow as tf

from detection.ops.boxes import area_yxyx, intersection_yxyx, pairwise_iou_yxyx


class Assignment(NamedTuple):
    """Result of `assign_anchors`.

    positive: bool [B, A], the anchor answers for an object.
    index: int32 [B, A], which one, 0 <= index < N; without meaning where not positive.
    """

    positive: tf.Tensor
    index: tf.Tensor


def assign_anchors(anchors: tf.Tensor, boxes: tf.Tensor, valid: tf.Tensor, *, iou_threshold: float = 0.5) -> Assignment:
    """Gives every anchor the object it overlaps most, where that reaches the threshold.

    Besides, every valid object gets the anchor it overlaps most (the first of
    equals), whatever the overlap, so that no object goes unanswered; where two
    objects claim the same anchor so, the first one has it.  Padding gets none.

    Args:
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax).
        boxes: float32 [B, N, 4], same layout and unit.
        valid: bool [B, N], False for padding.
        iou_threshold: least intersection over union, 0 < threshold <= 1.
    """
    iou = pairwise_iou_yxyx(boxes, anchors)
    iou = tf.where(valid[..., tf.newaxis], iou, 0.0)
    best_anchor = tf.argmax(iou, axis=2, output_type=tf.int32)
    claims = best_anchor[..., tf.newaxis] == tf.range(tf.shape(iou)[2])
    claims &= (tf.reduce_max(iou, axis=2) > 0.0)[..., tf.newaxis]
    count = boxes.shape[1]
    # Any claim beats any overlap (<= 1), and an earlier object's beats a later one's.
    priority = 2.0 + tf.range(count, 0, -1, dtype=iou.dtype)[:, tf.newaxis]
    strength = tf.where(claims, priority, iou)
    return Assignment(
        positive=tf.reduce_max(strength, axis=1) >= iou_threshold,
        index=tf.argmax(strength, axis=1, output_type=tf.int32),
    )


def anchors_inside(anchors: tf.Tensor, boxes: tf.Tensor, valid: tf.Tensor, *, min_share: float) -> tf.Tensor:
    """Which anchors lie in one of some regions with at least a part of their area.

    COCO's evaluation compares detections with crowds by the same share.

    Args:
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax).
        boxes: float32 [B, N, 4], same layout and unit: the regions.
        valid: bool [B, N], the row is a region.
        min_share: 0 < share <= 1.

    Returns:
        bool [B, A].
    """
    shares = tf.math.divide_no_nan(intersection_yxyx(boxes[:, :, tf.newaxis], anchors), area_yxyx(anchors))
    return tf.reduce_any((shares >= min_share) & valid[..., tf.newaxis], axis=1)
