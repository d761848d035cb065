"""Devices and their libraries, with a stand-in for the dynamic loader: there need not be a GPU."""

import os
import re
import subprocess
import sys

import pytest
import tensorflow as tf

from detection.devices import (
    DRIVER,
    DRIVER_LIBRARIES,
    describe_devices,
    has_gpu,
    load_gpu_libraries,
    no_gpu_reason,
    require_supported_gpus,
    unsupported_gpus,
)
from schemas.errors import ConfigError
from tests.detection.gpu_driver import ABSENT, Driver, load_only, show_gpus


def test_libraries_that_do_not_load_have_the_loaders_error(monkeypatch: pytest.MonkeyPatch) -> None:
    load_only(monkeypatch, "libcudnn", DRIVER)
    libraries = load_gpu_libraries()
    assert tuple(libraries)[:2] == DRIVER_LIBRARIES == (DRIVER, "libnvidia-ml.so.1")
    [cudnn] = [name for name in libraries if name.startswith("libcudnn.so.")]
    assert {name: error for name, error in libraries.items() if error} == {
        DRIVER: f"{DRIVER}: {ABSENT}",
        cudnn: f"{cudnn}: {ABSENT}",
    }


@pytest.mark.parametrize(
    ("absent", "code", "reason"),
    [
        ([DRIVER], 0, rf"no NVIDIA driver \({DRIVER}: cannot open .* directory\)"),
        (DRIVER_LIBRARIES, 0, rf"no NVIDIA driver \({DRIVER}: cannot open .* directory\)"),
        (["libnvidia-ml"], 0, r"libnvidia-ml\.so\.1 cannot be loaded \(libnvidia-ml\.so\.1: cannot open .*\)"),
        (["libcudnn"], 0, r"libcudnn\.so\.\d+ cannot be loaded \(libcudnn\.so\.\d+: cannot open .*\)"),
        ([DRIVER, "libcublas."], 0, r"no NVIDIA driver \(.*\); libcublas\.so\.\d+ cannot be loaded \(.*\)"),
        ([], 100, r"the NVIDIA driver reports CUDA_ERROR_NO_DEVICE \(100\)"),
        ([], 0, "see its log for the reason"),
    ],
)
def test_the_reason_is_the_drivers_or_the_loaders(
    absent: list[str], code: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    load_only(monkeypatch, "no library", *absent, driver=Driver(code))
    found = no_gpu_reason()
    assert re.fullmatch(reason, found), found


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_the_reason(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert no_gpu_reason() == f"CUDA_VISIBLE_DEVICES={hidden} hides all GPUs"


def test_gpus_have_names_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    load_only(monkeypatch, "no library")
    show_gpus(monkeypatch, ("NVIDIA L4", (8, 9)), ("NVIDIA L4", (8, 9)))
    cores = len(os.sched_getaffinity(0))
    assert describe_devices() == f"{cores} CPU cores, GPU 0 NVIDIA L4 (24.0 GB), GPU 1 NVIDIA L4 (24.0 GB)"


RTX_5090, L4 = ("NVIDIA GeForce RTX 5090", (12, 0)), ("NVIDIA L4", (8, 9))


@pytest.mark.parametrize(
    ("gpus", "named", "remedy"),
    [
        ([L4, ("NVIDIA H100", (9, 0)), ("NVIDIA T4", (7, 5)), ("of another driver", None)], "", ""),
        ([RTX_5090], "GPU 0 NVIDIA GeForce RTX 5090 (compute capability 12.0)", "only. CUDA_VISIBLE_DEVICES=-1 uses"),
        ([L4, RTX_5090, L4], "GPU 1 NVIDIA GeForce RTX 5090", "CUDA_VISIBLE_DEVICES=0,2 uses the other GPUs"),
        ([("NVIDIA B200", (10, 0)), L4], "GPU 0 NVIDIA B200 (compute capability 10.0)", "CUDA_VISIBLE_DEVICES=1 uses"),
        ([("Quadro K4200", (3, 0))], "GPU 0 Quadro K4200 (compute capability 3.0)", "CUDA_VISIBLE_DEVICES=-1"),
    ],
)
def test_a_gpu_without_kernels_is_named_with_its_capability_and_the_remedy(
    gpus: list[tuple[str, tuple[int, int] | None]], named: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(monkeypatch, *gpus)
    reason = unsupported_gpus()
    if not named:
        assert reason is None
        require_supported_gpus()
        return
    assert reason is not None
    assert reason.startswith(named)
    assert remedy in reason
    assert f": TensorFlow {tf.__version__} has kernels for compute capability " in reason
    with pytest.raises(ConfigError, match=re.escape(named)):
        require_supported_gpus()


@pytest.mark.parametrize(
    ("built_for", "is_supported"),
    [
        (["sm_50", "sm_60", "sm_70", "sm_80", "compute_90"], False),  # TensorFlow 2.16.2
        (["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"], False),  # TensorFlow 2.21.0
        (["sm_80", "sm_120"], True),
        (["sm_90a", "compute_120f"], True),
        (["sm_80", "compute_121"], False),
        ([], True),  # a build that does not say
    ],
)
def test_a_tensorflow_that_was_built_for_the_gpu_is_taken_at_its_word(
    built_for: list[str], is_supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(monkeypatch, RTX_5090)
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"cuda_compute_capabilities": built_for})
    assert (unsupported_gpus() is None) == is_supported


def test_a_gpu_that_tensorflow_does_not_see_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    load_only(monkeypatch, "libcudnn")
    assert ", no GPU: libcudnn.so." in describe_devices()


def test_a_driver_without_a_gpu_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    load_only(monkeypatch, "libcudnn", driver=Driver(100))
    assert not has_gpu()
    assert "GPU" not in describe_devices()


_TENSORFLOWS_LOADER = """
import ctypes, pathlib, tensorflow
library = ctypes.CDLL(str(pathlib.Path(tensorflow.__file__).parent / "libtensorflow_framework.so.2"))
result = ctypes.create_string_buffer(64)
library._ZN3tsl8internal9DsoLoader22TryDlopenCUDALibrariesEv(result)
"""


@pytest.mark.extended
def test_the_names_are_those_that_tensorflow_asks_for() -> None:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
    done = subprocess.run(
        [sys.executable, "-c", _TENSORFLOWS_LOADER], env=environment, capture_output=True, text=True, check=False
    )
    if "undefined symbol" in done.stderr:
        pytest.skip("this TensorFlow hides its loader")
    assert done.returncode == 0, done.stderr
    asked = [line.partition("dynamic library ")[2] for line in done.stderr.splitlines() if "dso_loader" in line]
    names = {text.split(";")[0].strip("'") for text in asked} - {""}
    tensorrt = {name for name in names if name.startswith("libnvinfer")}
    assert names - tensorrt == load_gpu_libraries().keys() - {*DRIVER_LIBRARIES}
