"""What the processes of one training run tell each other, besides gradients."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from detection.ops.replicas import replica_count, replica_id, sum_over_replicas
from detection.training.distributed.strategy import is_chief, worker_count
from schemas.errors import CocoflowError, ConfigError

_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")


def gather_from_workers(strategy: tf.distribute.Strategy, values: Sequence[int]) -> list[list[int]]:
    """Every process's integers, chief first; returns when all have called it.

    Args:
        strategy: that connects them; with one process there is nothing to wait for.
        values: as many everywhere; below 2^53 in size.
    """
    workers = worker_count(strategy)
    if workers == 1:
        return [list(values)]

    @tf.function(autograph=False)
    def gather() -> tf.Tensor:
        def own_row() -> tf.Tensor:
            row = tf.one_hot(replica_id(), replica_count(), dtype=tf.float64)[:, tf.newaxis]
            return sum_over_replicas(row * tf.constant(values, tf.float64))

        return strategy.experimental_local_results(strategy.run(own_row))[0]

    rows = gather().numpy()[:: strategy.num_replicas_in_sync // workers]
    return [[int(value) for value in row] for row in rows]


def wait_for_workers(strategy: tf.distribute.Strategy) -> None:
    """Returns when all processes have come here."""
    gather_from_workers(strategy, [0])


@contextlib.contextmanager
def chief_first(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """The chief runs the block before the others do: it tidies what they then read."""
    if not is_chief(strategy):
        wait_for_workers(strategy)
    yield
    if is_chief(strategy):
        wait_for_workers(strategy)


def chief_value(strategy: tf.distribute.Strategy, value: int) -> int:
    """The chief's `value`, on every process: for what the chief alone decides."""
    return gather_from_workers(strategy, [value])[0][0]


def require_agreement(strategy: tf.distribute.Strategy, facts: Mapping[str, int]) -> None:
    """Sees that all processes are about to do the same: otherwise they would wait for each other for ever.

    Args:
        strategy: that connects them.
        facts: by what they are called in the message.

    Raises:
        ConfigError: names the first fact that differs, and each process's.
    """
    rows = gather_from_workers(strategy, list(facts.values()))
    for name, values in zip(facts, zip(*rows, strict=True), strict=True):
        if len(set(values)) > 1:
            raise ConfigError(
                f"the machines that train together differ in {name}: {', '.join(map(str, values))} (chief first). "
                "Start all with the same configuration, data and output folder, one that all of them see."
            )


@contextlib.contextmanager
def lost_workers_explained(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Says in plain words that another process has ended while this one was working with it.

    TensorFlow finds out within seconds, by a heartbeat, and aborts what waits for it.

    Raises:
        CocoflowError: that happened within the block.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if worker_count(strategy) == 1 or not _is_loss(error):
            raise
        task = _TASK.search(error.message)
        who = f"{task[1]} {task[2]}" if task else "another machine"
        raise CocoflowError(
            f"training stopped: {who} of the cluster does not answer any more; its own log says why. "
            "Start training again on all machines: it goes on from the newest checkpoint."
        ) from error


def _is_loss(error: tf.errors.OpError) -> bool:
    aborted = "Collective ops is aborted" in error.message
    return aborted or isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)
