"""Targets of CenterNet's keypoints: heat-maps, offsets within them, and positions relative to centers.

As in the TF Object Detection API.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.models.centernet.centers import Centers, gaussian_sigma

_MIN_IOU = 0.7  # IoU from which the radius of a keypoint's Gaussian follows, as that of a box
_MIN_WEIGHT = 1e-3  # keypoints with a lower weight are missing


class PointTargets(NamedTuple):
    """Targets of the cells around M points.

    cells: int32 [B, M, 2], (y, x); or [B, M, 3] with the number of the value at the cell.
    values: float32 [B, M, ..., 2], from the cell to a keypoint, (y, x) in cells.
    weights: float32 [B, M, ...], factor of the loss; 0 for cells outside of the outputs.
    """

    cells: tf.Tensor
    values: tf.Tensor
    weights: tf.Tensor


class KeypointTargets(NamedTuple):
    """Targets of all keypoints of a batch.

    heatmap: float32 [B, h, w, P] in 0..1, Gaussians around the keypoints.
    region: float32 [B, h, w, P], 0 in the boxes of objects without the keypoint, where the heat-map has no loss.
    offsets: from the cells around a keypoint to it.
    regressions: from the cells around an object's center to all of its keypoints.
    counts: float32 [3], divisors of the losses: the keypoints, as a sum of weights that is rounded down for each
        image and channel, and the sums of the weights of offsets and regressions.
    """

    heatmap: tf.Tensor
    region: tf.Tensor
    offsets: PointTargets
    regressions: PointTargets
    counts: tf.Tensor


def keypoint_targets(
    points: tf.Tensor,
    weights: tf.Tensor,
    boxes: tf.Tensor,
    valid: tf.Tensor,
    centers: Centers,
    *,
    size: tuple[int, int],
    spreads: npt.NDArray[np.float32],
    radius: int,
    per_keypoint_offset: bool,
) -> KeypointTargets:
    """Returns the targets.

    Args:
        points: float32 [B, N, P, 2], (y, x) of the objects' keypoints in cells.
        weights: float32 [B, N, P], 0 for keypoints that an object does not have.
        boxes: float32 [B, N, 4], (ymin, xmin, ymax, xmax) in cells.
        valid: bool [B, N], False for padding.
        centers: centers of the objects.
        size: (h, w) of the outputs in cells.
        spreads: [P], standard deviation of the Gaussians in those of the objects' centers.
        radius: of the cells around a point, in cells.
        per_keypoint_offset: each keypoint has its own offsets.
    """
    numbers = tf.range(len(spreads)) if per_keypoint_offset else tf.zeros([len(spreads)], tf.int32)
    offsets = _offsets(points, weights, numbers, size=size, radius=radius)
    regressions = _regressions(points, weights, centers, size=size, radius=radius)
    keypoints = tf.reduce_sum(tf.floor(tf.reduce_sum(weights, axis=1)))
    return KeypointTargets(
        heatmap=_heatmap(points, weights, keypoint_sigmas(centers.sizes, spreads), size=size),
        region=_region(boxes, valid[..., tf.newaxis] & (weights < _MIN_WEIGHT), size),
        offsets=offsets,
        regressions=regressions,
        counts=tf.stack([keypoints, tf.reduce_sum(offsets.weights), tf.reduce_sum(regressions.weights)]),
    )


def keypoint_sigmas(sizes: tf.Tensor, spreads: npt.NDArray[np.float32]) -> tf.Tensor:
    """Returns the standard deviations of P keypoints' Gaussians in cells, float32 [..., P].

    Args:
        sizes: float32 [..., 2], (height, width) of the objects' boxes in cells.
        spreads: [P], as in `keypoint_targets`.
    """
    return gaussian_sigma(sizes, min_iou=_MIN_IOU)[..., tf.newaxis] * spreads


def _heatmap(points: tf.Tensor, weights: tf.Tensor, sigmas: tf.Tensor, *, size: tuple[int, int]) -> tf.Tensor:
    """As `center_heatmap`, a channel at a time: [B, N, h, w] of all channels would be too large."""
    cells, spread = tf.floor(points), 2.0 * sigmas[..., tf.newaxis] ** 2
    down, across = (
        tf.exp(-((tf.range(side, dtype=tf.float32) - cells[..., axis, tf.newaxis]) ** 2) / spread)
        for axis, side in enumerate(size)
    )
    by_channel = [tf.transpose(part, [2, 0, 1, 3]) for part in (weights[..., tf.newaxis] * down, across)]
    heatmaps = tf.map_fn(
        lambda parts: tf.reduce_max(parts[0][..., tf.newaxis] * parts[1][:, :, tf.newaxis], axis=1),
        tuple(by_channel),
        fn_output_signature=tf.float32,
    )
    return tf.stop_gradient(tf.transpose(heatmaps, [1, 2, 3, 0]))


def _region(boxes: tf.Tensor, missing: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Returns 0 where the corner of a cell is in a box [B, N, 4] with a missing keypoint [B, N, P], else 1."""
    start, end = tf.split(boxes, 2, axis=2)
    rows, columns = (
        tf.cast((cells >= start[..., axis, tf.newaxis]) & (cells < end[..., axis, tf.newaxis]), tf.float32)
        for axis, cells in enumerate(tf.range(side, dtype=tf.float32) for side in size)
    )
    in_columns = columns[..., tf.newaxis] * tf.cast(missing, tf.float32)[:, :, tf.newaxis]
    return tf.cast(tf.einsum("bnh,bnwp->bhwp", rows, in_columns) == 0.0, tf.float32)


def _offsets(
    points: tf.Tensor, weights: tf.Tensor, numbers: tf.Tensor, *, size: tuple[int, int], radius: int
) -> PointTargets:
    cells, inside = _around(tf.cast(tf.floor(points), tf.int32), size=size, radius=radius)
    own = tf.broadcast_to(numbers[:, tf.newaxis, tf.newaxis], [*tf.unstack(tf.shape(cells))[:-1], 1])
    return PointTargets(
        cells=_rows(tf.concat([cells, own], axis=-1), 3),
        values=_rows(points[..., tf.newaxis, :] - tf.cast(cells, tf.float32), 3),
        weights=_rows(weights[..., tf.newaxis] * inside, 3),
    )


def _regressions(
    points: tf.Tensor, weights: tf.Tensor, centers: Centers, *, size: tuple[int, int], radius: int
) -> PointTargets:
    cells, inside = _around(centers.cells, size=size, radius=radius)
    values = points[:, :, tf.newaxis] - tf.cast(cells, tf.float32)[..., tf.newaxis, :]
    return PointTargets(
        cells=_rows(cells, 2),
        values=_rows(values, 2),
        weights=_rows(weights[:, :, tf.newaxis] * inside[..., tf.newaxis], 2),
    )


def _around(cells: tf.Tensor, *, size: tuple[int, int], radius: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the D cells around cells [..., 2], clipped, [..., D, 2], and 1.0 for those inside, [..., D]."""
    steps = [
        (y, x)
        for y in range(-radius, radius + 1)
        for x in range(-radius, radius + 1)
        if y * y + x * x <= radius * radius
    ]
    around = cells[..., tf.newaxis, :] + tf.constant(steps)
    clipped = tf.clip_by_value(around, 0, tf.constant(size) - 1)
    return clipped, tf.cast(tf.reduce_all(clipped == around, axis=-1), tf.float32)


def _rows(values: tf.Tensor, axes: int) -> tf.Tensor:
    """Joins the axes 1..axes."""
    shape = tf.shape(values)
    return tf.reshape(values, [shape[0], -1, *values.shape[axes + 1 :]])
