"""Beam's Fn API with SDK harnesses that other programs start: all that `--runner=dask` uses of Beam's private modules.

Bound to Beam 2.65 (Python 3.11) and 2.77 (newer ones), as in `pyproject.toml`: other versions may lack these names,
which `tests/components/beam/test_fn_api.py` lists.  No Dask here: `python -m` runs this module as a harness.
"""

import contextlib
import os
import sys
import threading
import traceback
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.worker import data_plane
from apache_beam.runners.worker.sdk_worker import SdkHarness
from apache_beam.transforms.environments import Environment, python_sdk_capabilities
from apache_beam.utils import thread_pool_executor

from schemas.errors import CocoflowError

_ENVIRONMENT = "cocoflow:environment:harnesses:v1"
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


class Harnesses(ABC):
    """The harnesses of one attempt to run a pipeline: their start, and the failure of all as soon as one is lost.

    Args:
        host: address of this machine for the harnesses.
        count: number of harnesses.
    """

    def __init__(self, host: str, *, count: int) -> None:
        self.host = f"[{host}]" if ":" in host else host  # an IPv6 address, as gRPC takes it
        self.count = count
        self.failure: CocoflowError | None = None
        self.connections: dict[str, _Connection] = defaultdict(partial(_Connection, self))  # by Beam's name
        self._failed = threading.Event()

    @abstractmethod
    def start(self, worker_id: str, control_address: str) -> None:
        """Starts a harness: `run_harness` with these arguments, in a process of its own."""

    @abstractmethod
    def report_disconnected(self, worker_id: str) -> None:
        """Called when a harness's control stream ends before its work."""

    def is_connected(self, worker_id: str) -> bool:
        """Returns whether the harness has connected to this process."""
        return bool(self.connections[worker_id]._state != worker_handlers.BeamFnControlServicer.UNSTARTED_STATE)

    def progress(self) -> str:
        """Returns how many workers have an open request."""
        busy = sum(bool(connection._futures_by_id) for connection in list(self.connections.values()))
        return f"{busy} of {self.count} workers busy"

    def fail(self, failure: CocoflowError) -> None:
        """Fails the requests to all harnesses: Beam would wait for those that still run."""
        self.failure = self.failure or failure
        for connection in list(self.connections.values()):
            connection.check()
        self._failed.set()

    def failure_behind(self, error: Exception) -> CocoflowError | None:
        """Returns the failure of a harness that caused an error; None: a DoFn, or Beam, raised it."""
        # The data stream of a worker that ended may break before its control stream.
        self._failed.wait(5.0 if "Channel closed" in str(error) else 0.0)
        return self.failure


class HarnessRunner(fn_runner.FnApiRunner):
    """Beam's runner in memory, with harnesses in other processes."""

    def __init__(self) -> None:
        self._key = uuid.uuid4().hex
        super().__init__(_Environment(self._key))

    def run_on(self, harnesses: Harnesses, pipeline_proto: Any, options: PipelineOptions) -> Any:
        """Runs a pipeline on harnesses."""
        self._num_workers = harnesses.count
        _RUNNING[self._key] = harnesses
        try:
            return super().run_via_runner_api(pipeline_proto, options)
        finally:
            del _RUNNING[self._key]


class _Environment(Environment):
    """Names the `Harnesses` that run the DoFns, by the key of their runner."""

    def __init__(self, key: str) -> None:
        super().__init__(capabilities=python_sdk_capabilities())
        self._key = key

    def to_runner_api_parameter(self, context: Any) -> tuple[str, bytes]:
        return _ENVIRONMENT, self._key.encode()


class _Connection(worker_handlers.ControlConnection):
    """The control stream of a harness: its requests fail with `Harnesses.failure`."""

    worker_id: str

    def __init__(self, harnesses: Harnesses) -> None:
        super().__init__()
        self._harnesses = harnesses
        self._closing = False

    def _read(self) -> None:
        with contextlib.suppress(Exception):  # gRPC's, for a broken stream, is no subclass of anything public
            super()._read()
        if not self._closing:
            self._harnesses.report_disconnected(self.worker_id)

    def push(self, req: Any) -> Any:
        future = super().push(req)
        self.check()
        return future

    def check(self) -> None:
        """Answers all open requests with the failure, if there is one."""
        if self._harnesses.failure is not None:
            error = str(self._harnesses.failure)
            for request, future in list(self._futures_by_id.items()):
                future.set(beam_fn_api_pb2.InstructionResponse(instruction_id=request, error=error))

    def close(self) -> None:
        """Ends the stream, and does not wait for a harness that may be gone."""
        self._closing = True
        self.push(worker_handlers.BeamFnControlServicer._DONE_MARKER)


class _DataServicer(data_plane.BeamFnDataServicer):
    """Beam's data service; the control stream reports the end of a worker, without a traceback for each stream."""

    def Data(self, elements_iterator: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802 (gRPC's name)
        def until_broken() -> Iterator[Any]:
            with contextlib.suppress(Exception):
                yield from elements_iterator

        yield from super().Data(until_broken(), context)


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
    """Beam's manager of harnesses, with `_Server` for those of `Harnesses`."""

    def __init__(self, environments: Mapping[str, Any], job_provision_info: Any) -> None:
        super().__init__(environments, job_provision_info)
        for environment in environments.values():
            if environment.urn == _ENVIRONMENT:
                self._grpc_server = _Server(_RUNNING[environment.payload.decode()], self)


@worker_handlers.WorkerHandler.register_environment(_ENVIRONMENT, bytes)
class _WorkerHandler(worker_handlers.GrpcWorkerHandler):
    """One of the `Harnesses`."""

    def __init__(self, payload: bytes, state: Any, provision_info: Any, grpc_server: _Server) -> None:
        self._harnesses = grpc_server.harnesses
        super().__init__(state, provision_info, grpc_server)
        self._harnesses.connections[self.worker_id].worker_id = self.worker_id

    def host_from_worker(self) -> str:
        return self._harnesses.host

    def start_worker(self) -> None:
        self._harnesses.start(self.worker_id, self.control_address)

    def stop_worker(self) -> None:
        """Does nothing: a harness ends with its control stream."""


_RUNNING: dict[str, Harnesses] = {}  # by the key of their runner
# `FnApiRunner` takes the class from its module and offers no other way to replace it.
fn_runner.WorkerHandlerManager = _WorkerHandlers


def run_harness(control_address: str, worker_id: str) -> None:
    """Runs a harness as this process, which ends with it, or when its standard input is closed."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    status = 0
    try:
        SdkHarness(
            control_address,
            worker_id=worker_id,
            state_cache_size=worker_handlers.STATE_CACHE_SIZE_MB << 20,
            data_buffer_time_limit_ms=0,  # Beam's timed buffer loses data: a thread flushes it without a lock
            runner_capabilities=worker_handlers.FNAPI_RUNNER_CAPABILITIES,
        ).run()
    except BaseException:
        traceback.print_exc()  # into the worker's log
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without waiting for threads of DoFns


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    run_harness(*sys.argv[1:])
