"""Replicas of a `tf.distribute` strategy: their number, this one's id and slice of the batch, sums over all.

Everything here also works without a strategy and in cross-replica context, as with one
replica: a sum is then the identity.
"""

from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")

# Small enough to send while later gradients are computed.
_PACK_BYTES = 32 * 2**20


def replica_count() -> int:
    """Returns the number of replicas of this computation, >= 1."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def replica_id() -> Any:
    """Returns the id of this replica, 0 <= id < `replica_count()`: an int or an int32 scalar tensor."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def sum_over_replicas(value: T) -> T:
    """Sums a tensor, or each tensor of a nest, over all replicas; each replica gets the sum.

    Tensors of one dtype in one call are packed, which is much faster than one call each.
    The gradient is the sum of the replicas' gradients, which is correct if the total loss is
    the sum of the replicas' losses.
    """
    if replica_count() == 1:
        return value
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=_PACK_BYTES)
    context = tf.distribute.get_replica_context()
    summed: T = context.all_reduce(tf.distribute.ReduceOp.SUM, value, options=options)
    return summed


def own_slice(values: tf.Tensor) -> tf.Tensor:
    """Returns this replica's rows of a tensor of the global batch.

    Replicas hold equal slices of the global batch, in the order of their ids.

    Args:
        values: [replicas * B, ...], equal on all replicas; static except the first dimension.

    Returns:
        [B, ...].
    """
    replicas = replica_count()
    return values if replicas == 1 else tf.gather(tf.reshape(values, [replicas, -1, *values.shape[1:]]), replica_id())
