import json
import logging
import re
from typing import Any

import pytest
import tensorflow as tf

import detection.training.distributed.strategy as strategy_module
from detection.training.distributed.strategy import is_chief, make_strategy, on_cpu, worker_count
from schemas.config.run import ACCELERATOR_VARIABLE
from schemas.errors import CocoflowError, ConfigError
from tests.detection.gpu_driver import show_gpus

TWO_MACHINES = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})
ONE_MACHINE = json.dumps({"cluster": {"workerpool0": ["a:1"]}, "task": {"type": "workerpool0", "index": 0}})


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_CONFIG", "CLUSTER_SPEC", "TPU_NAME"):
        monkeypatch.delenv(name, raising=False)


class _Calls:
    """Stands in for TensorFlow's TPU functions and notes how they are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.made: list[tuple[str, Any]] = []
        self._error = error
        self._replace(monkeypatch, tf.distribute.cluster_resolver, "TPUClusterResolver")
        self._replace(monkeypatch, tf.config, "experimental_connect_to_cluster")
        self._replace(monkeypatch, tf.tpu.experimental, "initialize_tpu_system")
        self._replace(monkeypatch, tf.distribute, "TPUStrategy")

    def _replace(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        def call(argument: Any = None, *, tpu: str = "", **place: str) -> Any:
            argument = ", ".join((tpu, *place.values())) if tpu else argument
            self.made.append((name, argument))
            if self._error is not None:
                raise self._error
            if name == "TPUStrategy":
                return tf.distribute.OneDeviceStrategy("/cpu:0")
            return f"resolver of {argument}"

        monkeypatch.setattr(module, name, call)


def test_one_device_is_the_choice_where_there_is_nothing_else() -> None:
    strategy = make_strategy("auto")
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert is_chief(strategy)
    assert on_cpu(strategy)
    assert worker_count(strategy) == 1


def test_mirrored_takes_every_device() -> None:
    strategy = make_strategy("mirrored")
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 2
    assert is_chief(strategy)
    assert worker_count(strategy) == 1


def test_mirrored_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["one"] if kind == "CPU" else [])
    with pytest.raises(ConfigError, match=r"train\.strategy = mirrored, but TensorFlow sees no GPU: no NVIDIA driver"):
        make_strategy("mirrored")


@pytest.mark.parametrize("kind", ["auto", "one_device", "mirrored", "multi_worker"])
def test_a_container_that_was_given_an_accelerator_does_not_train_on_the_cpu(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ACCELERATOR_VARIABLE, "NVIDIA_L4")
    with pytest.raises(ConfigError, match=r"this container was given NVIDIA_L4 .*sees no GPU: .*docs/gpu\.md"):
        make_strategy(kind)


@pytest.mark.parametrize("kind", ["auto", "one_device", "mirrored"])
def test_a_gpu_that_tensorflow_does_not_support_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, ("NVIDIA RTX PRO 6000", (12, 0)))
    with pytest.raises(ConfigError, match=r"^GPU 0 NVIDIA RTX PRO 6000 \(compute capability 12\.0\): TensorFlow "):
        make_strategy(kind)


def test_the_log_names_the_devices(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cocoflow.trainer"):
        make_strategy("one_device")
    assert re.fullmatch(r"one_device, 1 replica\(s\); devices: \d+ CPU cores", caplog.messages[-1])


def test_several_gpus_are_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one", "two"] if kind == "GPU" else [])
    monkeypatch.setattr(strategy_module, "describe_devices", lambda: "two GPUs")
    monkeypatch.setattr(strategy_module, "require_supported_gpus", lambda: None)
    assert isinstance(make_strategy("auto"), tf.distribute.MirroredStrategy)


@pytest.mark.parametrize("variable", ["TF_CONFIG", "CLUSTER_SPEC"])
@pytest.mark.parametrize("kind", ["auto", "multi_worker"])
def test_several_machines_get_a_resolver_of_what_the_variable_says(
    kind: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, TWO_MACHINES)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", _Passed)
    with pytest.raises(_Passed) as passed:
        make_strategy(kind)
    resolver = passed.value.resolver
    assert resolver.cluster_spec().as_dict() == {"worker": ["a:1", "b:2"]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert resolver.num_accelerators() == {"GPU": 0}


class _Passed(Exception):  # noqa: N818 (it is no error)
    """Ends `make_strategy` where it would wait for other machines."""

    def __init__(self, resolver: Any) -> None:
        super().__init__()
        self.resolver = resolver

    @property
    def num_replicas_in_sync(self) -> int:
        raise self


def test_one_machine_in_the_variable_is_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER_SPEC", ONE_MACHINE)
    assert isinstance(make_strategy("auto"), tf.distribute.OneDeviceStrategy)
    assert isinstance(make_strategy("one_device"), tf.distribute.OneDeviceStrategy)


@pytest.mark.parametrize("kind", ["one_device", "mirrored"])
def test_one_of_several_machines_does_not_train_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", TWO_MACHINES)
    with pytest.raises(ConfigError, match=f"train.strategy={kind} trains on one machine, but TF_CONFIG or .* names 2"):
        make_strategy(kind)


def test_several_machines_need_the_variable() -> None:
    with pytest.raises(ConfigError, match="multi_worker: neither TF_CONFIG nor CLUSTER_SPEC names the machines"):
        make_strategy("multi_worker")


def test_a_malformed_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ConfigError, match=r"^TF_CONFIG: not JSON"):
        make_strategy("auto")


def test_machines_that_do_not_meet_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise tf.errors.DeadlineExceededError(None, None, "Barrier timed out.\nmore")

    monkeypatch.setenv("TF_CONFIG", TWO_MACHINES)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", fail)
    with pytest.raises(
        CocoflowError, match=r"worker 1 of the cluster could not connect to the others \(Barrier timed out\.\)"
    ):
        make_strategy("multi_worker")


@pytest.mark.parametrize(
    ("kind", "tpu", "variable", "expected"),
    [
        ("tpu", None, None, "local"),
        ("tpu", None, "of-the-variable", "of-the-variable"),
        ("tpu", "of-the-key", "of-the-variable", "of-the-key"),
        ("tpu", "grpc://10.0.0.2:8470", None, "grpc://10.0.0.2:8470"),
        ("tpu", "projects/p/locations/us-central1-b/nodes/v3", None, "v3, p, us-central1-b"),
        ("auto", "of-the-key", None, "of-the-key"),
        ("auto", None, "of-the-variable", "of-the-variable"),
    ],
)
def test_a_tpu_is_looked_up_by_key_then_variable(
    kind: str, tpu: str | None, variable: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _Calls(monkeypatch)
    if variable is not None:
        monkeypatch.setenv("TPU_NAME", variable)
    monkeypatch.setenv("TF_CONFIG", "it is not looked at")
    make_strategy(kind, tpu=tpu)
    resolver = f"resolver of {expected}"
    connected = [] if expected == "local" else [("experimental_connect_to_cluster", resolver)]
    assert calls.made == [
        ("TPUClusterResolver", expected),
        *connected,
        ("initialize_tpu_system", resolver),
        ("TPUStrategy", resolver),
    ]


@pytest.mark.parametrize("error", [ValueError, RuntimeError, OSError, ImportError])
def test_a_tpu_that_is_not_there_is_said(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    _Calls(monkeypatch, error("no such thing\nsecond line"))
    with pytest.raises(ConfigError, match=r"no TPU responds as 'mine' \(no such thing\)\. Set train.tpu or TPU_NAME"):
        make_strategy("tpu", tpu="mine")


def test_this_machine_has_no_tpu() -> None:
    with pytest.raises(ConfigError, match=r"train.strategy=tpu: no TPU responds as 'local'"):
        make_strategy("tpu")
