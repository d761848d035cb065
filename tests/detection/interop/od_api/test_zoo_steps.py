"""Detectors of converted configurations are built at a small size, and take a training step."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.interop.od_api.checkpoints.efficientdet import EfficientDetFormat
from detection.interop.od_api.checkpoints.formats import FORMATS
from detection.interop.od_api.checkpoints.layers import keras_layers
from detection.interop.od_api.configuration.pipeline_config import NETWORKS, convert_pipeline_config
from detection.models.backbones.resnet import RESNETS_V2
from detection.training.build_step import initialize_from_config, state_from_config, train_loop_from_config
from detection.training.engine.state import TrainState
from detection.training.resolve import assumed
from detection.types import Labels
from schemas.config.config import Config
from schemas.config.config_io import parse_config
from schemas.config.section import merged, nested
from tests.detection.interop.od_api.test_backbones import write
from tests.detection.interop.od_api.test_pipeline_config import zoo_texts

BATCH = 2
# Of each family, the one with the smallest network; all of the others are `extended`.
FAST = "ssd_mobilenet_v2_320x320_coco17_tpu-8"
CONVERTED = (
    "center_net_deepmac_512x512_voc_only_tpu-32",
    "centernet_hourglass104_1024x1024_coco17_tpu-32",
    "centernet_hourglass104_512x512_coco17_tpu-8",
    "centernet_resnet101_v1_fpn_512x512_coco17_tpu-8",  # whose ResNet is a v2
    "centernet_resnet50_v1_fpn_512x512_kpts_coco17_tpu-8",
    "centernet_resnet50_v2_512x512_kpts_coco17_tpu-8",
    *(
        f"faster_rcnn_resnet{depth}_v1_{kind}"
        for depth in (50, 101, 152)
        for kind in ("640x640_coco17_tpu-8", "1024x1024_coco17_tpu-8", "800x1333_coco17_gpu-8")
    ),
    "faster_rcnn_resnet50_v1_fpn_640x640_coco17_tpu-8",
    *(
        f"ssd_efficientdet_d{number}_{side}x{side}_coco17_tpu-{cores}"
        for number, side, cores in (
            (0, 512, 8),
            (1, 640, 8),
            (2, 768, 8),
            (3, 896, 32),
            (4, 1024, 32),
            (5, 1280, 32),
            (6, 1408, 32),
            (7, 1536, 32),
        )
    ),
    "ssd_mobilenet_v1_fpn_640x640_coco17_tpu-8",
    FAST,
    *(f"ssd_mobilenet_v2_fpnlite_{side}x{side}_coco17_tpu-8" for side in (320, 640)),
    *(f"ssd_resnet{depth}_v1_fpn_{side}x{side}_coco17_tpu-8" for depth in (50, 101, 152) for side in (640, 1024)),
)


def _small(text: str) -> Config:
    """The configuration with a small input and no files.

    An hourglass has a single cell per image at 128 pixels: gradients of batch norm over two values overflow.
    """
    side = 256 if "hourglass" in text else 128
    keys: dict[str, Any] = {
        key: value
        for key, value in convert_pipeline_config(text).keys.items()
        if not key.startswith(("model.resize.", "train.init.", "data."))
    }
    keys |= {"model.image_size": side, "train.batch_size": BATCH, "train.run_eagerly": True}
    return assumed(parse_config(nested(keys)), replicas=1)


def _random(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Values with which a deep network does not overflow, also where batch norm has these statistics."""
    if name.endswith("kernel"):
        return random.normal(0.0, float(np.prod(shape[:-1])) ** -0.5, shape).astype(np.float32)
    low = {"moving_variance": 1.0, "gamma": 0.2}.get(name.rpartition("/")[2], 0.0)
    return random.uniform(low, low + 0.05, shape).astype(np.float32)


def _backbone_alone(state: TrainState, folder: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Writes random values of a backbone as the original does, below `feature_extractor` if it has paths of objects.

    Returns the prefix, and the values by our paths.
    """
    detector = state.model
    kind = next(one for one in FORMATS if isinstance(detector.config, one.config_class))
    ours = {variable.path: tuple(variable.shape) for variable in detector.backbone_variables}
    sources = kind({}, "").sources(ours, detector.config)
    random = np.random.default_rng(0)
    named: dict[str, np.ndarray] = {}
    by_path: dict[str, np.ndarray] = {}
    for path, source in sources.items():
        values = [_random(name, shape, random) for name, shape in zip(source.names, source.shapes, strict=True)]
        by_path[path] = source.convert(*values)
        names = [re.sub(r"^model/_feature_extractor/\w+/", "feature_extractor/", name) for name in source.names]
        named.update(zip(names, values, strict=True))
    if kind is EfficientDetFormat:  # from B1 on, blocks follow that no level reads
        named = {f"{layer}/unread": np.zeros([1]) for layer in keras_layers(detector.config.backbone.name)} | named
    if detector.config.backbone.name in RESNETS_V2:
        unread = len(keras_layers(detector.config.backbone.name)) - 1  # after the features
        named[f"feature_extractor/layer_with_weights-{unread}/gamma"] = np.zeros([1])
    return write(named, folder / "backbone" / "ckpt-1"), by_path


def _fine_tune_type(text: str) -> str:
    keys = convert_pipeline_config(text).keys
    assert "PATH_TO_BE_CONFIGURED" in keys["train.init.checkpoint"]
    kind: str = keys["train.init.fine_tune_type"]
    return kind


def test_all_converted_configurations_are_here(oracle_dir: Path) -> None:
    kinds = tuple(f"{quote}{kind}{quote}" for kind in NETWORKS for quote in "\"'")
    assert {name for name, text in zoo_texts(oracle_dir).items() if any(kind in text for kind in kinds)} == set(
        CONVERTED
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == FAST else pytest.mark.extended) for name in CONVERTED]
)
def test_each_converted_configuration_trains_from_a_checkpoint_of_the_kind_that_it_names(
    name: str, oracle_dir: Path, tmp_path: Path
) -> None:
    config = _small(zoo_texts(oracle_dir)[name])
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    categories = [
        {"id": 1, "name": "dog", "keypoints": ["nose", "tail"]},
        {"id": 2, "name": "a"},
        {"id": 3, "name": "b"},
    ]
    state = state_from_config(config, categories, strategy=strategy)
    checkpoint, values = _backbone_alone(state, tmp_path)
    init = {"checkpoint": checkpoint, "fine_tune_type": _fine_tune_type(zoo_texts(oracle_dir)[name])}
    config = parse_config(merged(config.model_dump(exclude_unset=True), {"train": {"init": init}}))
    initialize_from_config(config, state, categories, strategy=strategy, start_step=0, base_model=None)
    for variable in state.model.backbone_variables:
        np.testing.assert_array_equal(variable.numpy(), values[variable.path], err_msg=variable.path)
    loop = train_loop_from_config(config.train, state, strategy=strategy)
    boxes = tf.constant([[[8.0, 10.0, 60.0, 84.0], [20.0, 4.0, 120.0, 90.0]]] * BATCH)
    keypoints = tf.fill([BATCH, 2, 2, 3], 30.0)
    labels = Labels(boxes, tf.constant([[0, 2]] * BATCH), tf.constant([[True, True]] * BATCH), keypoints=keypoints)
    batch = Batch(
        tf.random.stateless_normal([BATCH, *state.model.image_size, 3], [0, 0]), labels, tf.zeros([BATCH], tf.int32)
    )
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    report = loop(iter(strategy.distribute_datasets_from_function(lambda context: dataset)), 2)
    assert (report.steps, report.skipped) == (2, 0)
    assert math.isfinite(report.last["loss"])
