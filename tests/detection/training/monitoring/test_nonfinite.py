"""What a run says, saves and leaves when a step is not finite."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detection.input_pipeline.record_order import epoch_permutation
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import InputOptions
from detection.training.engine.loop import LoopReport
from detection.training.monitoring.nonfinite import NonFiniteSteps
from detection.training.monitoring.step_batches import StepBatches
from schemas.artifacts import CHECKPOINTS, NONFINITE, SAVED_MODEL
from schemas.errors import CocoflowError
from tests.detection.synthetic import CATEGORY_IDS, rectangles, write_shards
from tests.detection.training.poisoned_run import BATCH, RECORDS, image_id, poison, run, write_records
from tests.detection.training.tiny_run import only_steps

ORDER = epoch_permutation(0, 0, RECORDS)
WHITE = int(ORDER[BATCH + 1])  # in the second batch of the first epoch, its second image


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    poison(monkeypatch)
    return write_records(tmp_path, WHITE)


def _reading(value: Any) -> list[str]:
    return [str(entry) for entry in value]


def test_a_run_that_diverges_names_step_images_and_checkpoint_and_saves_the_batch(
    shards: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    expected = [int(index) for index in ORDER[BATCH : 2 * BATCH]]
    with pytest.raises(CocoflowError, match="training diverged: the loss is not finite at step 2") as caught:
        run(output, shards)
    message = str(caught.value)
    for words in ("class_loss nan", "learning_rate 0.", f"{image_id(WHITE)} (image_{WHITE}.png)", "train.clip"):
        assert words in message
    assert f"last good checkpoint is {output / CHECKPOINTS / 'ckpt-1'}." in message
    saved = output / NONFINITE / "step-2"
    assert f"saved in {saved}" in message
    with np.load(saved / "batch.npz") as batch:
        assert _reading(batch["image_id"]) == [image_id(index) for index in expected]
        assert _reading(batch["file_name"]) == [f"image_{index}.png" for index in expected]
        np.testing.assert_array_equal(batch["images"].mean(axis=(1, 2, 3)) > 2.0, [False, True, False, False])
        boxes = batch["boxes"][batch["valid"]]
        assert boxes.shape == (4, 4)
        # Mirrored or not, y is what was written.
        np.testing.assert_allclose(boxes[:, [0, 2]], [[4, 20]] * 4, atol=1e-4)
        np.testing.assert_array_equal(batch["classes"][batch["valid"]], [index % 3 for index in expected])
    with Image.open(saved / "batch.png") as picture:
        assert min(picture.size) > 32
    assert sorted(path.name for path in (output / CHECKPOINTS).glob("*.index")) == ["ckpt-1.index"]
    assert not (output / SAVED_MODEL).exists()


def test_with_skipping_the_run_ends_well_and_tells(
    shards: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "run"
    with caplog.at_level(logging.WARNING, "cocoflow.trainer"), only_steps():
        run(output, shards, "train.nonfinite.policy=skip")
    told = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert len(told) == 3  # once an epoch
    assert told[0].startswith("1 step(s) skipped: the loss is not finite at step 2")
    assert (output / CHECKPOINTS / "ckpt-6.index").exists()
    assert (output / NONFINITE / "step-2" / "batch.npz").exists()


def _steps(tmp_path: Path, output: Path, *, writes: bool = True) -> NonFiniteSteps:
    options = InputOptions(
        image_size=(32, 32),
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        category_ids=CATEGORY_IDS,
        max_instances=5,
        horizontal_flip=False,
        scale_min=1.0,
        scale_max=1.0,
    )
    batches = StepBatches(RecordReader(write_shards(tmp_path, rectangles(12))), options, seed=0, batch_size=10)
    categories = [{"id": number, "name": str(number)} for number in CATEGORY_IDS]
    return NonFiniteSteps(batches, categories, output, writes=writes)


def _report(*, halted: bool, step: int = 0, **scalars: float) -> LoopReport:
    return LoopReport(
        steps=0,
        sums={},
        counts={},
        last={},
        skipped=1,
        bad_step=step,
        bad={"loss": math.nan} | scalars,
        halted=halted,
        seconds=1.0,
        waited=0.0,
        ended_at=0.0,
        histograms={},
    )


def _save(folder: Path, step: int, value: float) -> None:
    weight = tf.Variable([1.0, value])
    tf.train.Checkpoint(weight=weight, step=tf.Variable(step)).write(str(folder / CHECKPOINTS / f"ckpt-{step}"))


def test_checkpoints_with_weights_that_are_not_finite_are_to_be_removed(tmp_path: Path) -> None:
    for step, value in ((10, 2.0), (20, 3.0), (30, math.inf), (40, math.nan)):
        _save(tmp_path, step, value)
    with pytest.raises(CocoflowError, match="is not finite at step 42") as caught:
        _steps(tmp_path, tmp_path).check(_report(halted=True, step=41))
    assert f"the last good checkpoint is {tmp_path / CHECKPOINTS / 'ckpt-20'}." in str(caught.value)
    assert "Remove ckpt-30, ckpt-40 first: it has non-finite weights." in str(caught.value)


def test_without_a_checkpoint_there_is_none_to_name(tmp_path: Path) -> None:
    with pytest.raises(CocoflowError, match="there is no good checkpoint yet"):
        _steps(tmp_path, tmp_path).check(_report(halted=True))


def test_images_without_an_id_are_named_by_their_record_and_of_many_some(tmp_path: Path) -> None:
    with pytest.raises(CocoflowError, match=r"data-0000\d-of-00002: record \d, .*, \.\.\.\.") as caught:
        _steps(tmp_path, tmp_path).check(_report(halted=True))
    assert str(caught.value).count(": record ") == 8


def test_a_gradient_is_called_one(tmp_path: Path) -> None:
    report = _report(halted=True, loss=1.5, gradient_norm=math.inf)
    with pytest.raises(CocoflowError, match=r"the gradient is not finite at step 1 \(loss 1.5, gradient_norm inf\)"):
        _steps(tmp_path, tmp_path).check(report)


def test_only_the_chief_writes_and_only_some_batches(tmp_path: Path) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    _steps(tmp_path, other, writes=False).check(_report(halted=False))
    assert not other.exists()
    steps = _steps(tmp_path, chief)
    for step in range(7):
        steps.check(_report(halted=False, step=step))
    assert len(list((chief / NONFINITE).iterdir())) == 5


def test_a_finite_report_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _steps(tmp_path, tmp_path).check(_report(halted=False)._replace(skipped=0, bad_step=None, bad={}))
    assert not caplog.records
