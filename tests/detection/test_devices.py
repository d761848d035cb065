"""Devices and their libraries, with a stand-in for the dynamic loader: there need not be a GPU."""

import os
import re
import subprocess
import sys

import pytest
import tensorflow as tf

from detection.devices import DRIVER, describe_devices, has_gpu, load_gpu_libraries, no_gpu_reason
from tests.detection.gpu_driver import ABSENT, Driver, load_only


def test_libraries_that_do_not_load_have_the_loaders_error(monkeypatch: pytest.MonkeyPatch) -> None:
    load_only(monkeypatch, "libcudnn", DRIVER)
    libraries = load_gpu_libraries()
    assert next(iter(libraries)) == DRIVER
    [cudnn] = [name for name in libraries if name.startswith("libcudnn.so.")]
    assert {name: error for name, error in libraries.items() if error} == {
        DRIVER: f"{DRIVER}: {ABSENT}",
        cudnn: f"{cudnn}: {ABSENT}",
    }


@pytest.mark.parametrize(
    ("absent", "code", "reason"),
    [
        ([DRIVER], 0, rf"no NVIDIA driver \({DRIVER}: cannot open .* directory\)"),
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
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{index}", "GPU") for index in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else [])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: {"device_name": "NVIDIA L4"})
    cores = len(os.sched_getaffinity(0))
    assert describe_devices() == f"{cores} CPU cores, GPU 0 NVIDIA L4 (24.0 GB), GPU 1 NVIDIA L4 (24.0 GB)"


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
    assert names - tensorrt == load_gpu_libraries().keys() - {DRIVER}
