"""Detectors of converted configurations are built at a small size, and take a training step."""

import math
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.interop.od_api.configuration.pipeline_config import NETWORKS, convert_pipeline_config
from detection.training.build_step import state_from_config, train_loop_from_config
from detection.training.resolve import assumed
from detection.types import Labels
from schemas.config.config import Config
from schemas.config.config_io import parse_config
from schemas.config.section import nested
from tests.detection.interop.od_api.test_pipeline_config import zoo_texts

BATCH = 2
# Of each family, the one with the smallest network; all of the others are `extended`.
FAST = "ssd_mobilenet_v2_320x320_coco17_tpu-8"
CONVERTED = (
    "center_net_deepmac_512x512_voc_only_tpu-32",
    "centernet_hourglass104_1024x1024_coco17_tpu-32",
    "centernet_hourglass104_512x512_coco17_tpu-8",
    "centernet_resnet50_v1_fpn_512x512_kpts_coco17_tpu-8",
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
    keys |= {"model.image_size": side, "model.weights": "none", "train.batch_size": BATCH, "train.run_eagerly": True}
    return assumed(parse_config(nested(keys)), replicas=1)


def test_all_converted_configurations_are_here(oracle_dir: Path) -> None:
    kinds = tuple(f"{quote}{kind}{quote}" for kind in NETWORKS for quote in "\"'")
    assert {name for name, text in zoo_texts(oracle_dir).items() if any(kind in text for kind in kinds)} == set(
        CONVERTED
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == FAST else pytest.mark.extended) for name in CONVERTED]
)
def test_a_step_of_each_converted_configuration(name: str, oracle_dir: Path) -> None:
    config = _small(zoo_texts(oracle_dir)[name])
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    state = state_from_config(config, [{"keypoints": ["nose", "tail"]}, {}, {}], strategy=strategy)
    loop = train_loop_from_config(config.train, state, strategy=strategy)
    boxes = tf.constant([[[8.0, 10.0, 60.0, 84.0], [20.0, 4.0, 120.0, 90.0]]] * BATCH)
    keypoints = tf.fill([BATCH, 2, 2, 3], 30.0)
    labels = Labels(boxes, tf.constant([[0, 2]] * BATCH), tf.constant([[True, True]] * BATCH), keypoints=keypoints)
    batch = Batch(
        tf.random.stateless_normal([BATCH, *state.model.image_size, 3], [0, 0]), labels, tf.zeros([BATCH], tf.int32)
    )
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    report = loop(iter(strategy.distribute_datasets_from_function(lambda context: dataset)), 1)
    assert (report.steps, report.skipped) == (1, 0)
    assert math.isfinite(report.last["loss"])
