"""Sees that the machines that train together start from the same."""

import zlib
from collections.abc import Iterable, Sequence

import tensorflow as tf

from detection.models.detector import variables_by_path
from detection.training.distributed.strategy import worker_count
from detection.training.distributed.workers import require_agreement
from detection.training.engine.state import TrainState


def require_same_start(
    strategy: tf.distribute.Strategy, state: TrainState, *, start_step: int, records: int, words: Sequence[str]
) -> None:
    """Compares what would otherwise let machines wait for each other for ever, or drift apart unseen.

    Args:
        strategy: that connects them.
        state: restored or initialised; its weights are compared.
        start_step: steps done.
        records: number of training records.
        words: texts that have to be equal, such as the configuration.

    Raises:
        ConfigError: they differ; says in what.
    """
    if worker_count(strategy) == 1:
        return
    weights = variables_by_path(state.model.variables)
    facts = {
        "the steps they have done": start_step,
        "the number of training records": records,
        "the configuration or the categories": _checksum(word.encode() for word in words),
        "the weights they start from": _checksum(weights[path].numpy().tobytes() for path in sorted(weights)),
    }
    require_agreement(strategy, facts)


def _checksum(parts: Iterable[bytes]) -> int:
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value
