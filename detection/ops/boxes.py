"""Boxes as (ymin, xmin, ymax, xmax): areas, overlaps, clipping."""

import tensorflow as tf


def area_yxyx(boxes: tf.Tensor) -> tf.Tensor:
    """Areas [...] of boxes [..., 4]; 0 where a box is inside out."""
    height = tf.maximum(boxes[..., 2] - boxes[..., 0], 0.0)
    width = tf.maximum(boxes[..., 3] - boxes[..., 1], 0.0)
    return height * width


def intersection_yxyx(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Areas of overlap [...] of boxes whose shapes [..., 4] broadcast."""
    height = tf.minimum(first[..., 2], second[..., 2]) - tf.maximum(first[..., 0], second[..., 0])
    width = tf.minimum(first[..., 3], second[..., 3]) - tf.maximum(first[..., 1], second[..., 1])
    return tf.maximum(height, 0.0) * tf.maximum(width, 0.0)


def iou_yxyx(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Intersection over union [...] of boxes whose shapes [..., 4] broadcast; 0 where the union is empty."""
    overlap = intersection_yxyx(first, second)
    return tf.math.divide_no_nan(overlap, area_yxyx(first) + area_yxyx(second) - overlap)


def pairwise_iou_yxyx(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Intersection over union [..., N, M] of boxes [..., N, 4] and [..., M, 4]."""
    return iou_yxyx(first[..., :, tf.newaxis, :], second[..., tf.newaxis, :, :])


def clip_yxyx(boxes: tf.Tensor, height: tf.Tensor | float, width: tf.Tensor | float) -> tf.Tensor:
    """Boxes [..., 4] cut to 0 <= y <= height, 0 <= x <= width.

    Args:
        boxes: float [..., 4].
        height: scalar, or a tensor that broadcasts to [...].
        width: likewise.
    """
    limits = tf.stack([height, width, height, width], axis=-1)
    return tf.clip_by_value(boxes, 0.0, tf.cast(limits, boxes.dtype))
