"""Stand-ins for NVIDIA's driver and the dynamic loader."""

import ctypes
from typing import Any

import pytest
import tensorflow as tf

ABSENT = "cannot open shared object file: No such file or directory"


class Driver:
    """NVIDIA's driver of a machine whose GPUs have 24 GB; `code` is what its start returns."""

    def __init__(self, code: int = 0) -> None:
        self._code = code

    def cuInit(self, _: int) -> int:  # noqa: N802 (the driver's name)
        return self._code

    def cuGetErrorName(self, code: int, name: Any) -> int:  # noqa: N802
        name._obj.value = {100: b"CUDA_ERROR_NO_DEVICE"}[code]
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, _: int) -> int:  # noqa: N802
        size._obj.value = 24 * 10**9
        return 0


def load_only(monkeypatch: pytest.MonkeyPatch, *absent: str, driver: Driver | None = None) -> None:
    """Lets all libraries load but those whose name begins with one of `absent`."""

    def load(name: str) -> Driver:
        if name.startswith(absent):
            raise OSError(f"{name}: {ABSENT}")
        return driver or Driver()

    monkeypatch.setattr(ctypes, "CDLL", load)


def show_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: tuple[str, tuple[int, int] | None]) -> None:
    """Lets TensorFlow see GPUs, each with its name and compute capability; None: the driver does not tell it."""
    details = {
        f"/physical_device:GPU:{index}": {"device_name": name} | ({"compute_capability": number} if number else {})
        for index, (name, number) in enumerate(gpus)
    }
    devices = [tf.config.PhysicalDevice(name, "GPU") for name in details]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: devices if kind == "GPU" else [])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details[device.name])
