"""Deformable attention's samples of cells, by gathers with indices in range: no op that samples a grid."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf


def sample_cells(
    memory: tf.Tensor, points: tf.Tensor, weights: tf.Tensor, sizes: Sequence[tuple[int, int]], *, counts: Sequence[int]
) -> tf.Tensor:
    """Returns the weighted sums of the cells at points, bilinear, and 0 outside, [B, N, C].

    Args:
        memory: [B, T, C], the cells of all levels, finest first, row by row; a head has its part of the channels.
        points: float32 [B, N, heads, P, 2], (x, y) as fractions of the input.
        weights: float32 [B, N, heads, P].
        sizes: (height, width) of each level.
        counts: number of points of each level; their sum is P.
    """
    _, cells, channels = memory.shape
    _, queries, heads, total = weights.shape
    level = np.repeat(np.arange(len(sizes)), counts)
    starts = np.cumsum([0, *(height * width for height, width in sizes[:-1])])[level]
    # [B * heads * N, P, ...] from here: LiteRT has no more than five axes.
    points = tf.reshape(tf.transpose(points, [0, 2, 1, 3, 4]), [-1, total, 2])
    weights = tf.reshape(tf.transpose(weights, [0, 2, 1, 3]), [-1, total, 1])
    x, y = tf.split(points, 2, axis=-1)
    heights, widths = (np.array([size[axis] for size in sizes])[level, np.newaxis] for axis in (0, 1))
    (rows, of_rows), (columns, of_columns) = _neighbours(y, heights), _neighbours(x, widths)
    firsts = tf.split(starts[:, np.newaxis] + rows * widths, 2, axis=-1)
    index = tf.concat([first + columns for first in firsts], axis=-1)
    # Row by row: of two factors of which each repeats the other, LiteRT's GPUs make no product.
    factor = tf.concat([share * of_columns for share in tf.split(weights * of_rows, 2, axis=-1)], axis=-1)
    values = tf.transpose(tf.reshape(memory, [-1, cells, heads, channels // heads]), [0, 2, 1, 3])
    values = tf.reshape(values, [-1, cells, channels // heads])
    gathered = gather_cells(values, tf.reshape(index, [-1, queries * total * 4]))
    # Products of matrices: an einsum takes several times as long on a processor.
    factor = tf.cast(tf.reshape(factor, [-1, 1, total * 4]), memory.dtype)
    sums = tf.matmul(factor, tf.reshape(gathered, [-1, total * 4, channels // heads]))
    sums = tf.transpose(tf.reshape(sums, [-1, heads, queries, channels // heads]), [0, 2, 1, 3])
    return tf.reshape(sums, [-1, queries, channels])


def gather_cells(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Returns values [B, K, C] of cells [B, T, C] at int32 [B, K], by indices of one axis, as LiteRT's GPUs need it."""
    _, cells, channels = values.shape
    images = tf.range(tf.shape(indices)[0])[:, tf.newaxis]
    flat = tf.reshape(images * cells + indices, [-1])
    return tf.reshape(tf.gather(tf.reshape(values, [-1, channels]), flat), [-1, indices.shape[1], channels])


def _neighbours(points: tf.Tensor, sizes: npt.NDArray[np.int_]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the two cells around each point of an axis, int32 [..., P, 2], in range, and their factors, 0 outside.

    Args:
        points: float32 [..., P, 1], as fractions.
        sizes: cells of the axis for each point, [P, 1].
    """
    places = points * sizes.astype(np.float32) - 0.5
    corner = tf.floor(places)
    factors = tf.constant([1.0, 0.0]) + (places - corner) * tf.constant([-1.0, 1.0])
    cells = tf.cast(corner, tf.int32) + tf.constant([0, 1])
    inside = tf.clip_by_value(cells, 0, sizes - 1)
    return inside, tf.where(cells == inside, factors, 0.0)
