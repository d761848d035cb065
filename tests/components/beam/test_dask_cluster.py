"""Which workers of a Dask cluster are used."""

from collections.abc import Iterator
from typing import Any

import pytest
from distributed.versions import get_versions

from components.beam import dask_cluster
from components.beam.dask_cluster import Cluster, Worker
from schemas.errors import CocoflowError

LOST, DEAD, RESTARTED = (Worker(f"tcp://127.0.0.1:{port}", str(port)) for port in (1, 2, 3))


class _Scheduler:
    """Lists, at each look, some workers, and answers for those that live."""

    def __init__(self, *looks: list[Worker]) -> None:
        self.looks, self.scheduler = iter(looks), None

    def running(self) -> Iterator[Worker]:
        return iter(next(self.looks))

    def sync(self, _ask: Any, workers: list[Worker]) -> list[Any]:
        own = get_versions(dask_cluster._PACKAGES)["packages"]
        return [own if worker == RESTARTED else None for worker in workers]


def _cluster(monkeypatch: pytest.MonkeyPatch, scheduler: _Scheduler) -> Cluster:
    monkeypatch.setattr(dask_cluster.time, "sleep", lambda _: None)
    cluster = object.__new__(Cluster)
    client: Any = scheduler
    cluster.address, cluster.client = "tcp://127.0.0.1:8786", client
    monkeypatch.setattr(cluster, "_running", scheduler.running)
    return cluster


def test_a_restarted_worker_is_waited_for_though_a_dead_one_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = _Scheduler([LOST, DEAD], [DEAD], [DEAD, RESTARTED])
    assert _cluster(monkeypatch, scheduler).workers(without=[LOST]) == [RESTARTED]


def test_without_a_loss_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CocoflowError, match="No Dask worker answers"):
        _cluster(monkeypatch, _Scheduler([DEAD])).workers()
    with pytest.raises(CocoflowError, match="has no worker"):
        _cluster(monkeypatch, _Scheduler([])).workers()
