"""Backbones alone, from which the original's configurations train: what an import reads is what a whole model has."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from detection.interop.od_api.checkpoints.backbones import OdApiFormat
from detection.interop.od_api.checkpoints.centernet import CenterNetFormat
from detection.interop.od_api.checkpoints.efficientdet import EfficientDetFormat
from detection.interop.od_api.checkpoints.faster_rcnn import FasterRcnnFormat
from detection.interop.od_api.checkpoints.retinanet import RetinaNetFormat
from detection.interop.od_api.checkpoints.ssd import SsdFormat
from detection.training.build_step import initialize_from_config, state_from_config
from detection.training.engine.state import TrainState
from detection.training.resolve import assumed
from detection.weights.imported_model import ImportedModel, import_model
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import DataError
from tests.detection.interop.od_api.oracle import read_oracle

pytestmark = pytest.mark.slow

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class Network(NamedTuple):
    """A model of the oracle: its name here, its format, and the object that holds its backbone."""

    name: str
    kind: type[OdApiFormat]
    backbone: str = "_feature_extractor/classification_backbone"


NETWORKS = {
    "ssd_resnet50_v1_fpn": Network("retinanet-r50", RetinaNetFormat),
    "ssd_mobilenet_v1_fpn": Network("ssd-mobilenet-v1-fpn", RetinaNetFormat),
    "ssd_mobilenet_v2": Network("ssd-mobilenet-v2", SsdFormat),
    "ssd_efficientdet_d0": Network("efficientdet-d0", EfficientDetFormat, "_feature_extractor/_efficientnet"),
    "centernet_resnet50_v1_fpn": Network("centernet-r50", CenterNetFormat, "_feature_extractor/_base_model"),
    "centernet_mobilenetv2_fpn_kpts": Network(
        "centernet-mobilenet-v2-kpts", CenterNetFormat, "_feature_extractor/_base_model"
    ),
    "centernet_hourglass104": Network("centernet-hourglass-104", CenterNetFormat, "_feature_extractor/_network"),
}
# The largest; ResNet-50 is below, too.
EXTENDED = ("ssd_resnet50_v1_fpn", "ssd_mobilenet_v1_fpn", "centernet_resnet50_v1_fpn", "centernet_hourglass104")
CASES = [pytest.param(name, marks=pytest.mark.extended) if name in EXTENDED else name for name in NETWORKS]


def write(values: Mapping[str, np.ndarray], prefix: Path) -> str:
    """Writes a checkpoint of these names, without a graph of objects."""
    prefix.parent.mkdir(parents=True)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )
    return str(prefix)


def backbone_values(checkpoint: Path, scope: str) -> dict[str, np.ndarray]:
    """The values below an object of a checkpoint, by their paths below it."""
    reader, start = tf.train.load_checkpoint(str(checkpoint)), f"model/{scope}/"
    paths = [
        key.removeprefix(start).removesuffix(_VALUE)
        for key in reader.get_variable_to_shape_map()
        if key.startswith(start) and ".OPTIMIZER" not in key
    ]
    return {path: reader.get_tensor(f"{start}{path}{_VALUE}") for path in paths}


def network_config(name: str, **flags: Any) -> Config:
    return load_config(None, [f"model.name={name}", *(f"{key}={value}" for key, value in flags.items())])


@pytest.mark.parametrize("oracle", CASES)
def test_a_backbone_alone_has_the_values_of_a_whole_model(oracle: str, oracle_dir: Path, tmp_path: Path) -> None:
    network = NETWORKS[oracle]
    read = read_oracle(oracle, oracle_dir, tmp_path / "whole")
    values = backbone_values(read.checkpoint, network.backbone)
    config = network_config(network.name)
    whole = import_model(network.kind, read.checkpoint, config)
    config = whole.config  # its network, so that the other variables are the same
    # Paths of objects, and layers of a classifier that follow the backbone's.
    last = 1 + max((int(path.split("/")[0].rpartition("-")[2]) for path in values if "-" in path), default=0)
    counted = {f"feature_extractor/{path}{_VALUE}": value for path, value in values.items()}
    if oracle != "centernet_hourglass104":
        counted[f"feature_extractor/layer_with_weights-{last}/kernel{_VALUE}"] = np.zeros([8, 10], np.float32)
    _require_same(import_model(network.kind, write(counted, tmp_path / "counted" / "ckpt-1"), config), whole)
    layers = json.loads((oracle_dir / "od_api" / "layer_names.json").read_text()).get(oracle, {}).get(network.backbone)
    if layers is not None:
        named = {
            f"{layers[int(layer.rpartition('-')[2])]}/{variable}": value
            for (layer, _, variable), value in ((path.partition("/"), value) for path, value in values.items())
        }
        _require_same(import_model(network.kind, write(named, tmp_path / "named" / "model"), config), whole)


def _require_same(alone: ImportedModel, whole: ImportedModel) -> None:
    assert alone.categories is None
    assert set(alone.raw) | set(alone.missing) == set(whole.raw)
    assert not any("stem" in path or "blocks_" in path or "conv5_" in path for path in alone.missing)
    for path, value in alone.raw.items():
        np.testing.assert_array_equal(value, whole.raw[path], err_msg=path)


@pytest.fixture(scope="module")
def resnet(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ResNet-50 alone, by the paths of objects."""
    folder = tmp_path_factory.mktemp("resnet")
    read = read_oracle("ssd_resnet50_v1_fpn", oracle_dir, folder / "whole")
    values = backbone_values(read.checkpoint, NETWORKS["ssd_resnet50_v1_fpn"].backbone)
    values = {f"feature_extractor/{path}{_VALUE}": value for path, value in values.items()}
    return write(values, folder / "alone" / "resnet50.ckpt-1")


@pytest.mark.parametrize(
    ("name", "kind"), [("retinanet-r50", RetinaNetFormat), ("faster-rcnn-r50-c4", FasterRcnnFormat)]
)
def test_a_resnet_starts_detectors_of_two_families(name: str, kind: type[OdApiFormat], resnet: str) -> None:
    model = import_model(kind, resnet, network_config(name))
    assert model.categories is None
    reader = tf.train.load_checkpoint(resnet)
    theirs = [reader.get_tensor(key) for key in reader.get_variable_to_shape_map()]
    sums = [sorted(float(value.sum()) for value in values) for values in (theirs, model.raw.values())]
    assert sums[0] == sums[1]
    for path, place in {
        "stem/conv2d/kernel": 0,
        "conv2_1/shortcut_conv2d/kernel": 6,
        "conv5_3/conv2d_3/kernel": 104,
    }.items():
        there = reader.get_tensor(f"feature_extractor/layer_with_weights-{place}/kernel{_VALUE}")
        np.testing.assert_array_equal(model.raw[f"resnet-50/{path}"], there)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("retinanet-r101", RetinaNetFormat, "is of resnet-50 alone, but retinanet-r101 has resnet-101"),
        ("ssd-mobilenet-v2", SsdFormat, "is of resnet-50 alone, but ssd-mobilenet-v2 has mobilenet-v2"),
        ("efficientdet-d0", EfficientDetFormat, "is of resnet-50 alone, but efficientdet-d0 has efficientnet-b0"),
        ("centernet-r18", CenterNetFormat, "is of resnet-50 alone, but centernet-r18 has resnet-18"),
    ],
)
def test_another_backbone_is_refused_by_its_name(name: str, kind: type[OdApiFormat], message: str, resnet: str) -> None:
    with pytest.raises(DataError, match=message):
        import_model(kind, resnet, network_config(name))


def _initialized(config: Config) -> TrainState:
    strategy = tf.distribute.get_strategy()
    categories = [{"id": 1, "name": "raccoon"}]
    config = assumed(config, replicas=1)
    state = state_from_config(config, categories, strategy=strategy)
    initialize_from_config(config, state, categories, strategy=strategy, start_step=0, base_model=None)
    return state


@pytest.mark.parametrize("fine_tune_type", ["classification", "detection"])
def test_a_training_starts_from_the_file_itself(
    fine_tune_type: str, oracle_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = read_oracle("ssd_mobilenet_v2", oracle_dir, tmp_path / "whole")
    values = backbone_values(read.checkpoint, NETWORKS["ssd_mobilenet_v2"].backbone)
    prefix = write({f"feature_extractor/{path}{_VALUE}": value for path, value in values.items()}, tmp_path / "a" / "m")
    init = {"train.init.checkpoint": prefix, "train.init.fine_tune_type": fine_tune_type}
    with caplog.at_level(logging.INFO, "cocoflow"):
        state = _initialized(network_config("ssd-mobilenet-v2", **init))
    whole = import_model(SsdFormat, read.checkpoint, network_config("ssd-mobilenet-v2"))
    for variable in state.model.backbone_variables:
        np.testing.assert_array_equal(variable.numpy(), whole.raw[variable.path], err_msg=variable.path)
    fresh = [one for one in state.model.variables if one.path not in {v.path for v in state.model.backbone_variables}]
    assert fresh
    assert "one of the Object Detection API" in caplog.text
    assert "different" not in caplog.text


def test_a_training_starts_from_a_whole_model(
    oracle_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = read_oracle("ssd_mobilenet_v2", oracle_dir, tmp_path)
    flags = {"batch_norm.epsilon": 0.01, "loss.background_class": True}
    config = network_config(
        "ssd-mobilenet-v2",
        **{"train.init.checkpoint": read.checkpoint},
        **{f"model.overrides.{key}": value for key, value in flags.items()},
    )
    with caplog.at_level(logging.INFO, "cocoflow"):
        state = _initialized(config)
    whole = import_model(SsdFormat, read.checkpoint, config)
    loaded = [one for one in state.model.variables if "class-p" not in one.path]
    assert len(loaded) < len(state.model.variables)
    for variable in loaded:
        np.testing.assert_array_equal(variable.numpy(), whole.raw[variable.path], err_msg=variable.path)
