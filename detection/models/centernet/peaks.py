"""Peaks of heat-maps: cells that no cell around exceeds, as in CenterNet's decoding."""

from typing import NamedTuple

import tensorflow as tf

from detection.models.heads.postprocess import best_pairs

_TOLERANCE = 1e-6  # a cell that another one exceeds by less is a peak, too, as in the TF Object Detection API
_SIDE = 3  # side, in cells, of the peak window and of the blocks of `best_peaks`
_BLOCKS = 512


class Peaks(NamedTuple):
    """The best peaks, best first.

    scores: float32 [B, M]; 0 where there are fewer peaks.
    cells: int32 [B, M], row * w + column.
    classes: int32 [B, M].
    """

    scores: tf.Tensor
    cells: tf.Tensor
    classes: tf.Tensor


def peaks(scores: tf.Tensor, *, side: int = _SIDE) -> tf.Tensor:
    """Returns scores [B, h, w, C] with zeros where one of the side x side cells around has a larger one."""
    largest = tf.nn.max_pool2d(scores, side, 1, padding="SAME")
    # A product takes less time than `tf.where` with a scalar.
    return scores * tf.cast(largest - scores < _TOLERANCE, scores.dtype)


def best_peaks(logits: tf.Tensor, count: int, *, counts: tf.Tensor, floor: float = 0.0, windowed: bool = True) -> Peaks:
    """Returns the best peaks of all heat-maps together, and their probabilities.

    The maps are large, and `peaks` takes a few passes over them.  So the 3x3 blocks of cells with the largest values
    are looked at first, and all cells only if another block could have one of the best peaks.

    Args:
        logits: float32 [B, h, w, C].
        count: M.
        counts: bool [B, h * w], cells whose peaks the result may contain.
        floor: lower peaks need not be found.
        windowed: look at blocks first, which needs a branch; False: all cells at once.
    """
    blocks = tf.nn.max_pool2d(logits, _SIDE, _SIDE, padding="SAME")

    def of_all_cells() -> Peaks:
        found = peaks(tf.sigmoid(logits))
        return _best(found * tf.reshape(tf.cast(counts, found.dtype), [-1, *logits.shape[1:3], 1]), count)

    if not windowed or not count <= _BLOCKS < blocks.shape[1] * blocks.shape[2] * blocks.shape[3]:
        return of_all_cells()
    chosen = _best(blocks, _BLOCKS)
    found = _peaks_of_blocks(logits, chosen, count, counts, columns=blocks.shape[2])
    others = tf.sigmoid(chosen.scores[:, -1])  # no peak of another block is higher; equal ones go by their cells
    settled = tf.reduce_all((found.scores[:, -1] > others) | (others <= floor))
    return tf.cond(settled, lambda: found, of_all_cells)


def _best(values: tf.Tensor, count: int) -> Peaks:
    """Returns the largest values of [B, h, w, C]."""
    by_cell = tf.reshape(values, [-1, values.shape[1] * values.shape[2], values.shape[3]])
    return Peaks(*best_pairs([by_cell], tf.reduce_max(by_cell, axis=2), count))


def _peaks_of_blocks(logits: tf.Tensor, blocks: Peaks, count: int, counts: tf.Tensor, *, columns: int) -> Peaks:
    """Returns the best peaks that count within blocks of 3x3 cells, which are numbered row by row."""
    _, height, width, channels = logits.shape
    y, x = (
        (places * _SIDE - (-side % _SIDE) // 2 - 1)[..., tf.newaxis] + tf.range(_SIDE + 2)
        for places, side in ((blocks.cells // columns, height), (blocks.cells % columns, width))
    )
    y, x = y[..., tf.newaxis], x[..., tf.newaxis, :]  # a block and the cells around it: [B, K, 5, 1] and [B, K, 1, 5]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    cells = tf.clip_by_value(y, 0, height - 1) * width + tf.clip_by_value(x, 0, width - 1)
    places = cells * channels + blocks.classes[..., tf.newaxis, tf.newaxis]
    values = tf.gather(tf.reshape(logits, [-1, height * width * channels]), places, batch_dims=1)
    scores = tf.where(inside, tf.sigmoid(values), 0.0)
    found = peaks(tf.reshape(scores, [-1, *scores.shape[2:], 1]))[:, 1:-1, 1:-1]
    flat = [-1, _BLOCKS * _SIDE**2]
    own_cells = tf.reshape(cells[..., 1:-1, 1:-1], flat)
    found = tf.where(tf.gather(counts, own_cells, batch_dims=1), tf.reshape(found, flat), 0.0)
    best, order = tf.math.top_k(found, count)
    own_cells = tf.gather(own_cells, order, batch_dims=1)
    return Peaks(best, own_cells, tf.gather(blocks.classes, order // _SIDE**2, batch_dims=1))
