"""Stochastic depth with stateless seeds."""

import tensorflow as tf

from detection.ops.replicas import own_share, replica_count


def survival_probability(last: float, index: int, count: int) -> float:
    """Probability that block `index` of `count` is kept: 1 at the first, falling linearly towards `last`."""
    return 1.0 - (1.0 - last) * index / count


def drop_connect(inputs: tf.Tensor, *, survival: float, seed: tf.Tensor, index: int) -> tf.Tensor:
    """Zeroes whole examples of a residual branch, and scales the others up to keep the mean.

    Which ones follows from their place in the global batch, so any number of replicas
    drops the same.

    Args:
        inputs: float [B, ...].
        survival: probability that an example is kept, 0 < survival <= 1.
        seed: int32 [2], of this training step.
        index: tells the blocks of a network apart.
    """
    seed = tf.random.experimental.stateless_fold_in(_positive(seed), index)
    shape = [tf.shape(inputs)[0] * replica_count()] + [1] * (inputs.shape.rank - 1)
    # Integers: from the same bits XLA makes other floats than TensorFlow's own kernel.
    bits = tf.random.stateless_uniform(shape, _positive(seed), minval=None, maxval=None, dtype=tf.int32)
    kept = own_share(bits) <= round(survival * (2**32 - 1)) - 2**31
    return tf.where(kept, inputs / tf.cast(survival, inputs.dtype), tf.zeros([], inputs.dtype))


def _positive(seed: tf.Tensor) -> tf.Tensor:
    # XLA extends negative seeds to 64 bits in another way than TensorFlow's own kernels.
    return tf.bitwise.bitwise_and(seed, 0x7FFFFFFF)
