"""One process, which has nobody to wait for, and gathers stubbed; `test_distribution` has two real ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.training.distributed import workers
from detection.training.distributed.workers import (
    chief_first,
    chief_value,
    explain_lost_workers,
    gather_bytes,
    gather_from_workers,
    require_agreement,
    wait_for_workers,
)
from schemas.errors import CocoflowError, ConfigError


@pytest.fixture
def alone() -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy("/cpu:0")


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "worker_count", lambda strategy: 2)


def _others_say(monkeypatch: pytest.MonkeyPatch, *rows: Sequence[int]) -> None:
    monkeypatch.setattr(workers, "gather_from_workers", lambda strategy, values: [list(values), *rows])


def test_alone_there_is_one_row_and_nothing_to_wait_for(alone: tf.distribute.Strategy) -> None:
    assert gather_from_workers(alone, [3, 2**40]) == [[3, 2**40]]
    assert chief_value(alone, 7) == 7
    wait_for_workers(alone)
    require_agreement(alone, {"anything": 1})
    with chief_first(alone):
        pass


def test_rows_are_per_process_and_exact(two_replicas: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas of this process stand in for two processes."""
    monkeypatch.setattr(workers, "worker_count", lambda strategy: 2)
    assert gather_from_workers(two_replicas, [5, 2**52 + 1]) == [[5, 2**52 + 1]] * 2


@pytest.mark.parametrize("size", [0, 5, 24, 25, 60])
def test_bytes_are_exact_whatever_their_number(
    size: int, two_replicas: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of 24 bytes; those of processes that send less end where they ended."""
    monkeypatch.setattr(workers, "_CHUNK", 4)
    data = np.random.default_rng(size).bytes(size)
    assert gather_bytes(two_replicas, data) == [data]
    monkeypatch.setattr(workers, "worker_count", lambda strategy: 2)
    assert gather_bytes(two_replicas, data) == [data] * 2
    rows = iter([[[size], [1]]])
    monkeypatch.setattr(
        workers, "gather_from_workers", lambda strategy, values: next(rows, [list(values), [7] + [0] * len(values[1:])])
    )
    assert gather_bytes(two_replicas, data) == [data, b"\7"]


def test_agreement_passes_and_a_difference_is_named(
    alone: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"the steps": 20, "the records": 7}
    _others_say(monkeypatch, [20, 7])
    require_agreement(alone, facts)
    _others_say(monkeypatch, [20, 8], [20, 7])
    with pytest.raises(ConfigError, match=r"differ in the records: 7, 8, 7 \(chief first\)\. Start all with the same"):
        require_agreement(alone, facts)


def _lost(kind: Any, message: str) -> tf.errors.OpError:
    error: tf.errors.OpError = kind(None, None, message)
    return error


@pytest.mark.parametrize(
    ("error", "who"),
    [
        (
            _lost(tf.errors.UnavailableError, "Task /job:worker/replica:0/task:3 heartbeat timeout"),
            "worker 3 of the cluster",
        ),
        (_lost(tf.errors.UnavailableError, "Error reported from /job:chief/task:0: gone"), "chief 0 of the cluster"),
        (_lost(tf.errors.InternalError, "Collective ops is aborted by: x"), "another machine of the cluster"),
        (_lost(tf.errors.AbortedError, "restarted"), "another machine of the cluster"),
    ],
)
def test_a_lost_process_is_named(
    error: tf.errors.OpError, who: str, alone: tf.distribute.Strategy, one_of_two: None
) -> None:
    expected = pytest.raises(CocoflowError, match=f"^training stopped: {who} no longer responds")
    with expected, explain_lost_workers(alone):
        raise error


def test_other_errors_stay_as_they_are(alone: tf.distribute.Strategy, one_of_two: None) -> None:
    with pytest.raises(tf.errors.DataLossError), explain_lost_workers(alone):
        raise _lost(tf.errors.DataLossError, "corrupt")


def test_one_process_loses_nobody(alone: tf.distribute.Strategy) -> None:
    with pytest.raises(tf.errors.UnavailableError), explain_lost_workers(alone):
        raise _lost(tf.errors.UnavailableError, "disk")
