"""Reads tensors from files of PyTorch, without PyTorch.

Before version 1.6, `torch.save` wrote five pickles (magic number, protocol, system, the object, list of storage keys),
then per key an int64 count and the numbers.  Since then, it writes a zip archive with the object as `data.pkl`, and a
file of numbers per key.  Numbers are little-endian.  A pickle can call any function, so only the names below are
allowed.
"""

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from schemas.errors import DataError

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_ZIP = b"PK\x03\x04"  # start of a zip archive
_MAX_PICKLE = 64 << 20  # bytes; far more than the names of any network
_DTYPES = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "BoolStorage": np.dtype("?"),
    "ByteStorage": np.dtype("u1"),
}
_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "Counter"): dict,  # of a learning-rate schedule
}

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
    """Unpickles dictionaries of tensors, numbers and text, and nothing else; `storages` are those it saw, by key."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Resolves the names in a state dictionary; refuses all others."""
        if (module, name) in _NAMES:
            return _NAMES[module, name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise _FormatError(f"it uses {module}.{name}, which is not part of a dictionary of tensors")

    def persistent_load(self, pid: Any) -> _Storage:
        """Resolves a reference to a storage: ('storage', type, key, device, count), and a view in the first format."""
        kind, dtype, key, _device, count, *view = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or view not in ([], [None]):
            raise _FormatError(f"a storage of an unknown kind: {pid!r:.80}")
        storage = _Storage(str(key), dtype, int(count))
        return self.storages.setdefault(storage.key, storage)


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_others: Any) -> _Tensor:
    tensor = _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))
    last = tensor.offset + sum((side - 1) * stride for side, stride in zip(tensor.shape, tensor.strides, strict=True))
    within = isinstance(storage, _Storage) and last < storage.length and math.prod(tensor.shape) <= storage.length
    if not within or min((tensor.offset, *tensor.strides)) < 0 or min(tensor.shape, default=1) < 1:
        raise _FormatError(f"a tensor of shape {tensor.shape} exceeds its storage")
    return tensor


_NAMES |= {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_others: tensor,
}


def read_tensors(path: Path, part: Callable[[Any], Any] = lambda content: content) -> Tensors:
    """Reads a state dictionary.

    Args:
        path: local file.
        part: returns the state dictionary in the file's object, by default that itself.

    Returns:
        Arrays by name.

    Raises:
        DataError: the file cannot be read, has another format, is incomplete, or its part has more than tensors.
    """
    try:
        with path.open("rb") as file:
            is_zip = file.read(len(_ZIP)) == _ZIP
            file.seek(0)
            return _read_zip(file, part) if is_zip else _read(file, part)
    except _FormatError as error:
        raise DataError(f"{path}: not a state dictionary of PyTorch: {error}.") from None
    except DataError:
        raise
    # Unpickling raises errors of many types for bytes that are not a pickle.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path}: cannot be read as a file of PyTorch: {reason}. Copy it again.") from error


def _tensors(content: Any) -> dict[str, _Tensor]:
    if not isinstance(content, dict) or not all(isinstance(value, _Tensor) for value in content.values()):
        raise _FormatError("it contains more than tensors by name")
    return {str(name): value for name, value in content.items()}


def _read_zip(file: BinaryIO, part: Callable[[Any], Any]) -> Tensors:
    with zipfile.ZipFile(file) as archive:
        pickles = [one for one in archive.infolist() if one.filename.endswith("/data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE:
            raise _FormatError("a zip archive without the one pickle of PyTorch's")
        root = pickles[0].filename.removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise _FormatError("it was written on a big-endian machine")
        tensors = _tensors(part(_Unpickler(io.BytesIO(archive.read(pickles[0]))).load()))
        numbers = {}
        for storage in dict.fromkeys(value.storage for value in tensors.values()):
            info = archive.getinfo(f"{root}data/{storage.key}")
            if info.file_size != storage.length * storage.dtype.itemsize:
                raise _FormatError(f"storage {storage.key} has {info.file_size} bytes, not {storage.length} numbers")
            numbers[storage] = np.frombuffer(archive.read(info), storage.dtype)
    return {name: _array(value, numbers[value.storage]) for name, value in tensors.items()}


def _read(file: BinaryIO, part: Callable[[Any], Any]) -> Tensors:
    if _Unpickler(file).load() != _MAGIC_NUMBER or _Unpickler(file).load() != _PROTOCOL:
        raise _FormatError("its magic number or protocol differs")
    system = _Unpickler(file).load()
    if system["little_endian"] is not True:
        raise _FormatError("it was written on a big-endian machine")
    objects = _Unpickler(file)
    tensors = _tensors(part(objects.load()))
    keys = _Unpickler(file).load()
    storages = objects.storages
    numbers = {key: _numbers(file, storages.get(key), key) for key in keys}
    missing = {value.storage.key for value in tensors.values()} - numbers.keys()
    if missing:
        raise _FormatError(f"the numbers of storage {min(missing)} are missing")
    return {name: _array(value, numbers[value.storage.key]) for name, value in tensors.items()}


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
