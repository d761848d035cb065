"""Replicas of a `tf.distribute` strategy: how many, which one, sums over them, one's share of the batch.

Everything here also works without a strategy, with one replica, and in
cross-replica context (there, as with one replica): then a sum is the identity.
"""

from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")

# Small enough to be sent while later gradients are still computed.
_PACK_BYTES = 32 * 2**20


def replica_count() -> int:
    """Number of replicas that take part in this computation, >= 1."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def replica_id() -> Any:
    """This replica's number, 0 <= id < `replica_count()`: an int or an int32 scalar tensor."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def sum_over_replicas(value: T) -> T:
    """Sums a tensor, or each tensor of a nest, over all replicas; each replica gets the sum.

    Tensors given together (of one dtype) travel together, which is much faster than
    one after the other.  The gradient is the sum of the replicas' gradients, which is
    right where the total loss is the sum of the replicas' losses.
    """
    if replica_count() == 1:
        return value
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=_PACK_BYTES)
    context = tf.distribute.get_replica_context()
    summed: T = context.all_reduce(tf.distribute.ReduceOp.SUM, value, options=options)
    return summed


def own_share(values: tf.Tensor) -> tf.Tensor:
    """This replica's rows of a tensor of the global batch.

    Replicas hold the global batch in the order of their numbers, each as much.

    Args:
        values: [replicas * B, ...], the same on all replicas; static but for the first dimension.

    Returns:
        [B, ...].
    """
    replicas = replica_count()
    return values if replicas == 1 else tf.gather(tf.reshape(values, [replicas, -1, *values.shape[1:]]), replica_id())
