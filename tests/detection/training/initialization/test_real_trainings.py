"""Warm starts from what `train` leaves, and what they leave, with a detector of two convolutions."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.training.build_step import initialize_from_config, state_from_config
from detection.training.train import train
from schemas.artifacts import CONFIG_YAML, INIT_REPORT_JSON, LABELS_JSON
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import DataError
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import AUTOML, CATEGORIES, checkpoint_values, only_steps

pytestmark = pytest.mark.slow

ASSIGNMENTS = ("model.name=tiny", "train.batch_size=2", "train.schedule.reference_batch_size=null", "train.log_every=1")
MORE = [{"id": 1, "name": "new"}, *CATEGORIES]


def _config(*assignments: str) -> Config:
    return load_config(None, [AUTOML, *ASSIGNMENTS, *assignments])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    tiny_detector.register()
    return write_shards(tmp_path_factory.mktemp("records"), rectangles(4))


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory, shards: list[str]) -> Path:
    output = tmp_path_factory.mktemp("earlier")
    train(_config("train.steps=3", "train.checkpoint_every=2"), shards=shards, categories=CATEGORIES, output=output)
    return output


def _weights(output: Path, step: int, part: str) -> dict[str, np.ndarray]:
    """By TensorFlow's key of the variable."""
    return {
        name.removeprefix(part): value
        for name, value in checkpoint_values(output, step).items()
        if name.startswith(part)
    }


@pytest.mark.parametrize(
    ("source", "step"), [("checkpoints/ckpt-2", 2), ("checkpoints", 3), (".", 3), ("saved_model", 3)]
)
def test_every_way_to_name_an_earlier_training(earlier: Path, source: str, step: int, tmp_path: Path) -> None:
    config = _config(f"train.init={{checkpoint: {earlier / source}, fine_tune_type: full}}", "train.seed=8")
    strategy = tf.distribute.get_strategy()
    state = state_from_config(config, [{}] * 3, strategy=strategy)
    initialize_from_config(config, state, CATEGORIES, strategy=strategy, start_step=0, base_model=None)
    path = tmp_path / "checkpoints" / "ckpt-0"
    state.checkpoint().write(str(path))
    ema = _weights(earlier, step, "ema/")
    assert ema
    for part in ("model/", "ema/"):
        got = _weights(tmp_path, 0, part)
        assert got.keys() == ema.keys()
        for name, value in ema.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)


def test_a_run_with_another_category_starts_warm_and_goes_on_without_its_source(
    earlier: Path, shards: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    shutil.copytree(earlier, source)
    assignments = (f"train.init.checkpoint={source}", "train.schedule.learning_rate=1e-9", "train.checkpoint_every=1")
    warmup = ("train.schedule.warmup_learning_rate=0", "train.schedule.warmup_steps=0")
    with only_steps():
        train(_config("train.steps=1", *assignments, *warmup), shards=shards, categories=MORE, output=output)

    head = "head.Sbias/.ATTRIBUTES/VARIABLE_VALUE"
    [theirs] = [value for name, value in _weights(earlier, 3, "ema/").items() if name.endswith(head)]
    [got] = [value for name, value in _weights(output, 1, "model/").items() if name.endswith(head)]
    np.testing.assert_allclose(got[[0, 1, 2, 3, 5, 6, 7]], theirs, atol=1e-6)
    assert json.loads((output / LABELS_JSON).read_text()) == MORE
    report = json.loads((output / INIT_REPORT_JSON).read_text())
    assert report["warm_start"]["source"] == str(source / "checkpoints" / "ckpt-3")
    assert report["warm_start"]["new_categories"] == ["new"]
    assert report["fresh"] == []

    shutil.rmtree(source)
    with only_steps(), caplog.at_level(logging.INFO, "cocoflow.trainer"):
        train(_config("train.steps=2", *assignments, *warmup), shards=shards, categories=MORE, output=output)
    assert "resuming from step 1" in caplog.text
    assert "resumed run: ignoring model.weights and train.init; the weights come from its checkpoint" in caplog.messages
    assert json.loads((output / INIT_REPORT_JSON).read_text()) == report


def test_a_start_that_fails_leaves_no_run(shards: list[str], tmp_path: Path) -> None:
    output = tmp_path / "output"
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        train(_config(f"train.init.checkpoint={tmp_path}/nowhere"), shards=shards, categories=CATEGORIES, output=output)
    assert not (output / CONFIG_YAML).exists()
    assert not list(output.glob("checkpoints/*"))
