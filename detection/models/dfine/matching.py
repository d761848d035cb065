"""Which query learns which object: costs, the assignments of every set of predictions, and their union."""

from typing import NamedTuple

import tensorflow as tf

from detection.ops.assignment import assign
from detection.ops.losses import iou_loss

_CLASS, _L1, _GIOU = 2.0, 5.0, 2.0  # weights of the costs
_ALPHA, _SMALL = 0.25, 1e-8  # of the focal cost


class Objects(NamedTuple):
    """The objects of a batch.

    boxes: float32 [B, N, 4], (cx, cy, w, h), fractions of the input.
    classes: int32 [B, N].
    valid: bool [B, N], the objects first.
    """

    boxes: tf.Tensor
    classes: tf.Tensor
    valid: tf.Tensor

    @property
    def counts(self) -> tf.Tensor:
        """Number of objects of each image, int32 [B]."""
        return tf.reduce_sum(tf.cast(self.valid, tf.int32), axis=1)


def corners_of(boxes: tf.Tensor) -> tf.Tensor:
    """Returns (xmin, ymin, xmax, ymax) of boxes [..., 4], (cx, cy, w, h), whose sides count as 0 if negative."""
    centers, sides = tf.split(boxes, 2, axis=-1)
    halves = 0.5 * tf.maximum(sides, 0.0)
    return tf.concat([centers - halves, centers + halves], axis=-1)


def matching_costs(logits: tf.Tensor, boxes: tf.Tensor, objects: Objects) -> tf.Tensor:
    """Returns the cost of each pair, float32 [B, N, Q]: focal cost of the class, L1 and GIoU of the boxes.

    Source: Zhao et al., RT-DETR, 2023. What is not a number costs 1.

    Args:
        logits: float32 [B, Q, classes].
        boxes: float32 [B, Q, 4], (cx, cy, w, h).
        objects: the objects.
    """
    of_class = tf.gather(tf.transpose(tf.sigmoid(logits), [0, 2, 1]), objects.classes, batch_dims=1)
    present = _ALPHA * (1.0 - of_class) ** 2 * -tf.math.log(of_class + _SMALL)
    absent = (1.0 - _ALPHA) * of_class**2 * -tf.math.log(1.0 - of_class + _SMALL)
    distance = tf.reduce_sum(tf.abs(objects.boxes[:, :, tf.newaxis] - boxes[:, tf.newaxis]), axis=-1)
    sides = corners_of(objects.boxes)[:, :, tf.newaxis], corners_of(boxes)[:, tf.newaxis]
    giou = 1.0 - iou_loss(*sides, kind="giou")  # an IoU does not depend on the order of the axes
    costs = _CLASS * (present - absent) + _L1 * distance - _GIOU * giou
    return tf.where(tf.math.is_finite(costs), costs, 1.0)


def match(predictions: list[tuple[tf.Tensor, tf.Tensor]], objects: Objects) -> tf.Tensor:
    """Matches every set of predictions with the objects; returns the object of each query, int32 [S, B, Q], or -1.

    Args:
        predictions: (logits, boxes) of S sets, as for `matching_costs`.
        objects: the objects, no more than queries.
    """
    costs = tf.concat([matching_costs(logits, boxes, objects) for logits, boxes in predictions], axis=0)
    sets, queries = len(predictions), costs.shape[2]
    found = assign(costs, tf.tile(objects.counts, [sets]))
    is_pair = found[:, :, tf.newaxis] == tf.range(queries)  # [S * B, N, Q]
    object_of = tf.where(tf.reduce_any(is_pair, axis=1), tf.argmax(is_pair, axis=1, output_type=tf.int32), -1)
    return tf.reshape(object_of, [sets, -1, queries])


def union_of(matches: tf.Tensor, *, num_objects: int) -> tf.Tensor:
    """Returns for each query the object that most sets match it with, the first of several, int32 [B, Q], or -1.

    Source: D-FINE's `_get_go_indices`.

    Args:
        matches: int32 [S, B, Q], as `match` returns them.
        num_objects: N.
    """
    votes = tf.reduce_sum(tf.one_hot(matches, num_objects, dtype=tf.int32), axis=0)
    return tf.where(tf.reduce_any(matches >= 0, axis=0), tf.argmax(votes, axis=-1, output_type=tf.int32), -1)
