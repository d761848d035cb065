"""Beam's SDK harnesses on Dask workers: their start, their connections to this process, and their loss."""

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.worker import data_plane
from apache_beam.utils import thread_pool_executor
from distributed import Future

from components.beam.dask_cluster import HOST_OPTION, Cluster, Worker, WorkerLostError
from components.beam.harness_process import run_harness
from schemas.errors import CocoflowError

ENVIRONMENT = "cocoflow:environment:dask:v1"
_START = 300.0  # seconds for a harness to import Beam, on a busy machine, and to connect
_PATIENCE = 10.0  # seconds after which the log says that harnesses wait
_END = 5.0  # seconds in which harnesses end after the driver's last word
_SILENCE = 20.0  # seconds without a heartbeat after which a worker that has not connected yet is lost
_GRPC_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    # The stream of a machine that vanished, or of a process that hangs, ends within 20 seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

log = logging.getLogger("cocoflow.beam")


class Harnesses:
    """The harnesses of one attempt to run a pipeline, one on each worker; use as a context.

    lost: workers that ended or no longer answer.
    """

    def __init__(self, cluster: Cluster, workers: Sequence[Worker], *, key: str) -> None:
        host = cluster.host_for(workers)
        self.host = f"[{host}]" if ":" in host else host  # an IPv6 address, as gRPC takes it
        self.lost: list[Worker] = []
        self._key = key
        self._cluster = cluster
        self._workers = workers
        self._tasks: dict[str, tuple[Worker, Future]] = {}
        self.connections: dict[str, _Connection] = defaultdict(partial(_Connection, self))
        self._free: dict[str, float] = {}  # when a harness's worker had threads for it
        self._failure: CocoflowError | None = None
        self._failed = threading.Event()
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="dask_workers")

    def __enter__(self) -> "Harnesses":
        _RUNNING[self._key] = self
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._watcher.join(_END)
        del _RUNNING[self._key]
        self._await_ends()
        with contextlib.suppress(Exception):  # of several kinds, where the scheduler has gone
            self._cluster.client.cancel([task for _, task in self._tasks.values()], force=True)

    def _await_ends(self) -> None:
        """Waits for the harnesses that still write: what follows may remove or replace their files."""
        deadline = time.monotonic() + _END
        for worker_id, (worker, task) in self._tasks.items():
            if self.connections[worker_id].started and worker not in self.lost:
                with contextlib.suppress(Exception):  # a failed or cancelled task has ended, too
                    task.exception(timeout=max(0.0, deadline - time.monotonic()))

    def start(self, worker_id: str, control_address: str) -> None:
        """Starts a harness, which Beam calls `worker_id`, on the next worker."""
        worker = self._workers[len(self._tasks) % len(self._workers)]
        task = self._cluster.client.submit(
            run_harness, control_address, worker_id, workers=[worker.address], allow_other_workers=False, pure=False
        )
        self._tasks[worker_id] = worker, task

    def failure_behind(self, error: Exception) -> CocoflowError | None:
        """Returns the failure of a worker that caused an error; None: a DoFn, or Beam, raised it."""
        # The data stream of a worker that ended may break before its control stream.
        self._failed.wait(5.0 if "Channel closed" in str(error) else 0.0)
        return self._failure

    def progress(self) -> str:
        """Returns how many workers are busy."""
        busy = sum(connection.is_busy for connection in list(self.connections.values()))
        return f"{busy} of {len(self._workers)} workers busy"

    def check(self, connection: "_Connection") -> None:
        """Fails the requests of a connection if the attempt has failed."""
        if self._failure is not None:
            connection.fail(str(self._failure))

    def disconnected(self, connection: "_Connection") -> None:
        """Records that a harness's control stream has ended before its work."""
        for worker_id, (_, task) in list(self._tasks.items()):
            if self.connections[worker_id] is connection and not self._closed.is_set():
                error: BaseException | None = None
                with contextlib.suppress(Exception):  # the task of a worker that has gone never ends
                    error = task.exception(timeout=1.0)
                self._lose(worker_id, f"{error}" if error else "its connection to this process ended")

    def _lose(self, worker_id: str, why: str) -> None:
        if self._closed.is_set():
            return
        worker, _ = self._tasks[worker_id]
        self.lost.append(worker)
        self._fail(WorkerLostError(f"The Dask worker {worker} was lost: {why}."))

    def _fail(self, failure: CocoflowError) -> None:
        """Ends all bundles: Beam would wait for those of other workers."""
        self._failure = self._failure or failure
        for connection in list(self.connections.values()):
            self.check(connection)
        self._failed.set()

    def _watch(self) -> None:
        """Watches harnesses until they connect; a connection reports its end by itself."""
        beats: dict[str, tuple[float, float]] = {}
        started, reported = time.monotonic(), False
        while not self._closed.wait(1.0):
            waiting = [name for name in list(self._tasks) if not self.connections[name].started]
            if not waiting:
                continue
            try:
                entries = self._cluster.entries()
            except CocoflowError as error:
                self._fail(error)
                return
            for worker_id in waiting:
                self._check_start(worker_id, entries, beats)
            full = [worker for worker in self._workers if _has_queue(entries.get(worker.address))]
            if full and not reported and time.monotonic() - started > _PATIENCE:
                reported = True
                log.info("waiting for a free thread of the Dask workers %s", ", ".join(map(str, full)))

    def _check_start(
        self, worker_id: str, entries: Mapping[str, Mapping[str, Any]], beats: dict[str, tuple[float, float]]
    ) -> None:
        """Fails if a harness that has not connected yet never will."""
        worker, task = self._tasks[worker_id]
        now = time.monotonic()
        if _has_queue(entries.get(worker.address)):
            self._free[worker_id] = now
        if task.status == "error":
            error = task.exception()
            if isinstance(error, ConnectionError):
                self._fail(
                    CocoflowError(
                        f"The Dask worker {worker} cannot connect to this process at {self.host} ({error}). "
                        f"Name an address of this machine that workers reach, on any port: {HOST_OPTION}=ADDRESS"
                    )
                )
            else:
                self._lose(worker_id, f"{error or type(error).__name__}. See its log")
        elif task.status != "pending" or worker.address not in entries:
            self._lose(worker_id, "the scheduler no longer knows it")
        else:
            beat = entries[worker.address]["last_seen"]
            if beats.setdefault(worker_id, (beat, now))[0] != beat:
                del beats[worker_id]
            elif now - beats[worker_id][1] > _SILENCE:
                self._lose(worker_id, f"it sent no heartbeat for {_SILENCE:.0f} seconds")
            if now - self._free.setdefault(worker_id, now) > _START:
                self._lose(worker_id, f"its harness did not connect within {_START:.0f} seconds")


def _has_queue(entry: Mapping[str, Any] | None) -> bool:
    return entry is not None and bool(entry["metrics"].get("task_counts", {}).get("ready"))


class _Connection(worker_handlers.ControlConnection):
    """The control stream of a harness: the requests of an attempt fail as soon as one harness is lost."""

    def __init__(self, harnesses: Harnesses) -> None:
        super().__init__()
        self._harnesses = harnesses
        self._closing = False

    @property
    def started(self) -> bool:
        return bool(self._state != worker_handlers.BeamFnControlServicer.UNSTARTED_STATE)

    @property
    def is_busy(self) -> bool:
        return bool(self._futures_by_id)

    def _read(self) -> None:
        with contextlib.suppress(Exception):  # gRPC's, for a broken stream, is no subclass of anything public
            super()._read()
        if not self._closing:
            self._harnesses.disconnected(self)

    def push(self, req: Any) -> Any:
        future = super().push(req)
        self._harnesses.check(self)
        return future

    def fail(self, reason: str) -> None:
        """Answers all open requests with an error."""
        for request, future in list(self._futures_by_id.items()):
            future.set(beam_fn_api_pb2.InstructionResponse(instruction_id=request, error=reason))

    def close(self) -> None:
        """Ends the stream, and does not wait for a harness that may be gone."""
        self._closing = True
        self.push(worker_handlers.BeamFnControlServicer._DONE_MARKER)


class _DataServicer(data_plane.BeamFnDataServicer):
    """Beam's data service; the control stream reports the end of a worker, without a traceback for each stream."""

    def Data(self, elements_iterator: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802 (gRPC's name)
        yield from super().Data(_until_broken(elements_iterator), context)


def _until_broken(messages: Iterator[Any]) -> Iterator[Any]:
    with contextlib.suppress(Exception):
        yield from messages


class _Server:
    """Beam's control, data and state services at one address, in place of its four servers on all interfaces."""

    def __init__(self, harnesses: Harnesses, manager: "_WorkerHandlers") -> None:
        self.harnesses = harnesses
        self.control_handler = worker_handlers.BeamFnControlServicer(manager)
        self.control_handler._connections_by_worker_id = harnesses.connections
        self.data_plane_handler = _DataServicer(0)  # no timed buffer, which loses data
        self._server = grpc.server(thread_pool_executor.shared_unbounded_instance(), options=_GRPC_OPTIONS)
        port = self._server.add_insecure_port(f"{harnesses.host}:0")
        self.control_port = self.data_port = self.state_port = self.logging_port = port
        beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(self.control_handler, self._server)
        beam_fn_api_pb2_grpc.add_BeamFnDataServicer_to_server(self.data_plane_handler, self._server)
        state = worker_handlers.GrpcStateServicer(manager.state_servicer)
        beam_fn_api_pb2_grpc.add_BeamFnStateServicer_to_server(state, self._server)
        self._server.start()

    def close(self) -> None:
        self.control_handler.done()
        self._server.stop(1.0).wait()


class _WorkerHandlers(worker_handlers.WorkerHandlerManager):
    """Beam's manager of harnesses, with `_Server` for those on Dask."""

    def __init__(self, environments: Mapping[str, Any], job_provision_info: Any) -> None:
        super().__init__(environments, job_provision_info)
        for environment in environments.values():
            if environment.urn == ENVIRONMENT:
                self._grpc_server = _Server(_RUNNING[environment.payload.decode()], self)


@worker_handlers.WorkerHandler.register_environment(ENVIRONMENT, bytes)
class _DaskWorkerHandler(worker_handlers.GrpcWorkerHandler):
    """A harness on a Dask worker."""

    def __init__(self, payload: bytes, state: Any, provision_info: Any, grpc_server: _Server) -> None:
        self._harnesses = grpc_server.harnesses
        super().__init__(state, provision_info, grpc_server)

    def host_from_worker(self) -> str:
        return self._harnesses.host

    def start_worker(self) -> None:
        self._harnesses.start(self.worker_id, self.control_address)

    def stop_worker(self) -> None:
        """Does nothing: a harness ends with its control stream."""


_RUNNING: dict[str, Harnesses] = {}  # by the payload of their environment
# `FnApiRunner` takes the class from its module and offers no other way to replace it.
fn_runner.WorkerHandlerManager = _WorkerHandlers
