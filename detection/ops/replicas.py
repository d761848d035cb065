"""Replicas of a `tf.distribute` strategy: count, id, sums over all, slice and random bits of each.

All functions also work without a strategy and in cross-replica context, as if there were one
replica: a sum is then the identity.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")

# Small enough to send while later gradients are computed.
_PACK_BYTES = 32 * 2**20
_micro_batch: ContextVar[tuple[Any, int]] = ContextVar("micro_batch", default=(0, 1))  # (index, count)


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

    Tensors of the same dtype are packed, which is much faster than one call per tensor.
    The gradient is the sum of the replicas' gradients, which is correct if the total loss is
    the sum of the replicas' losses.
    """
    if replica_count() == 1:
        return value
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=_PACK_BYTES)
    context = tf.distribute.get_replica_context()
    summed: T = context.all_reduce(tf.distribute.ReduceOp.SUM, value, options=options)
    return summed


@contextlib.contextmanager
def micro_batch(index: Any, count: int) -> Iterator[None]:
    """Declares that code in the context processes one micro-batch of an update, on all replicas.

    Args:
        index: index of the micro-batch, 0 <= index < count: an int or an integer scalar tensor.
        count: number of micro-batches of the update.
    """
    token = _micro_batch.set((index, count))
    try:
        yield
    finally:
        _micro_batch.reset(token)


def slice_count() -> int:
    """Returns the number of slices of an update's batch: one per micro-batch and replica."""
    return _micro_batch.get()[1] * replica_count()


def own_slice(values: tf.Tensor) -> tf.Tensor:
    """Returns the rows of this micro-batch and replica from a tensor of an update's batch.

    The update's batch is divided into equal slices, one per micro-batch, and each of these into
    equal slices, one per replica, in the order of the replica ids.

    Args:
        values: [slice_count() * B, ...], equal on all replicas; static except the first dimension.

    Returns:
        [B, ...].
    """
    slices = slice_count()
    if slices == 1:
        return values
    own = _micro_batch.get()[0] * replica_count() + replica_id()
    return tf.gather(tf.reshape(values, [slices, -1, *values.shape[1:]]), own)


def own_random_bits(batch: tf.Tensor | int, shape: Sequence[int], *, seed: tf.Tensor, index: int) -> tf.Tensor:
    """Draws random bits for each example of this micro-batch and replica.

    They depend on the example's position in the update's batch, not on the number of
    replicas or micro-batches.

    Args:
        batch: B, number of examples of this micro-batch and replica.
        shape: static shape of the bits per example.
        seed: int32 [2], seed of this training step.
        index: index of the use; uses in one step draw independently.

    Returns:
        int32 [B, *shape], uniform over all int32.
    """
    seed = tf.random.experimental.stateless_fold_in(_positive(seed), index)
    # Integers, because XLA and TensorFlow's kernels convert the same bits to different floats.
    bits = tf.random.stateless_uniform(
        [batch * slice_count(), *shape], _positive(seed), minval=None, maxval=None, dtype=tf.int32
    )
    return own_slice(bits)


def _positive(seed: tf.Tensor) -> tf.Tensor:
    # XLA and TensorFlow's own kernels extend negative seeds to 64 bits differently.
    return tf.bitwise.bitwise_and(seed, 0x7FFFFFFF)
