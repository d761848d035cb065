"""The whole training step of every detector compiles under XLA with static shapes; a CPU stands in for a TPU.

From images to detections: see `test_compiles_under_xla` in the detectors' harness.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.training.build_step import state_from_config, train_loop_from_config
from detection.training.resolve import assumed
from detection.types import Labels
from schemas.config.config import Config
from schemas.config.config_io import load_config
from tests.detection.families import smallest_detectors

BATCH, SIDE = 2, 64
# Overrides make a network smaller where its depth teaches nothing new.
OVERRIDES = {
    "efficientdet-nano": "{fpn_filters: 16, fpn_cells: 1, head_layers: 1, min_level: 4, max_level: 5}",
    "mask-rcnn-nano": "{fpn_filters: 16, fc_layers: 1, fc_units: 16, mask_layers: 1, mask_filters: 16, min_level: 4, "
    "anchor_scale: 1.0, train_post_nms_top_k: 30, roi_samples: 32}",
}

# Their class is EfficientDet's.
DENSE = ("retinanet-nano", "ssd-nano")

pytestmark = pytest.mark.slow


def _config(name: str, precision: str) -> Config:
    keys = (
        f"model.name={name}",
        f"model.image_size={SIDE}",
        f"model.overrides={OVERRIDES.get(name, '{}')}",
        f"train.precision={precision}",
        f"train.batch_size={BATCH}",
        "train.jit_compile=true",
        "train.schedule.warmup_steps=0",
    )
    return assumed(load_config(None, keys), replicas=1)


def _batches() -> tf.data.Dataset:
    boxes = tf.constant([[[8.0, 10.0, 40.0, 44.0], [20.0, 4.0, 60.0, 30.0]]] * BATCH)
    masks = tf.ones([BATCH, 2, 28, 28], tf.uint8)
    labels = Labels(boxes, tf.constant([[0, 2]] * BATCH), tf.constant([[True, True], [True, False]]), masks)
    batch = Batch(tf.random.stateless_normal([BATCH, SIDE, SIDE, 3], [0, 0]), labels, tf.zeros([BATCH], tf.int32))
    return tf.data.Dataset.from_tensors(batch).repeat()


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.extended)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.extended) if name in DENSE else name for name in smallest_detectors()]
)
def test_the_training_step_compiles_and_changes_all_weights(name: str, precision: str) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    config = _config(name, precision)
    state = state_from_config(config, [{}] * 3, strategy=strategy)
    loop = train_loop_from_config(config.train, state, strategy=strategy)
    before = {variable.path: variable.numpy() for variable in state.model.variables}
    report = loop(iter(strategy.distribute_datasets_from_function(lambda context: _batches())), 2)
    assert (report.steps, report.skipped) == (2, 0)
    assert math.isfinite(report.last["loss"])
    after = {variable.path: variable.numpy() for variable in state.model.variables}
    changed = {path for path, value in after.items() if not np.array_equal(value, before[path])}
    assert changed  # of a detector without kernels
    assert {path for path in after if path.endswith(("kernel", "moving_mean"))} <= changed
