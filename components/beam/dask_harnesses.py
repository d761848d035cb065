"""Beam's SDK harnesses as tasks on Dask workers, one on each: their start, and the loss of a worker."""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed import Future

from components.beam.dask_cluster import HOST_OPTION, Cluster, Worker, WorkerLostError, run_harness
from components.beam.fn_api import Harnesses
from schemas.errors import CocoflowError

_START = 300.0  # seconds for a harness to import Beam, on a busy machine, and to connect
_PATIENCE = 10.0  # seconds after which the log says that harnesses wait
_END = 5.0  # seconds in which harnesses end after the driver's last word
_SILENCE = 20.0  # seconds without a heartbeat after which a worker that has not connected yet is lost

log = logging.getLogger("cocoflow.beam")


@dataclass
class _Task:
    """A harness on a worker.

    beat, heard: the worker's last heartbeat, and when it arrived.
    free: when the worker last had tasks without a thread for them.
    """

    worker: Worker
    future: Future
    beat: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    free: float = field(default_factory=time.monotonic)


class DaskHarnesses(Harnesses):
    """The harnesses of one attempt to run a pipeline, one on each worker; use as a context.

    lost: workers that ended or no longer answer.
    """

    def __init__(self, cluster: Cluster, workers: Sequence[Worker]) -> None:
        super().__init__(cluster.host_for(workers), count=len(workers))
        self.lost: list[Worker] = []
        self._cluster = cluster
        self._workers = workers
        self._tasks: dict[str, _Task] = {}
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="dask_workers")

    def __enter__(self) -> "DaskHarnesses":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._watcher.join(_END)
        self._await_ends()
        with contextlib.suppress(Exception):  # several kinds if the scheduler has gone
            self._cluster.client.cancel([task.future for task in self._tasks.values()], force=True)

    def _await_ends(self) -> None:
        """Waits for the harnesses that still write: what follows may remove or replace their files."""
        deadline = time.monotonic() + _END
        for worker_id, task in self._tasks.items():
            if self.is_connected(worker_id) and task.worker not in self.lost:
                with contextlib.suppress(Exception):  # a failed or cancelled task has ended, too
                    task.future.exception(timeout=max(0.0, deadline - time.monotonic()))

    def start(self, worker_id: str, control_address: str) -> None:
        """Starts a harness on the next worker."""
        worker = self._workers[len(self._tasks) % len(self._workers)]
        future = self._cluster.client.submit(
            run_harness, control_address, worker_id, workers=[worker.address], allow_other_workers=False, pure=False
        )
        self._tasks[worker_id] = _Task(worker, future)

    def report_disconnected(self, worker_id: str) -> None:
        """Gives up the worker of a harness whose control stream has ended."""
        if not self._closed.is_set():
            task, error = self._tasks[worker_id], None
            with contextlib.suppress(Exception):  # the task of a worker that has gone never ends
                error = task.future.exception(timeout=1.0)
            self._lose(task, f"{error}" if error else "its connection to this process ended")

    def _lose(self, task: _Task, why: str) -> None:
        if not self._closed.is_set():
            self.lost.append(task.worker)
            self.fail(WorkerLostError(f"The Dask worker {task.worker} was lost: {why}."))

    def _watch(self) -> None:
        """Watches harnesses until they connect; a connection reports its end by itself."""
        started, reported = time.monotonic(), False
        while not self._closed.wait(1.0):
            waiting = [task for name, task in list(self._tasks.items()) if not self.is_connected(name)]
            if not waiting:
                continue
            try:
                entries = self._cluster.entries()
            except CocoflowError as error:
                self.fail(error)
                return
            for task in waiting:
                self._check_start(task, entries.get(task.worker.address))
            full = [worker for worker in self._workers if _has_queue(entries.get(worker.address))]
            if full and not reported and time.monotonic() - started > _PATIENCE:
                reported = True
                log.info("waiting for a free thread of the Dask workers %s", ", ".join(map(str, full)))

    def _check_start(self, task: _Task, entry: Mapping[str, Any] | None) -> None:
        """Fails if a harness that has not connected yet never will; `entry`: what the scheduler knows of its worker."""
        now = time.monotonic()
        if _has_queue(entry):
            task.free = now
        if task.future.status == "error":
            self._report_failed_start(task)
        elif task.future.status != "pending" or entry is None:
            self._lose(task, "the scheduler no longer knows it")
        else:
            if entry["last_seen"] != task.beat:
                task.beat, task.heard = entry["last_seen"], now
            if now - task.heard > _SILENCE:
                self._lose(task, f"it sent no heartbeat for {_SILENCE:.0f} seconds")
            elif now - task.free > _START:
                self._lose(task, f"its harness did not connect within {_START:.0f} seconds")

    def _report_failed_start(self, task: _Task) -> None:
        error = task.future.exception()
        if isinstance(error, ConnectionError):
            self.fail(
                CocoflowError(
                    f"The Dask worker {task.worker} cannot connect to this process at {self.host} ({error}). "
                    f"Name an address of this machine that workers reach, on any port: {HOST_OPTION}=ADDRESS"
                )
            )
        else:
            self._lose(task, f"{error or type(error).__name__}. See its log")


def _has_queue(entry: Mapping[str, Any] | None) -> bool:
    return entry is not None and bool(entry["metrics"].get("task_counts", {}).get("ready"))
