"""The whole training step of every detector compiles under XLA with static shapes; a CPU stands in for a TPU.

What XLA cannot compile is trained without it.
"""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.training.build_step import state_from_config, train_loop_from_config, without_xla
from detection.training.resolve import assumed
from detection.types import Labels
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import DataError
from tests.detection.families import smallest_detectors
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_loop import assert_equal
from tests.detection.training.tiny_run import SMALL, checkpoint_values, run, tiny_config

BATCH, SIDE = 2, 64
# Overrides make a network smaller where its depth teaches nothing new.
OVERRIDES = {
    "efficientdet-nano": "{neck: {filters: 16, cells: 1}, head: {layers: 1}, min_level: 4, max_level: 5}",
    "mask-rcnn-nano": "{neck: {filters: 16}, box_head: {layers: 1, units: 16}, mask_head: {layers: 1, filters: 16}, "
    "min_level: 4, anchors: {scale: 1.0}, rpn: {train: {post_nms_top_k: 30}}, roi: {sampling: {count: 32}}}",
}

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


# Gradients and detections: `test_compiled.py` of the detectors; the rest of the step: `test_accumulation.py`.
@pytest.mark.extended
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", smallest_detectors())
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


def test_a_step_with_an_op_that_xla_cannot_compile_is_trained_without_xla(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_detector.register()
    losses = tiny_detector.TinyDetector.losses

    def with_text(self: Any, outputs: tf.Tensor, *others: Any, **options: Any) -> dict[str, tf.Tensor]:
        nothing = tf.cast(0 * tf.strings.length(tf.strings.as_string(tf.stop_gradient(outputs[0, 0]))), tf.float32)
        terms = losses(self, outputs, *others, **options)
        return terms | {"class_loss": terms["class_loss"] + nothing}

    monkeypatch.setattr(tiny_detector.TinyDetector, "losses", with_text)
    shards = write_shards(tmp_path, rectangles(10))
    run(tmp_path / "without", shards, *SMALL, "train.jit_compile=false", exports=False)
    with caplog.at_level(logging.WARNING, "cocoflow.trainer"):
        run(tmp_path / "with", shards, *SMALL, "train.jit_compile=true", exports=False)
    told = [message for message in caplog.messages if "XLA" in message]
    assert len(told) == 1
    assert told[0].startswith("XLA cannot compile the training step here (Detected unsupported operations")
    assert_equal(checkpoint_values(tmp_path / "with", 4), checkpoint_values(tmp_path / "without", 4))


def test_other_errors_of_a_training_are_not_xlas() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    config = tiny_config(*SMALL, "train.jit_compile=true")
    failed = tf.errors.InternalError(None, None, "libdevice not found at ./libdevice.10.bc")
    without = without_xla(config, strategy, failed)
    assert without is not None
    assert without.train.jit_compile is False
    assert without_xla(without, strategy, failed) is None
    assert without_xla(config, strategy, tf.errors.InternalError(None, None, "out of range")) is None
    failed.__cause__ = DataError("XLA.jpg: no such file")
    assert without_xla(config, strategy, failed) is None
