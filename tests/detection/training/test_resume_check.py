"""A folder's checkpoints are of the records, categories and settings that a training goes on with, or it stops."""

import logging
from pathlib import Path

import pytest
import tensorflow as tf

from detection.storage.atomic import write_json, write_text
from detection.training.resume_check import compare_settings, require_same_data, write_described
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, LABELS_JSON
from schemas.config.config import Config
from schemas.config.config_io import load_config, to_yaml
from schemas.errors import DataError

CATEGORIES = [{"id": 1, "name": "square"}, {"id": 2, "name": "bar"}]
EXCHANGED = [{"id": 1, "name": "bar"}, {"id": 2, "name": "square"}]
STEPS = 12


def _config(**keys: object) -> Config:
    return load_config(None, ["train.steps=12", *(f"train.{key}={value}" for key, value in keys.items())])


def _shard(path: Path, *records: bytes) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A folder with a finished training."""
    folder = tmp_path / "out"
    (folder / CHECKPOINTS).mkdir(parents=True)
    for name in (f"ckpt-{STEPS}.index", f"ckpt-{STEPS}.data-00000-of-00001"):
        (folder / CHECKPOINTS / name).write_bytes(b"x")
    write_json(folder / LABELS_JSON, CATEGORIES)
    write_text(folder / CONFIG_YAML, to_yaml(_config()))
    write_described(folder, [_shard(tmp_path / "a", b"one", b"two")])
    return folder


def test_the_same_data_elsewhere_go_on_and_nothing_is_written(output: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    require_same_data(output, [_shard(tmp_path / "b", b"one", b"two")], CATEGORIES)
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("categories", "records", "message"),
    [
        (EXCHANGED, [b"one", b"two"], r"other categories \(1 'bar', 1 'square', .*, and that training was finished"),
        (CATEGORIES[:1], [b"one", b"two"], r"other categories \(2 'bar'\)"),
        (CATEGORIES, [b"one", b"two", b"three"], "other records, and that training was finished before"),
        (CATEGORIES, [b"two", b"one"], "other records"),
    ],
)
def test_other_data_are_refused(
    output: Path, tmp_path: Path, categories: list[dict[str, object]], records: list[bytes], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        require_same_data(output, [_shard(tmp_path / "b", *records)], categories)
    for path in (output / CHECKPOINTS).iterdir():
        path.unlink()
    require_same_data(output, [_shard(tmp_path / "b", *records)], categories)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "finished before: the checkpoint has 12 of 12 steps"),
        ({"steps": 6}, "finished before: the checkpoint has 12 of 6 steps"),
        ({"steps": 20}, ""),
        ({"steps": 20, "batch_size": 2}, "other settings than before: train.batch_size = 2 (was "),
        ({"steps": 20, "checkpoint_every": 3}, ""),  # without effect on the weights
    ],
)
def test_other_settings_are_told(
    output: Path, keys: dict[str, object], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cocoflow.trainer"):
        compare_settings(output, _config(**keys))
    assert message in caplog.text
    assert bool(caplog.text) == bool(message)


def test_a_finished_training_is_not_exported_for_other_settings(output: Path) -> None:
    with pytest.raises(DataError, match=r"finished before, after 12 steps with other settings: train\.batch_size = 2"):
        compare_settings(output, _config(batch_size=2))
