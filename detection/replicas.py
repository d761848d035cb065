"""Sums over the replicas of a `tf.distribute` strategy.

Everything here also works without a strategy, with one replica, and in
cross-replica context (there, as with one replica): then a sum is the identity.
"""

from typing import Any

import tensorflow as tf


def replica_count() -> int:
    """Number of replicas that take part in this computation, >= 1."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def replica_id() -> Any:
    """This replica's number, 0 <= id < `replica_count()`: an int or an int32 scalar tensor."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Sums `value` over all replicas; each gets the sum.

    The gradient is the sum of the replicas' gradients, which is right where the
    total loss is the sum of the replicas' losses.
    """
    if replica_count() == 1:
        return value
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)
