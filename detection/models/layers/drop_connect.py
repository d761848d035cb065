"""Drop-connect: whole examples of a residual branch are left out at random in training."""

import tensorflow as tf

from detection.ops.replicas import own_slice, slice_count


def drop_connect(inputs: tf.Tensor, *, survival: float, seed: tf.Tensor, index: int) -> tf.Tensor:
    """Zeroes whole examples of a residual branch, and scales the others up to keep the mean.

    The choice depends on the positions in the update's batch, not on the number of replicas or micro-batches.

    Args:
        inputs: float [B, ...].
        survival: probability of keeping an example, 0 < survival <= 1.
        seed: int32 [2], seed of this training step.
        index: number of the branch, by which branches of one network draw differently.
    """
    seed = tf.random.experimental.stateless_fold_in(_positive(seed), index)
    shape = [tf.shape(inputs)[0] * slice_count()] + [1] * (inputs.shape.rank - 1)
    # Integers, as XLA and TensorFlow's own kernel make different floats of the same bits.
    bits = tf.random.stateless_uniform(shape, _positive(seed), minval=None, maxval=None, dtype=tf.int32)
    kept = own_slice(bits) <= round(survival * (2**32 - 1)) - 2**31
    return tf.where(kept, inputs / tf.cast(survival, inputs.dtype), tf.zeros([], inputs.dtype))


def _positive(seed: tf.Tensor) -> tf.Tensor:
    # XLA and TensorFlow's own kernels extend negative seeds to 64 bits differently.
    return tf.bitwise.bitwise_and(seed, 0x7FFFFFFF)
