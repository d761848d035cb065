"""Whole runs whose length is in epochs, whose batch size is measured, or whose updates have several batches."""

import logging
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from detection.training import train as training
from detection.training.engine.loop import TrainLoop
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import CATEGORIES, SMALL, TINY, checkpoint_values, only_steps

pytestmark = pytest.mark.slow
_OWN = ("train.steps", "train.batch_size", "train.checkpoint_every")
KEYS = (*(one for one in TINY if not one.startswith(_OWN)), *SMALL, "train.freeze_batch_norm=statistics")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Ten images."""
    tiny_detector.register()
    return write_shards(tmp_path_factory.mktemp("records"), rectangles(10))


def _run(output: Path, shards: list[str], *assignments: str) -> None:
    config = load_config(None, [*KEYS, *assignments])
    with only_steps():
        training.train(config, shards=shards, categories=CATEGORIES, output=output)


def _assert_close(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_allclose(value, right[name], rtol=0, atol=2e-6, err_msg=name)


def test_a_run_in_epochs_with_accumulation_resumes_with_larger_batches(
    shards: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch size is found by the run's beginning only; both runs see the same images at every step."""
    caplog.set_level(logging.INFO, logger="cocoflow.trainer")
    schedule = ["train.schedule.total_epochs=1.6", "train.schedule.warmup_epochs=0.4"]
    lengths = ["train.checkpoint_every_epochs=0.8", *schedule]
    parts = ["train.batch_size=auto", "train.memory_limit=1", "train.accumulate_steps=2"]
    with mock.patch.object(training, "find_batch_size", return_value=2) as search:
        _run(tmp_path / "parts", shards, *lengths, *parts, "train.epochs=0.8")
        saved = load_config(tmp_path / "parts" / CONFIG_YAML).train
        assert (saved.steps, saved.batch_size, saved.accumulate_steps, saved.checkpoint_every) == (2, 2, 2, 2)
        assert (saved.schedule.total_steps, saved.schedule.warmup_steps) == (4, 1)
        _run(tmp_path / "parts", shards, *lengths, *parts, "train.epochs=1.2")
    assert search.call_count == 1
    assert "resuming from step 2" in caplog.text
    assert "train.batch_size = auto: 2, as at the start of this run" in caplog.text
    _run(tmp_path / "parts", shards, *lengths, "train.batch_size=4", "train.epochs=1.6")
    _run(tmp_path / "whole", shards, "train.steps=4", "train.batch_size=4", "train.schedule.warmup_steps=1")
    assert (tmp_path / "parts" / CHECKPOINTS / "ckpt-3.index").is_file()
    _assert_close(checkpoint_values(tmp_path / "parts", 4), checkpoint_values(tmp_path / "whole", 4))


def test_a_step_that_does_not_fit_into_the_memory_names_the_keys(shards: list[str], tmp_path: Path) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[8]")

    with (
        mock.patch.object(TrainLoop, "windows", exhausted),
        pytest.raises(CocoflowError, match=r"train.batch_size = 8 and train.accumulate_steps = 1 .*auto.* OOM when"),
    ):
        _run(tmp_path, shards)
