"""Checkpoints of TF1: whole models of the oracle, renamed as TF-Slim names them, are the same models."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.interop.od_api.checkpoints.faster_rcnn import FasterRcnnFormat
from detection.interop.od_api.checkpoints.retinanet import RetinaNetFormat
from detection.interop.od_api.checkpoints.slim import from_slim, to_slim
from detection.interop.od_api.checkpoints.ssd import SsdFormat
from detection.models.registry import detector_config
from detection.weights.checkpoint_format import CheckpointFormat
from detection.weights.imported_model import ImportedModel, import_model
from detection.weights.weight_source import WeightSource
from schemas.errors import DataError
from tests.detection.interop.od_api.oracle import read_oracle
from tests.detection.interop.od_api.original_faster_rcnn import slim_name
from tests.detection.interop.od_api.test_backbones import network_config, write

MODELS: dict[str, tuple[str, type[CheckpointFormat], str]] = {
    "ssd_resnet50_v1_fpn": ("retinanet-r50", RetinaNetFormat, "FeatureExtractor/resnet_v1_50/"),
    "ssd_mobilenet_v1_fpn": ("ssd-mobilenet-v1-fpn", RetinaNetFormat, "FeatureExtractor/MobilenetV1/"),
    "ssd_mobilenet_v2_fpnlite": ("ssd-mobilenet-v2-fpnlite", RetinaNetFormat, "FeatureExtractor/MobilenetV2/"),
    "ssd_mobilenet_v2": ("ssd-mobilenet-v2", SsdFormat, "FeatureExtractor/MobilenetV2/"),
    "faster_rcnn_resnet50_v1": ("faster-rcnn-r50-c4", FasterRcnnFormat, ""),
}
_SHARED = "WeightSharedConvolutionalBoxPredictor/"
# Expressions of TF2's layers, and TF1's scopes; {} is the feature extractor's.
LAYERS = (
    (r"conv1(?:_bn)?", "{}Conv2d_0"),
    (r"conv_dw_(\d+)(?:_bn)?", r"{}Conv2d_\1_depthwise"),
    (r"conv_pw_(\d+)(?:_bn)?", r"{}Conv2d_\1_pointwise"),
    (r"(?:bn_)?Conv1", "{}Conv"),
    (r"Conv_1(?:_bn)?", "{}Conv_1"),
    (r"expanded_conv_(\w+?)(?:_BN)?", r"{}expanded_conv/\1"),
    (r"block_(\d+)_(\w+?)(?:_BN)?", r"{}expanded_conv_\1/\2"),
    (r".*top_down/(projection_\d+)", r"{}fpn/\1"),
    (r".*top_down/(smoothing_\d+)_(?:depthwise_)?(?:conv|batchnorm)", r"{}fpn/\1"),
    (r".*(bottom_up_(?:block|Conv2d_)\d+)_(?:depthwise_)?(?:conv|batchnorm)", r"{}fpn/\1"),
    (r".*FeatureMaps/(layer_\w+?)_(?:conv|batchnorm)", r"{}\1"),
    (r"FirstStageBoxPredictor/Convolutional\w+_0/(\w+)", r"FirstStageBoxPredictor/\1"),
    (r"BoxPredictor/Convolutional\w+_(\d+)/(\w+)", r"BoxPredictor_\1/\2"),
    (r".*WeightSharedConvolutional\w+Head/(\w+)", rf"{_SHARED}\1"),
    (r".*/((?:Class|Box|)PredictionTower/\w+(?:/BatchNorm/\w+)?)", rf"{_SHARED}\1"),
    (r".*(BoxEncodingPredictor|ClassPredictor)_dense", r"SecondStageBoxPredictor/\1"),
    (r".*RPNConv", "Conv"),
)
VARIABLES = {"kernel": "weights", "bias": "biases"} | {
    f"{one}_kernel": f"{one}_weights" for one in ("depthwise", "pointwise")
}


def tf1_name(name: str, extractor: str) -> str:
    """TF1's name of a variable of TF2."""
    layer, _, variable = name.rpartition("/")
    if re.fullmatch(r"conv\d(_block\d+)?.*_(conv|bn)", layer):
        theirs = slim_name(name)
        return theirs.replace("FirstStageFeatureExtractor/", extractor or "FirstStageFeatureExtractor/").replace(
            "SecondStageFeatureExtractor/", extractor or "SecondStageFeatureExtractor/"
        )
    for expression, scope in LAYERS:
        match = re.fullmatch(expression, layer)
        if match:
            where = match.expand(scope)
            is_norm = variable not in VARIABLES and "BatchNorm" not in where
            return where.format(extractor) + "/" + ("BatchNorm/" * is_norm) + VARIABLES.get(variable, variable)
    raise AssertionError(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "oracle",
    [
        pytest.param(name, marks=pytest.mark.extended) if name in ("ssd_resnet50_v1_fpn", "ssd_mobilenet_v2") else name
        for name in MODELS
    ],
)
def test_a_checkpoint_of_tf1_is_the_model_of_tf2(oracle: str, oracle_dir: Path, tmp_path: Path) -> None:
    name, kind, extractor = MODELS[oracle]
    read = read_oracle(oracle, oracle_dir, tmp_path / "tf2")
    source = WeightSource(read.checkpoint, weights="raw")
    renamed = {tf1_name(one, extractor): source.read(one) for one in source.shapes}
    assert len(renamed) == len(source.shapes)
    config = network_config(name, **{"model.image_size": read.image_size})
    if oracle == "faster_rcnn_resnet50_v1":
        config = import_model(kind, read.checkpoint, config).config
    first = import_model(kind, read.checkpoint, config)
    found = import_model(kind, write(renamed, tmp_path / "tf1" / "model.ckpt"), config)
    assert found.raw.keys() == first.raw.keys()
    assert (found.config, found.categories, found.unused) == (first.config, first.categories, ())
    for path, value in found.raw.items():
        np.testing.assert_array_equal(value, first.raw[path], err_msg=path)
    # And back: TF1's names by those of TF2.
    for ours in (
        kind({}, "").sources({path: value.shape for path, value in first.raw.items()}, config_of(first)).values()
    ):
        for one in ours.names:
            theirs = to_slim(one)
            assert theirs is not None, one
            assert from_slim(theirs) == one


def config_of(model: ImportedModel) -> Any:
    settings = model.config.model
    return detector_config(settings.name, image_size=settings.image_size, overrides=settings.overrides)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("FeatureExtractor/InceptionV2/InceptionV2/Conv2d_1a_7x7/weights", "an Inception"),
        ("FeatureExtractor/MobilenetV3/Conv/weights", "a MobileNet V3"),
        ("FirstStageFeatureExtractor/cell_0/comb_iter_0/left/weights", "a NASNet"),
        ("FirstStageFeatureExtractor/InceptionResnetV2/Conv2d_1a_3x3/weights", "an Inception-ResNet"),
    ],
)
@pytest.mark.parametrize("kind", [FasterRcnnFormat, SsdFormat, RetinaNetFormat])
def test_networks_that_are_not_here_are_refused_by_name(kind: type[CheckpointFormat], name: str, network: str) -> None:
    with pytest.raises(DataError, match=f"the network is {network}"):
        kind({name: (1,)}, "it").structure()
