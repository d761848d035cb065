"""Deformable attention's samples of cells, by gathers with indices in range: no op that samples a grid."""

from collections.abc import Sequence

import numpy as np
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
    heights, widths = (np.array([size[axis] for size in sizes])[level] for axis in (0, 1))
    starts = np.cumsum([0, *(height * width for height, width in sizes[:-1])])[level]
    places = points * np.stack([widths, heights], axis=1).astype(np.float32) - 0.5
    corner = tf.floor(places)
    fraction = places - corner
    indices, factors = [], []
    for step_x, step_y in ((0, 0), (1, 0), (0, 1), (1, 1)):
        x, y = tf.unstack(tf.cast(corner, tf.int32) + tf.constant([step_x, step_y]), axis=-1)
        inside = (x >= 0) & (x < widths) & (y >= 0) & (y < heights)
        index = starts + tf.clip_by_value(y, 0, heights - 1) * widths + tf.clip_by_value(x, 0, widths - 1)
        part_x, part_y = (
            part if step else 1.0 - part
            for part, step in zip(tf.unstack(fraction, axis=-1), (step_x, step_y), strict=True)
        )
        indices.append(index)
        factors.append(tf.where(inside, weights * part_x * part_y, 0.0))
    # [B, heads, N * P * 4], of each head's [B, heads, T, C / heads].
    index = _by_head(tf.stack(indices, axis=-1), queries, heads, total)
    factor = tf.cast(_by_head(tf.stack(factors, axis=-1), queries, heads, total), memory.dtype)
    values = tf.transpose(tf.reshape(memory, [-1, cells, heads, channels // heads]), [0, 2, 1, 3])
    gathered = tf.gather(values, tf.reshape(index, [-1, heads, queries * total * 4]), batch_dims=2)
    gathered = tf.reshape(gathered, [-1, heads, queries, total * 4, channels // heads])
    return tf.reshape(tf.einsum("bhnp,bhnpc->bnhc", factor, gathered), [-1, queries, channels])


def _by_head(values: tf.Tensor, queries: int, heads: int, total: int) -> tf.Tensor:
    """Maps [B, N, heads, P, 4] to [B, heads, N, P * 4]."""
    return tf.reshape(tf.transpose(values, [0, 2, 1, 3, 4]), [-1, heads, queries, total * 4])
