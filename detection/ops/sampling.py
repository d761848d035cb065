"""Balanced random samples of positives and negatives, in a fixed number of slots."""

from typing import NamedTuple

import tensorflow as tf

from detection.ops.replicas import own_random_bits

_EXCLUDED = -1.0  # below all random keys


class Slots(NamedTuple):
    """Sampled rows per example; positives come first, unused slots last.

    indices: int32 [B, S], indices of rows; 0 for unused slots.
    positive: bool [B, S], the row is a positive.
    valid: bool [B, S], the slot is used.
    """

    indices: tf.Tensor
    positive: tf.Tensor
    valid: tf.Tensor


def max_positives(count: int, positive_fraction: float) -> int:
    """Returns the max number of positives in `count` slots; positives fill the first slots."""
    return int(count * positive_fraction + 1e-6)  # 100 * 0.29 is below 29


def sample_balanced(
    positive: tf.Tensor, negative: tf.Tensor, *, count: int, positive_fraction: float, seed: tf.Tensor, index: int
) -> Slots:
    """Samples rows of each example at random, without repetition.

    Positives fill at most `count * positive_fraction` slots; negatives fill the remaining slots,
    as far as there are negatives.  All subsets of the positives of one size are equally likely,
    and all subsets of the negatives.

    The sample depends on the example's position in the update's batch, not on the number of
    replicas or micro-batches.

    Args:
        positive: bool [B, A].
        negative: bool [B, A], never True with `positive`; rows that are neither are not sampled.
        count: S, number of slots.
        positive_fraction: max fraction of positives, 0 <= fraction <= 1.
        seed: int32 [2], seed of this training step.
        index: index of the use; uses in one step draw independently.
    """
    bits = own_random_bits(tf.shape(positive)[0], [positive.shape[1]], seed=seed, index=index)
    # 24 bits are exact in float32.  XLA's top-k of integers is much slower than of floats.
    keys = tf.cast(tf.bitwise.bitwise_and(bits, 0xFFFFFF), tf.float32)
    positives, positive_count = _draw(keys, positive, limit=max_positives(count, positive_fraction), width=count)
    negatives, negative_count = _draw(keys, negative, limit=count, width=count)
    slots = tf.range(count)
    is_positive = slots < positive_count
    valid = slots < positive_count + negative_count
    place = tf.where(valid & ~is_positive, slots - positive_count, 0)
    indices = tf.where(is_positive, positives, tf.gather(negatives, place, batch_dims=1))
    return Slots(indices=tf.where(valid, indices, 0), positive=is_positive, valid=valid)


def _draw(keys: tf.Tensor, candidates: tf.Tensor, *, limit: int, width: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the candidates with the highest keys, int32 [B, width], and their number <= limit, int32 [B, 1]."""
    limit = min(limit, keys.shape[1])
    best = tf.math.top_k(tf.where(candidates, keys, _EXCLUDED), limit)
    number = tf.reduce_sum(tf.cast(best.values > _EXCLUDED, tf.int32), axis=1, keepdims=True)
    return tf.pad(best.indices, [[0, 0], [0, width - limit]]), number
