"""The private names of Beam that `components.beam.fn_api` needs: the first test to run with another version."""

import ast
import inspect
from collections.abc import Callable
from typing import Any

import apache_beam
import pytest
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.worker import data_plane, sdk_worker
from apache_beam.transforms.environments import Environment
from apache_beam.utils import thread_pool_executor

from components.beam import fn_api

# Owner -> names that we use, override or set; `_PARAMETERS` has the arguments that we pass or receive.
NAMES: list[tuple[Callable[[], Any], str]] = [
    (lambda: fn_runner, "FnApiRunner WorkerHandlerManager"),
    (fn_runner.FnApiRunner, "run_pipeline run_via_runner_api _num_workers"),
    (lambda: worker_handlers, "GrpcStateServicer STATE_CACHE_SIZE_MB FNAPI_RUNNER_CAPABILITIES"),
    (worker_handlers.ControlConnection, "_read push close _state _futures_by_id"),
    (lambda: worker_handlers.BeamFnControlServicer, "UNSTARTED_STATE _DONE_MARKER"),
    (lambda: worker_handlers.BeamFnControlServicer(None), "_connections_by_worker_id get_conn_by_worker_id done"),
    (lambda: worker_handlers.WorkerHandlerManager({}, None), "_grpc_server state_servicer"),
    (lambda: worker_handlers.GrpcWorkerHandler, "register_environment host_from_worker start_worker stop_worker"),
    (lambda: data_plane.BeamFnDataServicer, "Data get_conn_by_worker_id"),
    (lambda: thread_pool_executor, "shared_unbounded_instance"),
    (lambda: Environment, "to_runner_api_parameter"),
]
PARAMETERS: list[tuple[Any, str]] = [
    (sdk_worker.SdkHarness, "control_address worker_id state_cache_size data_buffer_time_limit_ms runner_capabilities"),
    (worker_handlers.GrpcWorkerHandler, "state provision_info grpc_server"),
    (worker_handlers.WorkerHandlerManager, "environments job_provision_info"),
    (worker_handlers.ControlConnection.push, "self req"),
    (data_plane.BeamFnDataServicer, "data_buffer_time_limit_ms"),
    (data_plane.BeamFnDataServicer.Data, "self elements_iterator context"),
]
HINT = f"Beam {apache_beam.__version__} lacks {{}}, which components/beam/fn_api.py needs: use a version that it names."


@pytest.mark.parametrize(("owner", "names"), NAMES)
def test_beam_has_the_names(owner: Callable[[], Any], names: str) -> None:
    missing = [name for name in names.split() if not hasattr(owner(), name)]
    assert not missing, HINT.format(f"{missing} in {owner()}")


@pytest.mark.parametrize(("function", "names"), PARAMETERS)
def test_beam_has_the_parameters(function: Any, names: str) -> None:
    missing = set(names.split()) - set(inspect.signature(function).parameters)
    assert not missing, HINT.format(f"parameters {missing} of {function}")


def test_every_private_name_is_listed() -> None:
    own, used = set(), set()
    for node in ast.walk(ast.parse(inspect.getsource(fn_api))):
        match node:
            case ast.Attribute(attr=attr, value=ast.Name(id="self"), ctx=ast.Store()):
                own.add(attr)
            case ast.Attribute(attr=attr) if attr.startswith("_") and not attr.startswith("__"):
                used.add(attr)
    listed = {name for _, names in NAMES for name in names.split()}
    assert used - own - {"_exit"} <= listed
