"""Drop-connect: in training, residual branches are dropped at random per example."""

import tensorflow as tf

from detection.ops.replicas import own_random_bits


def drop_connect(inputs: tf.Tensor, *, survival: float, seed: tf.Tensor, index: int) -> tf.Tensor:
    """Zeroes a residual branch for random examples, and scales the other examples to keep the mean.

    The choice depends on the positions in the update's batch, not on the number of replicas or micro-batches.

    Args:
        inputs: float [B, ...].
        survival: probability of keeping an example, 0 < survival <= 1.
        seed: int32 [2], seed of this training step.
        index: index of the branch; branches of a network draw independently.
    """
    bits = own_random_bits(tf.shape(inputs)[0], [1] * (inputs.shape.rank - 1), seed=seed, index=index)
    kept = bits <= round(survival * (2**32 - 1)) - 2**31
    return tf.where(kept, inputs / tf.cast(survival, inputs.dtype), tf.zeros([], inputs.dtype))
