import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from detection.weights.torch_file import read_tensors
from schemas.errors import DataError
from tests.detection.pretrained.torch_files import file_bytes, name_of, number, state_dict, tensor, text

ONE = {"0": np.arange(6, dtype=np.float32)}


def test_tensors_come_back(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, npt.NDArray[Any]] = {
        "conv.weight": random.normal(size=(5, 3, 2, 4)).astype(np.float32),
        "norm.bias": random.normal(size=7).astype(np.float32),
        "norm.num_batches_tracked": np.array(12345678901, np.int64),
    }
    (tmp_path / "model.pth").write_bytes(state_dict(arrays))
    read = read_tensors(tmp_path / "model.pth")
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


def test_two_tensors_share_a_storage(tmp_path: Path) -> None:
    entries = {"rows": tensor("0", 6, (2, 3), (3, 1)), "columns": tensor("0", 6, (3, 2), (1, 3))}
    (tmp_path / "model.pth").write_bytes(file_bytes(entries, ONE))
    read = read_tensors(tmp_path / "model.pth")
    np.testing.assert_array_equal(read["rows"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(read["columns"], [[0, 3], [1, 4], [2, 5]])


class _Call:
    """Pickled, it calls a function when it is read."""

    def __init__(self, marker: Path):
        self._marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__("os").mkdir, (str(self._marker),)


def test_a_call_is_refused_and_not_made(tmp_path: Path) -> None:
    marker = tmp_path / "called"
    evil = pickle.dumps(_Call(marker), protocol=2)
    (tmp_path / "model.pth").write_bytes(evil)
    with pytest.raises(DataError, match=r"model\.pth: .* it uses (posix|nt)\.mkdir, which is not part of"):
        read_tensors(tmp_path / "model.pth")
    assert not marker.exists()
    pickle.loads(evil)
    assert marker.exists(), "the file would have called it"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("os", "system"),
        ("torch", "load"),
        ("collections", "defaultdict"),
        ("torch", "ShortStorage"),
    ],
)
def test_other_names_are_refused(tmp_path: Path, module: str, name: str) -> None:
    (tmp_path / "model.pth").write_bytes(file_bytes({"a": name_of(module, name)}, {}))
    with pytest.raises(DataError, match=rf"it uses {module}\.{name}"):
        read_tensors(tmp_path / "model.pth")


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 4), (4, 1)), ((7,), (1,)), ((2,), (6,)), ((2,), (-1,)), ((-1,), (1,)), ((10**9, 10**9), (0, 0))],
)
def test_tensors_beyond_their_storage_are_refused(
    tmp_path: Path, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    (tmp_path / "model.pth").write_bytes(file_bytes({"a": tensor("0", 6, shape, strides)}, ONE))
    with pytest.raises(DataError, match="exceeds its storage"):
        read_tensors(tmp_path / "model.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as a file of PyTorch"),
        (b"no weights", "cannot be read as a file of PyTorch"),
        (b"PK\x03\x04 and so on", "cannot be read as a file of PyTorch: .*zip"),
        (pickle.dumps(OrderedDict(), protocol=2), "its magic number or protocol differs"),
        (file_bytes({}, {}, little=False), "big-endian"),
        (file_bytes({"a": number(3)}, {}), "more than tensors by name"),
        (file_bytes({"a": text("b")}, {}), "more than tensors by name"),
        (file_bytes({"a": tensor("0", 6, (6,), (1,))}, ONE)[:-1], "it ends within storage 0"),
        (file_bytes({"a": tensor("0", 6, (6,), (1,))}, {}), "the numbers of storage 0 are missing"),
        (file_bytes({"a": tensor("0", 7, (6,), (1,))}, ONE), "storage 0 has 6 numbers"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.pth").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_tensors(tmp_path / "model.pth")
