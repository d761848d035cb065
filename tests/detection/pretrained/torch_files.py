"""State dictionaries in PyTorch's first format, written opcode by opcode."""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC_NUMBER = 119547037146038801333356
_BEGIN, _END = b"\x80\x02", b"."


def text(value: str) -> bytes:
    """BINUNICODE."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """LONG1, which holds a number of any size."""
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def name_of(module: str, name: str) -> bytes:
    """GLOBAL."""
    return f"c{module}\n{name}\n".encode()


def group(*items: bytes) -> bytes:
    """MARK, items, TUPLE."""
    return b"(" + b"".join(items) + b"t"


def tensor(key: str, count: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: str = "FloatStorage") -> bytes:
    """A tensor in the storage `key` of `count` numbers, as `torch.save` reduces it."""
    storage = group(text("storage"), name_of("torch", kind), text(key), text("cpu"), number(count), b"N") + b"Q"
    sides, steps = (group(*map(number, values)) for values in (shape, strides))
    hooks = name_of("collections", "OrderedDict") + b")R"
    return (
        name_of("torch._utils", "_rebuild_tensor_v2") + group(storage, number(0), sides, steps, b"\x89", hooks) + b"R"
    )


def file_bytes(entries: Mapping[str, bytes], storages: Mapping[str, npt.NDArray[Any]], *, little: bool = True) -> bytes:
    """A whole file: five pickles, and the numbers of the storages."""
    system = b"}(" + text("little_endian") + (b"\x88" if little else b"\x89") + b"u"
    entries_of = b"".join(text(name) + value for name, value in entries.items())
    dictionary = name_of("collections", "OrderedDict") + b")R(" + entries_of + b"u"
    keys = b"](" + b"".join(map(text, storages)) + b"e"
    pickles = (number(MAGIC_NUMBER), number(1001), system, dictionary, keys)
    numbers = (struct.pack("<q", values.size) + values.tobytes() for values in storages.values())
    return b"".join([*(_BEGIN + one + _END for one in pickles), *numbers])


def state_dict(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """A file of float32 and int64 arrays; kernels lie in their storage as HWIO, as the published files have them."""
    entries, storages = {}, {}
    for index, (name, array) in enumerate(arrays.items()):
        stored = np.transpose(array, (2, 3, 1, 0)) if array.ndim == 4 else array
        stored = np.asarray(stored, order="C")
        view = np.transpose(stored, (3, 2, 0, 1)) if array.ndim == 4 else stored
        kind = "LongStorage" if array.dtype == np.int64 else "FloatStorage"
        strides = tuple(step // array.itemsize for step in view.strides)
        entries[name] = tensor(f"{index}", array.size, array.shape, strides, kind)
        storages[f"{index}"] = stored
    return file_bytes(entries, storages)
