"""Small checkpoints as google/automl writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from detection.interop.automl.checkpoint import automl_name
from detection.models.registry import detector_from_config
from schemas.config.config import Config
from schemas.config.config_io import load_config

SMALL = ("model.name=efficientdet-nano", "model.overrides={neck: {filters: 16, cells: 1}, head: {layers: 1}}")
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"

Weights = dict[str, np.ndarray]


def small_config(*assignments: str) -> Config:
    """The configuration of the small network."""
    return load_config(None, [*SMALL, *assignments])


def random_weights(num_classes: int, seed: int = 0) -> Weights:
    """Weights of the small network by google/automl's names."""
    detector = detector_from_config(small_config().model, [{}] * num_classes)
    random = np.random.default_rng(seed)
    return {
        automl_name(variable.path): random.normal(size=variable.shape).astype(np.float32)
        for variable in detector.variables
    }


def save(prefix: Path, tensors: Mapping[str, Any]) -> str:
    """Writes a checkpoint file with these keys."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    values = [tf.constant(value) for value in tensors.values()]
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)
    return str(prefix)


def save_named(prefix: Path, weights: Weights, ema: Mapping[str, np.ndarray] | None = None, scope: str = "") -> str:
    """Writes a TF1 checkpoint, with the slots of its optimizer."""
    named = {f"{scope}{name}": value for name, value in weights.items()}
    averages = {f"{scope}{name}/ExponentialMovingAverage": value for name, value in (ema or {}).items()}
    slots = {f"{name}/Momentum": np.zeros_like(value) for name, value in named.items() if "moving_" not in name}
    return save(prefix, named | averages | slots | {"global_step": np.int64(700), "beta1_power": np.float32(0.9)})


def save_objects(prefix: Path, weights: Weights, ema: Mapping[str, np.ndarray], slots: Sequence[str]) -> str:
    """Writes a TF2 checkpoint of a compiled model: keys are paths of objects, names are in the graph of objects."""
    proto = trackable_object_graph_pb2.TrackableObjectGraph()
    tensors: dict[str, Any] = {}
    for number, (name, value) in enumerate(weights.items()):
        key = f"layers/{number}/w"
        proto.nodes.add().attributes.add(name="VARIABLE_VALUE", full_name=name, checkpoint_key=key + VALUE)
        tensors[key + VALUE] = value
        for slot in [*slots, *(["average"] if name in ema else [])]:
            slot_key = f"{key}/.OPTIMIZER_SLOT/optimizer/{slot}{VALUE}"
            proto.nodes.add().attributes.add(name="VARIABLE_VALUE", full_name=slot, checkpoint_key=slot_key)
            tensors[slot_key] = ema[name] if slot == "average" else np.zeros_like(value)
    for name in ("optimizer/decay", "optimizer/_optimizer/decay"):
        proto.nodes.add().attributes.add(name="VARIABLE_VALUE", full_name="decay", checkpoint_key=name + VALUE)
        tensors[name + VALUE] = np.float32(0.5)
    return save(prefix, tensors | {"_CHECKPOINTABLE_OBJECT_GRAPH": proto.SerializeToString()})
