"""Losses in training and inference of checkpoints whose statistics or EMA weights were spoiled on purpose."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detection.input_pipeline.training_batches import Batch
from detection.models.detector import variables_by_path
from detection.models.layers.batch_norm import BatchNormalization
from detection.training import train as training
from detection.training.validation import inference_gap
from detection.training.validation.inference_gap import ModeLosses, explain_gap, mode_losses
from detection.types import Labels
from schemas.artifacts import EMA_PART, LOGS, MODEL_PART
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_detector import TinyConfig, TinyDetector
from tests.detection.training.tiny_run import SMALL, run

CLASSES = 3


def _detector() -> TinyDetector:
    return TinyDetector(config=TinyConfig(), num_classes=CLASSES, name="tiny")


def _batch() -> Batch:
    random = np.random.default_rng(0)
    boxes = np.tile(np.array([4.0, 6.0, 20.0, 28.0], np.float32), (8, 1, 1))
    labels = Labels(
        tf.constant(boxes), tf.constant(random.integers(0, CLASSES, (8, 1)), tf.int32), tf.ones([8, 1], bool)
    )
    images = tf.constant(random.normal(2.0, 3.0, (8, 32, 32, 3)), tf.float32)
    return Batch(images, labels, tf.zeros([8], tf.int32))


@pytest.fixture(scope="module")
def trained() -> TinyDetector:
    """A detector that has learned the batch by heart; its moving statistics are those of the batch."""
    tf.keras.utils.set_random_seed(0)
    detector, batch = _detector(), _batch()
    for layer in detector._flatten_layers():
        if isinstance(layer, BatchNormalization):
            layer.momentum = 0.0
    optimizer = tf.keras.optimizers.Adam(0.05)
    for _ in range(60):
        with tf.GradientTape() as tape:
            loss = tf.add_n(list(detector.losses(detector(batch.images, training=True), batch.labels).values()))
        optimizer.apply(
            tape.gradient(loss, [v.value for v in detector.trainable_variables]), detector.trainable_variables
        )
    detector(batch.images, training=True)
    return detector


Spoil = Callable[[dict[str, tf.Variable], dict[str, tf.Variable]], None]


def _checkpoint(folder: Path, trained: TinyDetector, spoil: Spoil = lambda raw, ema: None) -> str:
    raw, ema = (
        {path: tf.Variable(variable) for path, variable in variables_by_path(trained.variables).items()}
        for _ in range(2)
    )
    spoil(raw, ema)
    return str(tf.train.Checkpoint(**{MODEL_PART: raw, EMA_PART: ema}).write(str(folder / "ckpt-7")))


def _spoil_statistics(raw: dict[str, tf.Variable], ema: dict[str, tf.Variable]) -> None:
    for weights in (raw, ema):
        for path, variable in weights.items():
            if path.endswith("moving_mean"):
                variable.assign(tf.zeros_like(variable))
            elif path.endswith("moving_variance"):
                variable.assign(tf.ones_like(variable))


def _spoil_ema(raw: dict[str, tf.Variable], ema: dict[str, tf.Variable]) -> None:
    for path, variable in ema.items():
        if "head" in path:
            variable.assign(tf.zeros_like(variable))


def test_a_healthy_checkpoint_has_equal_losses_and_nothing_to_explain(tmp_path: Path, trained: TinyDetector) -> None:
    losses = mode_losses(_detector(), _checkpoint(tmp_path, trained), [_batch()], trained=trained, ema=True)
    # Moving variances have Bessel's correction, which is below 0.3 % for 8 x 8 x 8 values.
    assert [losses.raw, losses.ema] == pytest.approx([losses.training] * 2, rel=0.02)
    assert explain_gap(losses) is None


@pytest.mark.parametrize(
    ("spoil", "cause", "remedy"),
    [
        (_spoil_statistics, "batch norm's moving statistics lag", "model.overrides.batch_norm.momentum"),
        (_spoil_ema, "the EMA weights lag", "train.ema.decay"),
    ],
)
def test_the_cause_is_named(tmp_path: Path, trained: TinyDetector, spoil: Spoil, cause: str, remedy: str) -> None:
    healthy = mode_losses(_detector(), _checkpoint(tmp_path, trained), [_batch()], trained=trained, ema=True)
    path = _checkpoint(tmp_path, trained, spoil)
    losses = mode_losses(_detector(), path, [_batch()], trained=trained, ema=True)
    assert losses.training == healthy.training
    explanation = explain_gap(losses)
    assert explanation is not None
    assert explanation.startswith(cause)
    assert remedy in explanation
    assert f"{losses.raw:.3g}" in explanation


def test_without_ema_weights_the_raw_ones_are_compared(tmp_path: Path, trained: TinyDetector) -> None:
    losses = mode_losses(
        _detector(), _checkpoint(tmp_path, trained, _spoil_ema), [_batch()], trained=trained, ema=False
    )
    assert losses.ema is None
    assert explain_gap(losses) is None


def test_a_loss_that_is_not_finite_is_a_gap() -> None:
    assert "batch norm" in str(explain_gap(ModeLosses(1.0, float("nan"), None)))


def test_fixed_statistics_are_those_of_training(tmp_path: Path, trained: TinyDetector) -> None:
    frozen = _detector()
    for layer in frozen._flatten_layers():
        if isinstance(layer, BatchNormalization):
            layer.fixed_statistics = True
    path = _checkpoint(tmp_path, trained, _spoil_statistics)
    losses = mode_losses(_detector(), path, [_batch()], trained=frozen, ema=False)
    assert losses.training == losses.raw


def test_neither_the_run_s_detector_nor_statistics_change(tmp_path: Path, trained: TinyDetector) -> None:
    detector, path = _detector(), _checkpoint(tmp_path, trained)
    before = [variable.numpy() for variable in trained.variables]
    mode_losses(detector, path, [_batch()], trained=trained, ema=False)
    for model in (trained, detector):  # the detector has the checkpoint's raw weights
        for variable, value in zip(model.variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


@pytest.mark.slow
def test_a_run_writes_the_losses_and_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_gap, "FAR_ABOVE", 0.0)  # every run has a gap
    monkeypatch.setattr(training, "MIN_COMPARED_STEPS", 4)
    tiny_detector.register()
    shards = write_shards(tmp_path, rectangles(8))
    with mock.patch.object(training, "export_checkpoint"):
        run(tmp_path / "out", shards, *SMALL)
    events = EventAccumulator(str(tmp_path / "out" / LOGS), size_guidance={"tensors": 0}).Reload()
    losses = {
        mode: [
            (event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors(f"final_loss/{mode}")
        ]
        for mode in ("training", "raw", "ema")
    }
    assert {mode: [step for step, _ in values] for mode, values in losses.items()} == {mode: [4] for mode in losses}
    expected = explain_gap(ModeLosses(*(values[0][1] for values in losses.values())))
    assert expected is not None
    assert expected in caplog.messages


@pytest.mark.parametrize(("momentum", "advice"), [(0.99, "Lower model.overrides"), (0.9, "is 0.9 already: train")])
def test_the_advice_is_not_the_momentum_that_is_set(momentum: float, advice: str) -> None:
    assert advice in str(explain_gap(ModeLosses(1.0, 3.0, None), momentum=momentum))
