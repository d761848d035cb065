"""When checkpoints are evaluated, what is kept, and where training stops: also over kills."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detection.training.validation.history import HistoryEntry
from detection.training.validation.validation import Validation
from tests.detection.training.validation.scripted import Script, save_checkpoint

VALUES = {10: 0.1, 20: 0.4, 30: 0.3, 40: 0.35, 50: 0.5, 55: 0.2}


def _validation(script: Script | None, folder: Path, **options: Any) -> Validation:
    evaluator = None if script is None else script.evaluator(folder)
    arguments: dict[str, Any] = {"every": 10, "last_step": 55, "metric": "AP", **options}
    return Validation(evaluator, checkpoints=folder, **arguments)


def _train(validation: Validation, folder: Path, step: int = 0, *, killed_at: int | None = None) -> int:
    """A training loop in steps of 5 without the training; returns where it ended."""
    stop = validation.resume(step)
    while step < 55 and not stop:
        step += 5
        save_checkpoint(folder, step)
        if step == killed_at:
            return step
        stop = validation.after(step)
    return step


def test_every_n_steps_and_the_last_one(tmp_path: Path) -> None:
    script = Script(VALUES)
    assert _train(_validation(script, tmp_path), tmp_path) == 55
    assert script.asked == [10, 20, 30, 40, 50, 55]
    validation = _validation(script, tmp_path)
    assert [validation.next_step(step) for step in (0, 9, 10, 49, 50, 54)] == [10, 10, 20, 50, 55, 55]


def test_the_best_and_all_metrics_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = Script(VALUES)
    with caplog.at_level(logging.INFO, logger="cocoflow.trainer"):
        _train(_validation(script, tmp_path), tmp_path)
    evaluator = script.evaluator(tmp_path)
    assert evaluator.best.step == 50
    assert [(entry.step, entry.metrics["AP"]) for entry in evaluator.history()] == list(VALUES.items())
    assert "step 20: AP 0.4000 on validation, the best so far" in caplog.text
    assert "step 55: AP 0.2000 on validation, the best is step 50" in caplog.text
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    logged = {
        event.step: float(tf.make_ndarray(event.tensor_proto))
        for event in events.Tensors("DetectionBoxes_Precision/mAP")
    }
    assert logged == pytest.approx(VALUES)


@pytest.mark.parametrize(
    ("patience", "min_delta", "end"), [(1, 0.0, 30), (2, 0.0, 40), (3, 0.0, 55), (3, 0.1, 50), (None, 0.0, 55)]
)
def test_training_stops_where_nothing_improves(
    patience: int | None, min_delta: float, end: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    validation = _validation(Script(VALUES), tmp_path, patience=patience, min_delta=min_delta)
    with caplog.at_level(logging.INFO, logger="cocoflow.trainer"):
        assert _train(validation, tmp_path) == end
    assert ("stopping early" in caplog.text) == (end < 55)


@pytest.mark.parametrize("killed_at", [5, 10, 20, 25, 30, 40])
def test_a_killed_run_stops_at_the_same_step_with_the_same_best(killed_at: int, tmp_path: Path) -> None:
    """The kill comes after the save, before the evaluation that follows it."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    options: dict[str, Any] = {"patience": 2}
    assert _train(_validation(Script(VALUES), whole, **options), whole) == 40
    assert _train(_validation(Script(VALUES), parts, **options), parts, killed_at=killed_at) == killed_at
    script = Script(VALUES)
    assert _train(_validation(script, parts, **options), parts, killed_at) == 40
    assert script.evaluator(parts).history() == Script(VALUES).evaluator(whole).history()
    assert script.evaluator(parts).best.step == Script(VALUES).evaluator(whole).best.step
    assert script.asked == [step for step in (10, 20, 30, 40) if step >= killed_at]


def test_a_run_that_had_stopped_stays_stopped(tmp_path: Path) -> None:
    assert _train(_validation(Script(VALUES), tmp_path, patience=2), tmp_path) == 40
    script = Script(VALUES)
    assert _validation(script, tmp_path, patience=2).resume(40)
    assert script.asked == []


def _entries(values: Mapping[int, float], folder: Path) -> list[int]:
    return [entry.step for entry in Script(values).evaluator(folder).history()]


def test_what_came_after_the_restored_checkpoint_is_evaluated_anew(tmp_path: Path) -> None:
    """Its checkpoint was spoilt; the copy of the best one stays."""
    _train(_validation(Script(VALUES), tmp_path), tmp_path)
    others = VALUES | {40: 0.05, 50: 0.1}
    script = Script(others)
    validation = _validation(script, tmp_path)
    assert not validation.resume(30)
    assert _entries(others, tmp_path) == [10, 20, 30]
    assert not validation.after(40)
    assert script.asked == [40]
    assert script.evaluator(tmp_path).best.step == 50


def test_a_run_from_the_start_forgets_an_earlier_one(tmp_path: Path) -> None:
    _train(_validation(Script(VALUES), tmp_path), tmp_path)
    script = Script({10: 0.01})
    validation = _validation(script, tmp_path)
    assert not validation.resume(0)
    assert _entries({}, tmp_path) == []
    assert script.evaluator(tmp_path).best.step is None
    assert not validation.after(10)
    assert script.evaluator(tmp_path).best.step == 10


def test_another_worker_does_as_the_chief_says(tmp_path: Path) -> None:
    said = iter([True, False, False, True])
    flags: list[bool] = []
    helped: list[str] = []

    def agree(flag: bool) -> bool:
        flags.append(flag)
        return next(said)

    validation = _validation(None, tmp_path, agree=agree, help_evaluate=helped.append)
    assert [validation.after(step) for step in (10, 15, 20)] == [False, False, True]
    assert flags == [False] * 4, "asked where an evaluation is due, and only there"
    assert [Path(path).name for path in helped] == ["ckpt-10"], "the chief had evaluated the other before"
    assert not (tmp_path / "validation").exists()


def test_the_chief_tells_the_others_what_it_found(tmp_path: Path) -> None:
    flags: list[bool] = []

    def agree(flag: bool) -> bool:
        flags.append(flag)
        return flag

    validation = _validation(Script(VALUES), tmp_path, patience=1, agree=agree)
    assert _train(validation, tmp_path) == 30
    assert flags == [True, False] * 2 + [True, True], "whether it evaluates, and whether training stops"


def test_values_of_another_metric_decide_when_asked_for(tmp_path: Path) -> None:
    script = Script({10: 0.5, 20: 0.4}, metric="ARs")
    validation = Validation(
        script.evaluator(tmp_path), checkpoints=tmp_path, every=10, last_step=90, metric="ARs", patience=1
    )
    for step, stops in ((10, False), (20, True)):
        save_checkpoint(tmp_path, step)
        assert validation.after(step) == stops
    assert script.evaluator(tmp_path).best.step == 10
    assert isinstance(script.evaluator(tmp_path).history()[0], HistoryEntry)
