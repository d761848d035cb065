"""Devices that TensorFlow sees, and the reason if it sees no GPU."""

import contextlib
import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from schemas.config.run import ACCELERATOR_VARIABLE
from schemas.errors import ConfigError
from schemas.program import install_command

DRIVER = "libcuda.so.1"
DRIVER_LIBRARIES = (DRIVER, "libnvidia-ml.so.1")  # NCCL and XLA ask the second one for the links between GPUs
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_BUILT_FOR = re.compile(r"(?:sm|compute)_(\d+)(\d)[af]?")  # `sm_80`, `compute_120`: major and minor number


def describe_devices() -> str:
    """Describes the devices that this process can use: `16 CPU cores, GPU 0 NVIDIA L4 (23.7 GB)`.

    It includes the reason if the machine has a GPU that TensorFlow does not see.
    """
    devices = [f"{len(os.sched_getaffinity(0))} CPU cores"]
    devices += [_describe_gpu(index, gpu) for index, gpu in enumerate(tf.config.list_physical_devices("GPU"))]
    if tpus := tf.config.list_logical_devices("TPU"):
        devices.append(f"{len(tpus)} TPU cores")
    if len(devices) == 1 and has_gpu():
        devices.append(f"no GPU: {no_gpu_reason()}")
    return ", ".join(devices)


def _describe_gpu(index: int, gpu: tf.config.PhysicalDevice) -> str:
    name = _gpu_name(index, gpu)
    size = ctypes.c_size_t()
    # TensorFlow only reports its own limit, and allocates that memory to do so.
    if _load_error(DRIVER) is None and not ctypes.CDLL(DRIVER).cuDeviceTotalMem_v2(ctypes.byref(size), index):
        return f"{name} ({size.value / 1e9:.1f} GB)"
    return name


def _gpu_name(index: int, gpu: tf.config.PhysicalDevice) -> str:
    return f"GPU {index} {tf.config.experimental.get_device_details(gpu).get('device_name', gpu.name)}"


def unsupported_gpus() -> str | None:
    """Names the visible GPUs that this TensorFlow has no kernels for, and the remedy; None: it supports all of them.

    A GPU runs kernels of its own major compute capability, up to its minor one. It could also compile the PTX
    of an older capability, but TensorFlow's own kernels fail there with CUDA_ERROR_INVALID_PTX:
    https://github.com/tensorflow/tensorflow/issues/101746.
    """
    names = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", ())
    built_for = sorted((int(match[1]), int(match[2])) for match in map(_BUILT_FOR.fullmatch, names) if match)
    gpus = tf.config.list_physical_devices("GPU")
    found = [tf.config.experimental.get_device_details(gpu).get("compute_capability") for gpu in gpus]
    wrong = [index for index, capability in enumerate(found) if capability and not _runs(capability, built_for)]
    if not wrong or not built_for:
        return None
    cards = ", ".join(
        f"{_gpu_name(index, gpus[index])} (compute capability {'.'.join(map(str, found[index]))})" for index in wrong
    )
    left = ",".join(str(index) for index in range(len(gpus)) if index not in wrong)
    others = f"CUDA_VISIBLE_DEVICES={left} uses the other GPUs, " if left else ""
    (major, minor), (last, _) = built_for[0], built_for[-1]
    return (
        f"{cards}: TensorFlow {tf.__version__} has kernels for compute capability {major}.{minor} to {last}.x only. "
        f"{others}CUDA_VISIBLE_DEVICES=-1 uses the CPU; see docs/gpu.md."
    )


def _runs(capability: Sequence[int], built_for: Sequence[tuple[int, int]]) -> bool:
    return any(major == capability[0] and minor <= capability[1] for major, minor in built_for)


def require_supported_gpus() -> None:
    """Requires that TensorFlow has kernels for all visible GPUs.

    Raises:
        ConfigError: it has none for some GPU; see `unsupported_gpus`.
    """
    if reason := unsupported_gpus():
        raise ConfigError(reason)


def has_gpu() -> bool:
    """Returns whether the machine has a GPU, visible to TensorFlow or not; False if CUDA_VISIBLE_DEVICES hides it."""
    return _load_error(DRIVER) is None and ctypes.CDLL(DRIVER).cuInit(0) != _NO_DEVICE


def host_memory() -> int:
    """Returns the memory of this machine or container in bytes."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or `max`
            limits.append(int(Path(path).read_text()))
    return min(limits)


def require_accelerator(wish: str) -> None:
    """Requires a GPU or TPU.

    Args:
        wish: key and value of the request, for the message.

    Raises:
        ConfigError: TensorFlow has no GPU or TPU; the message has the reason.
    """
    if not any(device.device_type in ("GPU", "TPU") for device in tf.config.list_physical_devices()):
        raise ConfigError(
            f"{wish}, but TensorFlow sees no GPU: {no_gpu_reason()}. Use a machine with an NVIDIA driver, and install "
            f"the CUDA libraries with `{install_command('gpu')}`: see docs/gpu.md."
        )


def require_given_accelerator(environment: Mapping[str, str]) -> None:
    """Requires the accelerator that `run.resources` assigned to this container, if any.

    Args:
        environment: environment variables, such as `os.environ`.

    Raises:
        ConfigError: TensorFlow has no such accelerator.
    """
    if accelerator := environment.get(ACCELERATOR_VARIABLE):
        require_accelerator(f"this container was given {accelerator} ({ACCELERATOR_VARIABLE})")


def no_gpu_reason() -> str:
    """Explains why TensorFlow sees no GPU."""
    if not tf.test.is_built_with_cuda():
        return "this TensorFlow is built without CUDA"
    if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={hidden} hides all GPUs"
    errors = {name: error for name, error in load_gpu_libraries().items() if error is not None}
    driver = f"no NVIDIA driver ({errors[DRIVER]})" if DRIVER in errors else _driver_error()
    errors = {name: error for name, error in errors.items() if name not in DRIVER_LIBRARIES or DRIVER not in errors}
    missing = f"{', '.join(errors)} cannot be loaded ({next(iter(errors.values()))})" if errors else None
    return "; ".join(filter(None, [driver, missing])) or "see its log for the reason"


def load_gpu_libraries() -> dict[str, str | None]:
    """Loads the libraries that TensorFlow needs for GPUs, by the names that it uses.

    Returns:
        File names, `DRIVER_LIBRARIES` first, with the dynamic loader's error; None: the library loads.
    """
    build = tf.sysconfig.get_build_info()
    cuda, cudnn = (str(build.get(f"{name}_version", "")).split(".")[0] for name in ("cuda", "cudnn"))
    versions = {"cudart": cuda, "cublas": cuda, "cublasLt": cuda, "cufft": "11", "cusolver": "11", "cusparse": cuda}
    names = [f"lib{name}.so.{version}" for name, version in (versions | {"cudnn": cudnn}).items()]
    return {name: _load_error(name) for name in (*DRIVER_LIBRARIES, *names)}


def _load_error(name: str) -> str | None:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return None


def _driver_error() -> str | None:
    """Starts the driver; returns its error."""
    driver = ctypes.CDLL(DRIVER)
    code, name = driver.cuInit(0), ctypes.c_char_p()
    if not code:
        return None
    driver.cuGetErrorName(code, ctypes.byref(name))
    return f"the NVIDIA driver reports {(name.value or b'an unknown error').decode()} ({code})"
