"""Weights in TensorFlow's checkpoint files, by the names of the variables."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from detection.training.initialization.class_outputs import Category
from detection.training.initialization.locate import locate_weights
from detection.training.state import AVERAGES_PART, MODEL_PART
from schemas.errors import ConfigError, DataError
from schemas.initialization import SourceWeights
from schemas.serving import WEIGHTS_PART

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_AVERAGE = "/ExponentialMovingAverage"  # TF1's averages, as google/automl's releases have them


class WeightSource:
    """Weights that another training left.

    Three kinds of files are read: ours, whose variables have the path of the model's;
    other object-based checkpoints, by the variables' own names where these tell them
    apart, else by the path of objects; and name-based ones (TF1).

    Args:
        path: see `detection.training.initialization.locate.locate_weights`.
        weights: `raw`, `averaged` (of variables without an average, raw), or `auto`:
            averaged where there are any.
        rename: regular expressions and replacements, applied in turn to the names.

    Attributes:
        prefix: of the checkpoint that is read.
        averages: names of those variables whose average is read.
        categories: that the weights were trained for, in the order of the classes; None: not known.

    Raises:
        DataError: nothing can be read there, two variables get the same name, or the
            weights asked for are not there.
        ConfigError: a replacement that does not fit its expression.
    """

    def __init__(
        self, path: str | Path, *, weights: SourceWeights = "auto", rename: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.prefix, labels = locate_weights(path)
        self.categories = _read_categories(labels)
        try:
            self._reader = tf.train.load_checkpoint(str(self.prefix))
            dtypes = self._reader.get_variable_to_dtype_map()
            keys = sorted(key for key, dtype in dtypes.items() if dtype.is_floating)
            exported = dict(_of_part(keys, WEIGHTS_PART))
            raw, averaged = (exported, {}) if exported else _keys_by_name(self._reader, keys)
        except (tf.errors.OpError, ValueError) as error:
            raise self._unreadable(error) from error
        if exported and weights != "auto":
            raise DataError(
                f"{self.prefix}: a SavedModel holds one set of weights, as it was exported. "
                "Leave train.init.weights at auto, or name a checkpoint."
            )
        if weights == "averaged" and not averaged:
            raise DataError(f"{self.prefix}: holds no averages. Set train.init.weights=raw or auto.")
        self._keys = self._renamed(raw, rename)
        if weights != "raw":
            averaged = self._renamed(averaged, rename)
            self._keys |= averaged
        self.averages = frozenset(() if weights == "raw" else averaged)
        shapes = self._reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shapes[key]) for name, key in self._keys.items()}

    def read(self, name: str) -> np.ndarray:
        """The values of a variable.

        Raises:
            DataError: they cannot be read, or are not all finite.
        """
        try:
            values = np.asarray(self._reader.get_tensor(self._keys[name])).astype(np.float32)
        except tf.errors.OpError as error:
            raise self._unreadable(error) from error
        if not np.isfinite(values).all():
            raise DataError(f"{self.prefix}: {name} is not finite: that training had diverged. Name an earlier one.")
        return values

    def _unreadable(self, error: Exception) -> DataError:
        reason = str(error).strip().partition("\n")[0]
        return DataError(f"{self.prefix}: cannot be read as a checkpoint: {reason}. Copy it again, or name another.")

    def _renamed(self, keys: Mapping[str, str], rename: Iterable[tuple[str, str]]) -> dict[str, str]:
        named: dict[str, str] = {}
        for old, key in keys.items():
            name = old
            for expression, replacement in rename:
                name = _substitute(expression, replacement, name)
            if name in named:
                raise DataError(f"{self.prefix}: train.init.rename makes {name} of two variables, one is {old}.")
            named[name] = key
        return named


def _substitute(expression: str, replacement: str, name: str) -> str:
    try:
        return re.sub(expression, replacement, name)
    except (re.error, IndexError) as error:
        raise ConfigError(f"train.init.rename: {replacement!r} does not fit {expression!r}: {error}.") from None


def _keys_by_name(reader: Any, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Keys in the file of raw and of averaged weights, by variable name."""
    ours = dict(_of_part(keys, MODEL_PART))
    if ours:
        return ours, dict(_of_part(keys, AVERAGES_PART))
    named = _foreign_names(reader, keys)
    averaged = {name.removesuffix(_AVERAGE): key for name, key in named.items() if name.endswith(_AVERAGE)}
    return {name: key for name, key in named.items() if not name.endswith(_AVERAGE)}, averaged


def _of_part(keys: Iterable[str], part: str) -> Iterator[tuple[str, str]]:
    """Names and keys of variables that a checkpoint holds in a dictionary by path.

    TensorFlow escapes the slashes of a dictionary's keys, so these have one component.
    """
    for key in keys:
        first, _, name = key.removesuffix(_VALUE).partition("/")
        if first == part and key.endswith(_VALUE) and name and "/" not in name:
            yield _unescaped(name), key


def _foreign_names(reader: Any, keys: Iterable[str]) -> dict[str, str]:
    own = _own_names(reader)
    return {own.get(key) or _path_of_objects(key): key for key in keys}


def _own_names(reader: Any) -> dict[str, str]:
    """Names that variables of an object-based checkpoint were given, by key; only where no two are alike."""
    if not reader.has_tensor(_OBJECT_GRAPH):
        return {}
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(reader.get_tensor(_OBJECT_GRAPH))
    names = {one.checkpoint_key: one.full_name for node in graph.nodes for one in node.attributes if one.full_name}
    return names if len(set(names.values())) == len(names) else {}


def _path_of_objects(key: str) -> str:
    return _unescaped(key.removesuffix(_VALUE)) if key.endswith(_VALUE) else key


def _unescaped(name: str) -> str:
    """Inverse of what TensorFlow does to a name that becomes a part of a key."""
    return re.sub(r"\.(S|\.)", lambda match: "/" if match[1] == "S" else ".", name)


def _read_categories(labels: Path | None) -> list[Category] | None:
    if labels is None:
        return None
    try:
        told = json.loads(labels.read_text(encoding="utf-8"))
        return [{"id": category["id"], "name": category["name"]} for category in told]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{labels}: cannot be read as the categories of the weights beside it: {error!r}. Copy it again."
        ) from None
