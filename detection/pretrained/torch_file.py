"""Reads tensors from files of PyTorch's first format, without PyTorch.

`torch.save` wrote this format before version 1.6: five pickles (magic number, protocol, system, the
object, list of storage keys), then per key an int64 count and the numbers, little-endian.
A pickle can call any function, so only the names below are allowed.
"""

import math
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from schemas.errors import DataError

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_ZIP = b"PK\x03\x04"  # start of PyTorch's later format
_DTYPES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}

Tensors = Mapping[str, npt.NDArray[Any]]


class _Storage(NamedTuple):
    """Numbers of one or more tensors, stored after the pickles."""

    key: str
    dtype: np.dtype[Any]
    length: int


class _Tensor(NamedTuple):
    """View of a storage; offset and strides are in numbers, not bytes."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _FormatError(Exception):
    """The file has another format, or contains more than tensors."""


class _Unpickler(pickle.Unpickler):
    """Unpickles dictionaries of tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Resolves the names in a state dictionary; refuses all others."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise _FormatError(f"it uses {module}.{name}, which is not part of a dictionary of tensors")

    def persistent_load(self, pid: Any) -> _Storage:
        """Resolves a reference to a storage: ('storage', type, key, device, count, view)."""
        kind, dtype, key, _device, count, view = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or view is not None:
            raise _FormatError(f"a storage of an unknown kind: {pid!r:.80}")
        return _Storage(str(key), dtype, int(count))


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_others: Any) -> _Tensor:
    tensor = _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))
    last = tensor.offset + sum((side - 1) * stride for side, stride in zip(tensor.shape, tensor.strides, strict=True))
    within = isinstance(storage, _Storage) and last < storage.length and math.prod(tensor.shape) <= storage.length
    if not within or min((tensor.offset, *tensor.strides)) < 0 or min(tensor.shape, default=1) < 1:
        raise _FormatError(f"a tensor of shape {tensor.shape} exceeds its storage")
    return tensor


def read_tensors(path: Path) -> Tensors:
    """Reads a state dictionary.

    Args:
        path: local file.

    Returns:
        Arrays, float32 or int64, by name.

    Raises:
        DataError: the file cannot be read, has another format, is incomplete, or contains more than tensors.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except _FormatError as error:
        raise DataError(f"{path}: not a state dictionary in PyTorch's first format: {error}.") from None
    # Unpickling raises errors of many types for bytes that are not a pickle.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path}: cannot be read as PyTorch's first format: {reason}. Copy it again.") from error


def _read(file: BinaryIO) -> Tensors:
    if file.read(len(_ZIP)) == _ZIP:
        raise _FormatError(
            "it has the format of PyTorch 1.6 and later; save it there with _use_new_zipfile_serialization=False"
        )
    file.seek(0)
    if _Unpickler(file).load() != _MAGIC_NUMBER or _Unpickler(file).load() != _PROTOCOL:
        raise _FormatError("its magic number or protocol differs")
    system = _Unpickler(file).load()
    if system["little_endian"] is not True:
        raise _FormatError("it was written on a big-endian machine")
    tensors = _Unpickler(file).load()
    if not isinstance(tensors, dict) or not all(isinstance(value, _Tensor) for value in tensors.values()):
        raise _FormatError("it contains more than tensors by name")
    keys = _Unpickler(file).load()
    storages = {value.storage.key: value.storage for value in tensors.values()}
    numbers = {key: _numbers(file, storages.get(key), key) for key in keys}
    missing = storages.keys() - numbers.keys()
    if missing:
        raise _FormatError(f"the numbers of storage {min(missing)} are missing")
    return {str(name): _array(value, numbers[value.storage.key]) for name, value in tensors.items()}


def _numbers(file: BinaryIO, storage: _Storage | None, key: Any) -> npt.NDArray[Any]:
    """Reads the numbers of the next storage."""
    count = int.from_bytes(file.read(8), "little")
    if storage is None or count != storage.length:
        raise _FormatError(f"storage {key} has {count} numbers, or no tensor")
    content = file.read(count * storage.dtype.itemsize)
    if len(content) != count * storage.dtype.itemsize:
        raise _FormatError(f"it ends within storage {key}")
    return np.frombuffer(content, storage.dtype)


def _array(tensor: _Tensor, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    strides = [stride * numbers.itemsize for stride in tensor.strides]
    return as_strided(numbers[tensor.offset :], tensor.shape, strides, writeable=False)
