"""Runs that validate: what they leave, what they export, where they stop."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detection.coco import CocoMetrics, evaluate
from detection.inference.formats.saved_model import SavedModelDetector
from detection.inference.mean_losses import mean_losses
from detection.inference.restore import ChosenOn, ExportedFrom, load_trained, read_exported_from
from detection.inference.results import joined
from detection.input_pipeline.evaluation_records import parse_record
from detection.input_pipeline.record_reader import RecordReader
from detection.models import registry
from detection.training import train as training
from detection.training.auto.kept_images import divide
from detection.training.build_run import detector_evaluator_from_config
from detection.training.checkpoints.files import checkpoint_path
from detection.training.validation.history import BestCheckpoint, read_history
from schemas.artifacts import BEST, CHECKPOINTS, HISTORY_JSON, LOGS, METRICS_JSON, SAVED_MODEL, VALIDATION
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError
from tests.detection.synthetic import write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.evaluation_records import CATEGORIES, coco_records, write_coco_shards
from tests.detection.training.tiny_run import checkpoint_values, only_steps

pytestmark = pytest.mark.slow

STEPS = 40
ASSIGNMENTS = (
    "model.name=tiny",
    f"train.steps={STEPS}",
    "train.batch_size=4",
    "train.checkpoint_every=15",
    "train.keep_checkpoints=1",
    "train.optimizer.name=adam",
    "train.schedule.learning_rate=0.05",
    "train.schedule.reference_batch_size=null",
    "train.ema.decay=0.5",
    "train.augment={horizontal_flip: false, scale_min: 1.0, scale_max: 1.0}",
    "evaluate.batch_size=4",
)
METRIC = "train.validation={split: eval, metric: AR10}"


@pytest.fixture(scope="module", autouse=True)
def _losses_unchecked() -> Iterator[None]:
    """Those of inference beside those of training, see `test_inference_gap.py`."""
    with mock.patch.object(training, "check_inference_losses"):
        yield


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_coco_shards(tmp_path_factory.mktemp("train"), 10, alike=True)[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    return write_coco_shards(tmp_path_factory.mktemp("eval"), 7, alike=True)


def _train(output: Path, shards: Sequence[str], validation_shards: Sequence[str], *assignments: str) -> None:
    tiny_detector.register()
    config = load_config(None, [*ASSIGNMENTS, *assignments])
    training.train(config, shards=shards, validation_shards=validation_shards, categories=CATEGORIES, output=output)


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory, shards: list[str], data: Any) -> Path:
    """A run with five validations; `networks.txt` has the number of networks that it built."""
    output = tmp_path_factory.mktemp("validated")
    counted = mock.Mock(wraps=registry.build_detector)
    with mock.patch.object(registry, "build_detector", counted):
        _train(output, shards, data[0], METRIC, "train.validation.every=8")
    (output / "networks.txt").write_text(str(counted.call_count))
    return output


def _evaluated(model: Path, data: tuple[list[str], dict[str, Any]]) -> dict[str, float]:
    return _measured(model, data).by_name


def _measured(model: Path, data: tuple[list[str], dict[str, Any]]) -> CocoMetrics:
    """Metrics of an exported model, measured from outside."""
    reader = RecordReader(data[0])
    images = [parse_record(reader.read(index)).image for index in range(len(reader))]
    rows = joined(SavedModelDetector(folder=model, batch_size=4).detect(images)).rows
    return evaluate(data[1], rows)


def test_every_evaluation_is_kept_and_the_best_is_exported(validated: Path, data: Any) -> None:
    history = read_history(validated / VALIDATION / HISTORY_JSON)
    assert [entry.step for entry in history] == [8, 16, 24, 32, 40]
    values = [entry.metrics["AR10"] for entry in history]
    assert len(set(values)) > 1
    best = history[int(np.argmax(values))]
    assert json.loads((validated / VALIDATION / BEST / METRICS_JSON).read_text())["step"] == best.step
    assert _evaluated(validated / SAVED_MODEL, data) == best.metrics
    assert best.step < STEPS
    chosen_on = ChosenOn("eval", 7, "AR10")
    assert read_exported_from(validated / SAVED_MODEL) == ExportedFrom(best.step, "ema", chosen_on)
    assert load_trained(validated).exported_from == read_exported_from(validated / SAVED_MODEL)
    assert list((validated / LOGS / VALIDATION).glob("events.*"))
    assert [path.name for path in (validated / CHECKPOINTS).glob("*.index")] == ["ckpt-40.index"]


def test_training_validation_and_export_build_two_networks(validated: Path) -> None:
    assert (validated / "networks.txt").read_text() == "2"


def _events(folder: Path) -> dict[str, dict[int, Any]]:
    """Tag -> step -> value."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: {event.step: tf.make_ndarray(event.tensor_proto) for event in events.Tensors(tag)}
        for tag in events.Tags()["tensors"]
    }


def test_tensorboard_shows_what_the_evaluator_shows_of_the_exported_model(validated: Path, data: Any) -> None:
    steps = [entry.step for entry in read_history(validated / VALIDATION / HISTORY_JSON)]
    step = read_exported_from(validated / SAVED_MODEL).step  # type: ignore[union-attr]
    events, training = _events(validated / LOGS / VALIDATION), _events(validated / LOGS)
    reader = RecordReader(data[0])
    records = [reader.read(index) for index in range(len(reader))]
    losses = mean_losses(
        validated / SAVED_MODEL, records, category_ids=[category["id"] for category in CATEGORIES], batch_size=4
    )
    assert losses.keys() == {"class_loss", "box_loss", "loss"}
    tags = {"class_loss": "classification_loss", "box_loss": "localization_loss", "loss": "total_loss"}
    weights = tf.saved_model.load(str(validated / SAVED_MODEL)).weights
    kernels = [np.asarray(value, np.float64) for path, value in weights.items() if path.endswith("kernel")]
    decay = load_config(None, ASSIGNMENTS).train.optimizer.weight_decay
    regularization = decay * sum(np.square(kernel).sum() for kernel in kernels) / 2.0
    assert float(events["Loss/regularization_loss"][step]) == pytest.approx(regularization, rel=1e-5)
    for name, loss in losses.items():
        tag = f"Loss/{tags[name]}"
        assert sorted(events[tag]) == steps
        expected = loss + (regularization if name == "loss" else 0.0)
        assert float(events[tag][step]) == pytest.approx(expected, rel=1e-5)
        assert sorted(training[tag]) == [20, 40]
    for category in _measured(validated / SAVED_MODEL, data).per_category:
        tag = f"DetectionBoxes_PerformanceByCategory/mAP/{category['name']}"
        assert category["AP"] == -1 or float(events[tag][step]) == pytest.approx(category["AP"], abs=1e-6)
    assert sorted(events["learning_rate"]) == steps
    assert float(events["learning_rate"][STEPS]) == pytest.approx(float(training["learning_rate"][STEPS]), rel=1e-5)
    pictures = [f"eval_side_by_side_{number}_0" for number in range(7)]
    assert [tag for tag in events if tag.startswith("eval_side_by_side")] == pictures
    assert all(sorted(events[tag]) == steps for tag in pictures)


def test_the_raw_weights_are_exported_and_evaluated_when_asked_for(
    validated: Path, shards: list[str], data: Any
) -> None:
    """Called again on the finished run, whose EMA weights follow the weights from afar."""
    raw = "train.ema.use_moving_averages=false"
    _train(validated, shards, data[0], METRIC, "train.validation.every=8", "train.validation.export=final", raw)
    assert read_exported_from(validated / SAVED_MODEL) == ExportedFrom(STEPS, "raw")
    values = checkpoint_values(validated, STEPS)
    exported = tf.saved_model.load(str(validated / SAVED_MODEL)).weights
    for path, value in exported.items():
        name = f"{path.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
        np.testing.assert_array_equal(value.numpy(), values[f"model/{name}"], err_msg=path)
        assert (value.numpy() != values[f"ema/{name}"]).any(), path
    evaluate = detector_evaluator_from_config(
        load_config(None, [*ASSIGNMENTS, METRIC, "train.validation.every=8", raw]),
        RecordReader(data[0]),
        categories=CATEGORIES,
        detector=registry.detector_from_config(load_config(None, ASSIGNMENTS).model, CATEGORIES),
    )
    [metrics] = evaluate(str(checkpoint_path(validated / CHECKPOINTS, STEPS))).metrics
    np.testing.assert_array_equal(metrics.scores, _measured(validated / SAVED_MODEL, data).scores)


def _write(folder: Path, records: Sequence[bytes]) -> list[str]:
    folder.mkdir()
    return write_shards(folder, records, shards=1)


def test_images_that_choose_are_not_trained_on(tmp_path: Path) -> None:
    """The same weights as of a training without them and without validation; metrics of the model on them alone."""
    records, tree = coco_records(24, alike=True)
    keys = ("train.epochs=1.5", "train.steps=auto", "train.validation={every: 4, fraction: 0.3, metric: AR10}")
    shards = _write(tmp_path / "all", records)
    training, validation, _ = divide(RecordReader(shards), 0.3)
    assert validation is not None
    trained_on, held_out = ([one.read(number) for number in range(len(one))] for one in (training, validation))
    _train(tmp_path / "kept", shards, (), *keys)
    with only_steps():
        _train(tmp_path / "alone", _write(tmp_path / "without", trained_on), (), *keys[:2])
    steps = math.ceil(1.5 * len(training) / 4)
    got, expected = (checkpoint_values(tmp_path / name, steps) for name in ("kept", "alone"))
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    assert not (tmp_path / "alone" / VALIDATION).exists()

    exported_from = read_exported_from(tmp_path / "kept" / SAVED_MODEL)
    assert exported_from is not None
    assert exported_from.chosen_on == ChosenOn("train", len(validation), "AR10")
    ids = {parse_record(record).image.image_id for record in held_out}
    tree["images"] = [entry for entry in tree["images"] if entry["id"] in ids]
    tree["annotations"] = [entry for entry in tree["annotations"] if entry["image_id"] in ids]
    best = BestCheckpoint(tmp_path / "kept" / VALIDATION / BEST)
    assert _evaluated(tmp_path / "kept" / SAVED_MODEL, (_write(tmp_path / "held_out", held_out), tree)) == best.metrics


def test_training_stops_early_and_epochs_say_when(shards: list[str], data: Any, tmp_path: Path) -> None:
    """An epoch is 2.5 steps; a rise of 1 there never is."""
    keys = (
        "train.validation={split: eval, every_epochs: 0.5}",
        "train.validation.patience=2",
        "train.validation.min_delta=1.0",
    )
    with only_steps():
        _train(tmp_path, shards, data[0], *keys)
    assert [entry.step for entry in read_history(tmp_path / VALIDATION / HISTORY_JSON)] == [2, 4, 6]
    assert [path.name for path in (tmp_path / CHECKPOINTS).glob("*.index")] == ["ckpt-6.index"]


def test_no_data_to_validate_on_is_said_before_training(shards: list[str], data: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.validation: the split 'eval' has no records"):
        _train(tmp_path, shards, (), "train.validation={every: 8, split: eval}")
    with pytest.raises(DataError, match=r"validation\.metric=APl: undefined"):
        _train(tmp_path, shards, data[0], "train.validation={every: 8, split: eval, metric: APl}")
    assert not list(tmp_path.iterdir())
