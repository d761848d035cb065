"""Files of weights: safetensors, and PyTorch's, under the authors' names."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import load_file

from detection.interop.dfine.names import name_of_hugging_face
from detection.storage.files import glob, is_dir, is_file, local_copy
from detection.storage.paths import escape, join, normalized
from detection.weights.checkpoint_format import Shape, Values
from detection.weights.torch_file import read_tensors
from schemas.config.train.initialization import SourceWeights
from schemas.errors import DataError

_SAFETENSORS = ".safetensors"
_FILES = ("model.safetensors", "*.safetensors", "*.pth")  # in a folder, the first kind that there is
# Anchors, counters, and second names of a variable.
_NO_WEIGHTS = re.compile(
    r"decoder\.(anchors|valid_mask|decoder\.(up|reg_scale))|.*\.(num_points_scale|num_batches_tracked)"
)
_IN_PROJECTION = re.compile(r"(.*\.)in_proj_(weight|bias)")


class OriginalFile:
    """Weights of D-FINE's network, with the attributes of a `WeightSource`.

    Args:
        path: a safetensors file with Hugging Face's names, or a `.pth` with the authors'; or a folder with one.
        weights: of a `.pth` of a training: `raw`, `averaged` (EMA weights), or `auto`: EMA weights if there are any.

    Raises:
        DataError: no such file, one that cannot be read, or without the requested weights.
    """

    step: int | None = None

    def __init__(self, path: str | Path, weights: SourceWeights):
        self.prefix = _located(normalized(path))
        local = local_copy(self.prefix)
        averaged = False

        def part(content: Any) -> Any:
            nonlocal averaged
            raw, ema = _state_dicts(content)
            averaged = ema is not None and weights != "raw"
            return ema if averaged or raw is None else raw

        tensors = read_state_dict(local, part)
        if weights == "averaged" and not averaged:
            raise DataError(f"{self.prefix}: has no EMA weights. Set --weights=raw or auto.")
        self._values = dict(_renamed(tensors))
        self.ema_names = frozenset(self._values if averaged else ())
        self.shapes: dict[str, Shape] = {name: value.shape for name, value in self._values.items()}

    def read(self, name: str) -> Values:
        """Returns the values of a variable.

        Raises:
            DataError: the values are not all finite.
        """
        values = np.asarray(self._values[name], np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{self.prefix}: {name} is not finite: the training diverged. Specify another file.")
        return values


def read_state_dict(path: Path, part: Callable[[Any], Any] = lambda content: content) -> Mapping[str, Any]:
    """Returns the tensors of a file by name.

    Args:
        path: local file, of safetensors or PyTorch.
        part: of a file of PyTorch, as for `read_tensors`.

    Raises:
        DataError: the file cannot be read.
    """
    if path.suffix != _SAFETENSORS:
        return read_tensors(path, part)
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, TypeError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read as a safetensors file: {error}. Copy it again.") from None


def _located(path: str) -> str:
    if is_dir(path):
        found: list[str] = next(filter(None, (glob(join(escape(path), name)) for name in _FILES)), [])
        if len(found) != 1:
            raise DataError(f"{path}: has {len(found)} files of weights (.safetensors or .pth). Specify one.")
        return found[0]
    if not is_file(path):
        raise DataError(f"{path}: no such file. Specify a .safetensors or .pth file, or a folder with one.")
    return path


def _state_dicts(content: Any) -> tuple[Any, Any]:
    """Returns the raw and the EMA weights in the object of a `.pth`, each None if missing."""
    if not isinstance(content, dict) or not {"model", "ema"} & content.keys():
        return content, None
    ema = content.get("ema")
    return content.get("model"), ema.get("module") if isinstance(ema, dict) else None


def _renamed(tensors: Mapping[str, Any]) -> Any:
    """Yields the tensors that are weights under the authors' names, with a projection each for q, k and v."""
    is_original = any(name.startswith("backbone.") for name in tensors)
    for own, value in tensors.items():
        name = own if is_original else name_of_hugging_face(own)
        if _NO_WEIGHTS.fullmatch(name):
            continue
        if match := _IN_PROJECTION.fullmatch(name):
            for part, values in zip("qkv", np.split(value, 3), strict=True):
                yield f"{match[1]}{part}_proj.{match[2]}", values
        else:
            yield name, value
