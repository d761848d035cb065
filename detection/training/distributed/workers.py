"""Communication between the processes of one training run, besides gradients."""

import contextlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import tensorflow as tf

from detection.models.detector import variables_by_path
from detection.ops.replicas import replica_count, replica_id, sum_over_replicas
from detection.training.distributed.strategy import is_chief, worker_count
from detection.training.engine.state import TrainState
from schemas.errors import CocoflowError, ConfigError

_WIDTH = 6  # bytes of an integer below 2^53
_CHUNK = 2**16  # integers that are gathered at once
_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")


def gather_from_workers(strategy: tf.distribute.Strategy, values: Sequence[int]) -> list[list[int]]:
    """Gathers every process's integers, chief first; waits until all processes have called it.

    Args:
        strategy: strategy that connects the processes; a single process does not wait.
        values: integers with absolute values below 2^53, the same number in every process.
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


def gather_bytes(strategy: tf.distribute.Strategy, data: bytes) -> list[bytes]:
    """Gathers every process's bytes, chief first; waits until all processes have called it."""
    sizes = [size for (size,) in gather_from_workers(strategy, [len(data)])]
    parts = [b""] * len(sizes)
    for start in range(0, max(sizes), _WIDTH * _CHUNK):
        own = data[start : start + _WIDTH * _CHUNK].ljust(min(max(sizes) - start, _WIDTH * _CHUNK), b"\0")
        values = [int.from_bytes(own[at : at + _WIDTH], "little") for at in range(0, len(own), _WIDTH)]
        rows = gather_from_workers(strategy, values)
        parts = [
            part + b"".join(value.to_bytes(_WIDTH, "little") for value in row)
            for part, row in zip(parts, rows, strict=True)
        ]
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def wait_for_workers(strategy: tf.distribute.Strategy) -> None:
    """Waits until all processes have called it."""
    gather_from_workers(strategy, [0])


@contextlib.contextmanager
def chief_first(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Runs the context in the chief before the others, so that it can clean up files that they read."""
    if not is_chief(strategy):
        wait_for_workers(strategy)
    yield
    if is_chief(strategy):
        wait_for_workers(strategy)


def chief_value(strategy: tf.distribute.Strategy, value: int) -> int:
    """Returns the chief's `value` in every process."""
    return gather_from_workers(strategy, [value])[0][0]


def require_agreement(strategy: tf.distribute.Strategy, facts: Mapping[str, int]) -> None:
    """Checks that values are equal in all processes; otherwise the processes would wait for each other forever.

    Args:
        strategy: strategy that connects the processes.
        facts: values by their name in the message.

    Raises:
        ConfigError: values differ; the message has the first name that differs and each process's value.
    """
    rows = gather_from_workers(strategy, list(facts.values()))
    for name, values in zip(facts, zip(*rows, strict=True), strict=True):
        if len(set(values)) > 1:
            raise ConfigError(
                f"the machines of the cluster differ in {name}: {', '.join(map(str, values))} (chief first). "
                "Start all with the same configuration, data and output folder on shared storage."
            )


@contextlib.contextmanager
def explain_lost_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns TensorFlow's error after the loss of another process into a message with a remedy.

    TensorFlow detects the loss within seconds, by a heartbeat, and aborts collectives with that process.

    Raises:
        CocoflowError: another process was lost.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if worker_count(strategy) == 1 or not _is_loss(error):
            raise
        task = _TASK.search(error.message)
        who = f"{task[1]} {task[2]}" if task else "another machine"
        raise CocoflowError(
            f"training stopped: {who} of the cluster no longer responds; see its log for the cause. "
            "Start training again on all machines: it resumes from the newest checkpoint."
        ) from error


def _is_loss(error: tf.errors.OpError) -> bool:
    aborted = "Collective ops is aborted" in error.message
    return aborted or isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)


def require_same_start(
    strategy: tf.distribute.Strategy, state: TrainState, *, start_step: int, records: int, texts: Sequence[str]
) -> None:
    """Checks that all machines of the cluster start from the same state and input.

    Otherwise they would wait for each other forever, or silently diverge.

    Args:
        strategy: strategy that connects the processes.
        state: restored or initialized state; its weights are compared.
        start_step: number of completed steps.
        records: number of training records.
        texts: texts that must be equal, such as the configuration.

    Raises:
        ConfigError: the machines differ.
    """
    if worker_count(strategy) == 1:
        return
    weights = variables_by_path(state.model.variables)
    facts = {
        "the number of completed steps": start_step,
        "the number of training records": records,
        "the configuration or the categories": _checksum(text.encode() for text in texts),
        "the initial weights": _checksum(weights[path].numpy().tobytes() for path in sorted(weights)),
    }
    require_agreement(strategy, facts)


def _checksum(parts: Iterable[bytes]) -> int:
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value
