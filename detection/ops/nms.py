"""Greedy non-maximum suppression with static shapes."""

import tensorflow as tf

from detection.ops.boxes import iou_yxyx

_REMOVED = -1.0


def hard_nms(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    classes: tf.Tensor,
    *,
    iou_threshold: float,
    score_threshold: float,
    max_outputs: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Repeatedly picks the best box, and removes boxes of its class that overlap it.

    A box is removed if its intersection over union with a picked box of the same class is
    above `iou_threshold`.  Of equal scores, the first is picked.  Each picked box takes one
    pass of K comparisons for the whole batch: much less work than a [K, K] matrix, and it
    stops when no box is left.

    Args:
        boxes: float32 [B, K, 4], (ymin, xmin, ymax, xmax), any unit.
        scores: float32 [B, K], >= 0.
        classes: int32 [B, K].
        iou_threshold: 0 <= threshold <= 1.
        score_threshold: boxes need a score above this.
        max_outputs: M, max number of picked boxes.

    Returns:
        int32 [B, M], indices into K, best score first, 0 beyond the number of picked boxes;
        int32 [B], the number of picked boxes.
    """
    batch, count = boxes.shape[0] or tf.shape(boxes)[0], boxes.shape[1]
    positions = tf.range(count, dtype=tf.int32)
    slots = tf.range(max_outputs, dtype=tf.int32)
    remaining = tf.where(scores > score_threshold, scores, _REMOVED)

    def anything_left(step: tf.Tensor, remaining: tf.Tensor, _picked: tf.Tensor, _num: tf.Tensor) -> tf.Tensor:
        return (step < max_outputs) & tf.reduce_any(remaining > _REMOVED)

    def pick(
        step: tf.Tensor, remaining: tf.Tensor, picked: tf.Tensor, num: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        best = tf.argmax(remaining, axis=1, output_type=tf.int32)
        any_left = tf.reduce_max(remaining, axis=1) > _REMOVED
        best_box = tf.gather(boxes, best, batch_dims=1)[:, tf.newaxis]
        best_class = tf.gather(classes, best, batch_dims=1)[:, tf.newaxis]
        overlaps = (iou_yxyx(boxes, best_box) > iou_threshold) & (classes == best_class)
        removed = overlaps | (positions == best[:, tf.newaxis])
        here = (slots == step) & any_left[:, tf.newaxis]
        return (
            step + 1,
            tf.where(removed, _REMOVED, remaining),
            tf.where(here, best[:, tf.newaxis], picked),
            num + tf.cast(any_left, tf.int32),
        )

    start = (tf.constant(0), remaining, tf.zeros([batch, max_outputs], tf.int32), tf.zeros([batch], tf.int32))
    _, _, picked, num = tf.while_loop(anything_left, pick, start, maximum_iterations=max_outputs)
    return picked, num
