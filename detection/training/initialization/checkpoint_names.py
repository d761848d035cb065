"""Names of the variables in TensorFlow's checkpoint files."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tensorflow.core.protobuf import trackable_object_graph_pb2

from detection.training.engine.state import AVERAGES_PART, MODEL_PART
from schemas.serving import WEIGHTS_PART

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_AVERAGE = "/ExponentialMovingAverage"  # TF1's averages, as google/automl's releases have them


class Contents(NamedTuple):
    """Keys in a checkpoint's files, by the name of the variable.

    raw: of the weights as they were trained, or as they were exported.
    averaged: of their moving averages, where there are any.
    exported: it is a SavedModel's: which of the two `raw` holds is not known.
    """

    raw: dict[str, str]
    averaged: dict[str, str]
    exported: bool


def contents_of(reader: Any) -> Contents:
    """Floating-point variables of a checkpoint; steps, counters and the like are left out.

    Args:
        reader: `tf.train.load_checkpoint`'s.

    Raises:
        tf.errors.OpError: the files cannot be read.
    """
    keys = sorted(key for key, dtype in reader.get_variable_to_dtype_map().items() if dtype.is_floating)
    exported = dict(_of_part(keys, WEIGHTS_PART))
    if exported:
        return Contents(exported, {}, exported=True)
    ours = dict(_of_part(keys, MODEL_PART))
    if ours:
        return Contents(ours, dict(_of_part(keys, AVERAGES_PART)), exported=False)
    named = _foreign_names(reader, keys)
    averaged = {name.removesuffix(_AVERAGE): key for name, key in named.items() if name.endswith(_AVERAGE)}
    raw = {name: key for name, key in named.items() if not name.endswith(_AVERAGE)}
    return Contents(raw, averaged, exported=False)


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
