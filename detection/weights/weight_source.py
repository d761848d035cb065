"""Reads weights from TensorFlow's checkpoint files, by variable name."""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from detection.models.detector import Detector
from detection.storage.checksums import require_checksums
from detection.storage.files import glob, read_bytes
from detection.storage.local import require_files
from detection.storage.paths import escape, literal_path, name_of, parent
from detection.weights.locate import local_prefix, locate_weights
from schemas.artifacts import EMA_PART, MODEL_PART, STEP_PART
from schemas.config.train.initialization import SourceWeights
from schemas.errors import ConfigError, DataError
from schemas.serving import WEIGHTS_PART

Category = Mapping[str, Any]
# Exceptions for the statuses of TensorFlow's checkpoint reader.
READ_ERRORS = (tf.errors.OpError, ValueError, IndexError, RuntimeError)

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_EMA_SUFFIX = "/ExponentialMovingAverage"  # suffix of TF1's EMA weights, as in google/automl's releases
# Optimizer state of a variable in an object-based checkpoint.
_SLOT = re.compile(rf"(?P<variable>.*)/\.OPTIMIZER_SLOT/.*/(?P<slot>[^/]+){re.escape(_VALUE)}")
_EMA_SLOT = "average"  # EMA weights of TensorFlow Addons' MovingAverage, used by google/automl
# Objects of a compiled Keras model, and variables of TF1's Adam, without weights.
_STATE = {"optimizer", "keras_api", "beta1_power", "beta2_power"}


class WeightSource:
    """Weights of another training.

    Reads three kinds of files: ours, named by the paths of the model's variables; other object-based
    checkpoints, by the variables' names if these are unique, else by the paths of objects; and
    name-based ones (TF1).  Skips optimizer state.

    Args:
        path: path of the weights, as in `detection.weights.locate.locate_weights`.
        weights: `raw`; `averaged`: EMA weights, and raw weights of variables without; or
            `auto`: EMA weights if there are any.
        rename: regular expressions and replacements, applied in order to the names.
        option: name of the option for `weights`, for errors.
        object_paths: name the variables of object-based checkpoints by the paths of objects.

    Attributes:
        prefix: prefix of the checkpoint's files.
        files: the located files.
        step: step of the training, if the checkpoint has it.
        is_ours: the files are from a training of ours.
        ema_names: names of the variables with EMA weights.
        categories: categories of the weights, in the order of the classes; None: unknown.
        shapes: shapes by name.

    Raises:
        DataError: the path cannot be read, two variables get the same name, or the requested
            weights are missing.
        ConfigError: a replacement does not fit its expression.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        weights: SourceWeights = "auto",
        rename: Sequence[tuple[str, str]] = (),
        option: str = "train.init.weights",
        object_paths: bool = False,
    ) -> None:
        self.files = locate_weights(path)
        self.prefix = self.files.prefix
        self.categories = _read_categories(self.files.labels)
        local = literal_path(local_prefix(self.prefix))
        if self.files.saved_model is not None:
            require_checksums(self.files.saved_model, parent(local), below=name_of(parent(self.prefix)))
        require_files(glob(f"{escape(local)}.*"))
        with self._reading():
            self._reader = tf.train.load_checkpoint(local)
            contents = _contents(self._reader, object_paths=object_paths)
            self.step = _step(self._reader)
        if contents.exported and weights != "auto":
            raise DataError(
                f"{self.prefix}: a SavedModel has one set of weights, the exported one. "
                f"Leave {option} at auto, or specify a checkpoint."
            )
        if weights == "averaged" and not contents.ema:
            raise DataError(f"{self.prefix}: has no EMA weights. Set {option}=raw or auto.")
        ema = {} if weights == "raw" else contents.ema
        names = self._new_names(contents.raw.keys() | ema.keys(), rename)
        self.ema_names = frozenset(names[old] for old in ema)
        self._keys = {names[old]: key for old, key in (contents.raw | ema).items()}
        shapes = self._reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shapes[key]) for name, key in self._keys.items()}
        self.is_ours = contents.ours

    def read(self, name: str) -> np.ndarray:
        """Reads the values of a variable.

        Raises:
            DataError: the values cannot be read, or are not all finite.
        """
        with self._reading():
            values = np.asarray(self._reader.get_tensor(self._keys[name])).astype(np.float32)
        if not np.isfinite(values).all():
            raise DataError(
                f"{self.prefix}: {name} is not finite: the training diverged. Specify an earlier checkpoint."
            )
        return values

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns errors of TensorFlow's reader into messages."""
        try:
            yield
        except READ_ERRORS as error:
            # The error of a truncated data file does not name the file.
            cut = f"{self.prefix}.data-* is truncated: " if isinstance(error, IndexError) else ""
            reason = str(error).strip().partition("\n")[0]
            raise DataError(
                f"{self.prefix}: cannot be read as a checkpoint: {cut}{reason}. Copy it again, or specify another."
            ) from error

    def _new_names(self, names: Collection[str], rename: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Returns the new name of each name in the file."""
        new = {name: name for name in sorted(names)}
        for expression, replacement in rename:
            changed = {old: _substitute(expression, replacement, name) for old, name in new.items()}
            if changed == new:
                raise ConfigError(
                    f"train.init.rename: {expression!r} changes no name in {self.prefix}; "
                    f"an example is {min(new.values(), default='nothing')}."
                )
            new = changed
        self._require_different(new)
        return new

    def _require_different(self, names: Mapping[str, str]) -> None:
        firsts: dict[str, str] = {}
        for old, new in names.items():
            if firsts.setdefault(new, old) != old:
                raise DataError(f"{self.prefix}: train.init.rename changes both {firsts[new]} and {old} to {new}.")


def load_detector_weights(detector: Detector, source: WeightSource) -> None:
    """Loads the weights of a checkpoint or SavedModel of ours into a detector of the same configuration.

    Args:
        detector: built detector.
        source: weights of all its variables.

    Raises:
        DataError: the files cannot be read, or belong to another detector.
    """
    for variable in detector.variables:
        shape = source.shapes.get(variable.path)
        if shape != tuple(variable.shape):
            raise DataError(
                f"{source.prefix}: does not match its configuration: {variable.path} has shape "
                f"{list(variable.shape)}, in the checkpoint {'it is missing' if shape is None else list(shape)}. "
                "Keep checkpoints and configuration of a run together. Train an imported model first if its "
                "import.json lists missing variables."
            )
        variable.assign(source.read(variable.path))


def _substitute(expression: str, replacement: str, name: str) -> str:
    try:
        return re.sub(expression, replacement, name)
    except (re.error, IndexError) as error:
        raise ConfigError(f"train.init.rename: {replacement!r} does not fit {expression!r}: {error}.") from None


def _read_categories(labels: str | None) -> list[Category] | None:
    if labels is None:
        return None
    try:
        categories = json.loads(read_bytes(labels))
        return [{"id": category["id"], "name": category["name"]} for category in categories]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{labels}: cannot be read as the categories of the weights beside it: {error!r}. Copy it again."
        ) from None


class _Contents(NamedTuple):
    """Keys in a checkpoint's files, by variable name.

    raw: keys of the raw weights, or of the weights of a SavedModel.
    ema: keys of the EMA weights.
    exported: the checkpoint is from a SavedModel, with raw or EMA weights.
    ours: written by a training or an export of ours.
    """

    raw: dict[str, str]
    ema: dict[str, str]
    exported: bool = False
    ours: bool = False


def _contents(reader: Any, *, object_paths: bool) -> _Contents:
    """Lists the floating-point variables of a checkpoint, without steps and counters.

    Args:
        reader: result of `tf.train.load_checkpoint`.
        object_paths: see `WeightSource`.

    Raises:
        tf.errors.OpError: the files cannot be read.
    """
    keys = sorted(key for key, dtype in reader.get_variable_to_dtype_map().items() if dtype.is_floating)
    exported = dict(_of_part(keys, WEIGHTS_PART))
    if exported:
        return _Contents(exported, {}, exported=True, ours=True)
    ours = dict(_of_part(keys, MODEL_PART))
    if ours:
        return _Contents(ours, dict(_of_part(keys, EMA_PART)), ours=True)
    return _contents_of_others(reader, keys, object_paths=object_paths)


def _contents_of_others(reader: Any, keys: Iterable[str], *, object_paths: bool) -> _Contents:
    """Lists the variables of another program's checkpoint, without the state of optimizers and metrics."""
    slots = {key: match for key in keys if (match := _SLOT.fullmatch(key))}
    variables = [key for key in keys if key not in slots and key.partition("/")[0] not in _STATE]
    own = {} if object_paths else _own_names(reader, variables)
    named = {own.get(key) or _path_of_objects(key): key for key in variables}
    names = set(named)
    # TF1 names a slot `<variable>/Momentum`; a variable has no other children.
    named = {name: key for name, key in named.items() if name.rpartition("/")[0] not in names or _is_ema(name)}
    ema = {name.removesuffix(_EMA_SUFFIX): key for name, key in named.items() if _is_ema(name)}
    of_key = {key: name for name, key in named.items()}
    for key, match in slots.items():
        variable = of_key.get(f"{match['variable']}{_VALUE}")
        if match["slot"] == _EMA_SLOT and variable is not None:
            ema[variable] = key
    return _Contents({name: key for name, key in named.items() if not _is_ema(name)}, ema)


def _is_ema(name: str) -> bool:
    return name.endswith(_EMA_SUFFIX)


def _step(reader: Any) -> int | None:
    """Reads the number of training steps, ours or TF1's.

    Raises:
        ValueError: it is not an integer.
    """
    key = next(filter(reader.has_tensor, (f"{STEP_PART}{_VALUE}", "global_step")), None)
    if key is None:
        return None
    step = np.asarray(reader.get_tensor(key))
    if step.ndim or step.dtype.kind not in "iu":
        raise ValueError(f"its {key} is not an integer")
    return int(step)


def _of_part(keys: Iterable[str], part: str) -> Iterator[tuple[str, str]]:
    """Yields names and keys of the variables in a checkpoint's dictionary by path.

    TensorFlow escapes the slashes of a dictionary's keys, so these have one component.
    """
    for key in keys:
        first, _, name = key.removesuffix(_VALUE).partition("/")
        if first == part and key.endswith(_VALUE) and name and "/" not in name:
            yield _unescape(name), key


def _own_names(reader: Any, keys: Collection[str]) -> dict[str, str]:
    """Returns the names of the variables of an object-based checkpoint, by key; none if they are not unique.

    Raises:
        ValueError: its graph of objects cannot be read.
    """
    if not reader.has_tensor(_OBJECT_GRAPH):
        return {}
    wanted = set(keys)
    try:
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(reader.get_tensor(_OBJECT_GRAPH))
    except (DecodeError, TypeError):  # TypeError: a tensor that is not text
        raise ValueError(f"its {_OBJECT_GRAPH} is not a graph of objects") from None
    attributes = (one for node in graph.nodes for one in node.attributes)
    names = {one.checkpoint_key: one.full_name for one in attributes if one.full_name and one.checkpoint_key in wanted}
    return names if len(set(names.values())) == len(names) else {}


def _path_of_objects(key: str) -> str:
    return _unescape(key.removesuffix(_VALUE)) if key.endswith(_VALUE) else key


def _unescape(name: str) -> str:
    """Inverts TensorFlow's escaping of a name in a key."""
    return re.sub(r"\.(S|\.)", lambda match: "/" if match[1] == "S" else ".", name)
