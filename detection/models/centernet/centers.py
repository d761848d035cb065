"""Targets and losses of CenterNet: Gaussians around the centers of objects, and values at the centers.

Zhou et al., "Objects as Points", 2019, sections 3 and 4, as in the TF Object Detection API.
"""

from typing import NamedTuple

import tensorflow as tf

from detection.types import Labels

_MIN_PROBABILITY = 1e-4  # the heat-map's loss clips probabilities to this and 1 - this


class Centers(NamedTuple):
    """Objects by their centers, in cells of the outputs.

    cells: int32 [B, N, 2], (y, x) of the cell that contains the center.
    offsets: float32 [B, N, 2], (y, x) of the center within its cell, 0 to 1.
    sizes: float32 [B, N, 2], (height, width) of the box.
    classes: int32 [B, N].
    weights: float32 [B, N], factor of the loss; 0 for padding.
    """

    cells: tf.Tensor
    offsets: tf.Tensor
    sizes: tf.Tensor
    classes: tf.Tensor
    weights: tf.Tensor


def centers_of(labels: Labels, *, stride: int, size: tuple[int, int]) -> Centers:
    """Returns the centers of the objects.

    Args:
        labels: ground truth.
        stride: side of a cell in pixels.
        size: (height, width) of the outputs in cells.
    """
    start, end = tf.split(labels.boxes / float(stride), 2, axis=2)
    points = (start + end) / 2.0
    cells = tf.clip_by_value(tf.cast(tf.floor(points), tf.int32), 0, tf.constant(size) - 1)
    weights = tf.cast(labels.valid, tf.float32)
    return Centers(
        cells=cells,
        offsets=points - tf.cast(cells, tf.float32),
        sizes=end - start,
        classes=labels.classes,
        weights=weights if labels.weights is None else weights * labels.weights,
    )


def count_objects(labels: Labels) -> tf.Tensor:
    """Returns the number of objects with a weight, a float32 scalar."""
    counts = labels.valid if labels.weights is None else labels.valid & (labels.weights != 0.0)
    return tf.reduce_sum(tf.cast(counts, tf.float32))


def gaussian_sigma(sizes: tf.Tensor, *, min_iou: float) -> tf.Tensor:
    """Returns the standard deviation of objects' Gaussians in cells, (2 r + 1) / 6 with an integer radius r.

    Boxes whose corners move by up to r keep an IoU of about `min_iou`.  As in the original, the larger roots of
    a r^2 + b r + c are not divided by a, and the smallest of them is r.

    Args:
        sizes: float32 [..., 2], (height, width) of boxes in cells.
        min_iou: between 0 and 1.
    """
    total, area = tf.reduce_sum(sizes, axis=-1), tf.reduce_prod(sizes, axis=-1)
    equations = (
        (1.0, -total, area * (1.0 - min_iou) / (1.0 + min_iou)),
        (4.0, -2.0 * total, area * (1.0 - min_iou)),
        (4.0 * min_iou, 2.0 * min_iou * total, area * (min_iou - 1.0)),
    )
    roots = [(-b + tf.sqrt(tf.maximum(b * b - 4.0 * a * c, 0.0))) / 2.0 for a, b, c in equations]
    radius = tf.maximum(tf.floor(tf.reduce_min(tf.stack(roots), axis=0)), 0.0)
    return (2.0 * radius + 1.0) / 6.0


def center_heatmap(centers: Centers, *, size: tuple[int, int], num_classes: int, min_iou: float) -> tf.Tensor:
    """Returns the target of the heat-map, float32 [B, h, w, C] in 0..1.

    It is 1 at the cell of a center; where Gaussians of a class overlap, it is their maximum.  A Gaussian is
    multiplied by its object's weight.

    Args:
        centers: the objects.
        size: (h, w).
        num_classes: C.
        min_iou: see `gaussian_sigma`.
    """
    (height, width), objects = size, tf.shape(centers.cells)[:2]
    spread = 2.0 * gaussian_sigma(centers.sizes, min_iou=min_iou)[..., tf.newaxis] ** 2
    down, across = (
        tf.exp(-tf.cast((tf.range(side) - centers.cells[..., axis, tf.newaxis]) ** 2, tf.float32) / spread)
        for axis, side in enumerate(size)
    )
    gaussians = (centers.weights[..., tf.newaxis] * down)[..., tf.newaxis] * across[:, :, tf.newaxis]
    images = tf.range(objects[0])[:, tf.newaxis]
    heatmap = tf.math.unsorted_segment_max(
        tf.reshape(gaussians, [objects[0] * objects[1], height * width]),
        tf.reshape(images * num_classes + centers.classes, [-1]),
        objects[0] * num_classes,
    )
    # Classes without an object have the least number.
    heatmap = tf.reshape(tf.maximum(heatmap, 0.0), [objects[0], num_classes, height, width])
    return tf.stop_gradient(tf.transpose(heatmap, [0, 2, 3, 1]))


def inside_image(sizes: tf.Tensor, *, stride: int, size: tuple[int, int]) -> tf.Tensor:
    """Returns 1.0 for cells that an image touches, 0.0 for padding: float32 [B, h, w, 1].

    Args:
        sizes: float32 [B, 2], (height, width) of the images within the input, in pixels.
        stride: side of a cell in pixels.
        size: (h, w).
    """
    cells = tf.math.ceil(sizes / float(stride))[..., tf.newaxis]
    down, across = (tf.range(side, dtype=tf.float32) < cells[:, axis] for axis, side in enumerate(size))
    return tf.cast(down[:, :, tf.newaxis, tf.newaxis] & across[:, tf.newaxis, :, tf.newaxis], tf.float32)


def penalty_reduced_focal(logits: tf.Tensor, targets: tf.Tensor, *, alpha: float, beta: float) -> tf.Tensor:
    """Returns the focal loss of a heat-map, equation 1 of the paper, per element.

    Args:
        logits: float32 [B, h, w, C].
        targets: the same shape, 0..1; only 1 is a positive.
        alpha: exponent of the error.
        beta: exponent of 1 - target, for negatives.
    """
    p = tf.clip_by_value(tf.sigmoid(logits), _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
    positive = (1.0 - p) ** alpha * tf.math.log(p)
    negative = (1.0 - targets) ** beta * p**alpha * tf.math.log(1.0 - p)
    return -tf.where(targets == 1.0, positive, negative)


def l1_at(cells: tf.Tensor, outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the weighted sum of absolute errors at cells, a float32 scalar.

    Args:
        cells: int32 [B, N, 2], (y, x); or [B, N, 3] with the number of the value at a cell.
        outputs: float32 [B, h, w, ..., D].
        targets: float32 [B, N, ..., D].
        weights: float32 [B, N, ...].
    """
    errors = tf.abs(tf.gather_nd(outputs, cells, batch_dims=1) - targets)
    return tf.reduce_sum(errors * weights[..., tf.newaxis])
