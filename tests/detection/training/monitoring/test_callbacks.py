"""Callbacks: TensorBoard, profiles and progress, and when a call of the loop ends for them."""

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.training.engine.loop import LoopReport, TrainLoop
from detection.training.monitoring.callbacks import Callbacks
from detection.training.monitoring.progress import ProgressMeter, Window
from detection.training.train import next_stop
from schemas.artifacts import LOGS, PERFORMANCE_JSON
from schemas.config.config_io import load_config
from schemas.config.train.training import TrainConfig
from schemas.errors import CocoflowError, ConfigError
from tests.detection.training import tiny_detector
from tests.detection.training.monitoring.test_nonfinite import _steps
from tests.detection.training.poisoned_run import RECORDS, run, write_records
from tests.detection.training.tiny_run import checkpoint_values, only_steps

SPEEDS = ("steps_per_sec", "images_per_second", "input_bound")
SCALARS = (
    "Loss/total_loss",
    "Loss/classification_loss",
    "Loss/localization_loss",
    "Loss/regularization_loss",
    "learning_rate",
    "gradient_norm",
    "instances_cut_off",
    "nonfinite_steps",
    "num_positives",
)


def _events(logs: Path) -> dict[str, dict[int, np.ndarray]]:
    """Tag -> step -> value, of all event files of a folder."""
    by_tag: dict[str, dict[int, np.ndarray]] = {}
    for path in logs.glob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                by_tag.setdefault(value.tag, {})[event.step] = tf.make_ndarray(value.tensor)
    return by_tag


def test_scalars_pictures_and_profile_of_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_detector.register()
    shards = write_records(tmp_path, RECORDS)
    keys = (
        "train.summaries={images_every: 3, images: 2, variable_histograms_every: 6}",
        "train.profile={start_step: 3, steps: 2}",
        "train.schedule={name: constant, learning_rate: 0.25, reference_batch_size: null, warmup_steps: 0}",
    )
    with caplog.at_level(logging.INFO, "cocoflow.trainer"), only_steps():
        run(tmp_path / "run", shards, *keys)
    events = _events(tmp_path / "run" / LOGS)
    histograms = {tag: values for tag, values in events.items() if tag.startswith("ModelVars/")}
    assert set(events) == {*SCALARS, *SPEEDS, *histograms, "training_images"}
    trained = checkpoint_values(tmp_path / "run", 6)
    for tag, values in histograms.items():
        own = trained[f"model/{tag.removeprefix('ModelVars/').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"]
        assert list(values) == [6]
        assert values[6][:, 2].sum() == own.size
        assert (values[6][0, 0], values[6][-1, 1]) == pytest.approx((own.min(), own.max()))
    assert len(histograms) > 3
    for name in SCALARS:
        assert sorted(events[name]) == [2, 4, 6], name
    for name in SPEEDS:
        assert set(events[name]) <= {2, 4, 6}
        assert 6 in events[name]
    assert [float(value) for value in events["learning_rate"].values()] == [0.25] * 3
    total = sum(
        events[name][6] for name in ("Loss/classification_loss", "Loss/localization_loss", "Loss/regularization_loss")
    )
    np.testing.assert_allclose(events["Loss/total_loss"][6], total, rtol=1e-5)
    assert sorted(events["training_images"]) == [0, 3]
    picture = tf.io.decode_png(events["training_images"][0][2]).numpy()
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 3
    assert list((tmp_path / "run" / LOGS / "plugins" / "profile").rglob("*.xplane.pb"))
    assert any("step 6/6  loss" in record.getMessage() for record in caplog.records)


def test_a_call_over_several_log_points_logs_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scalars of calls of one step, and of one call for all that follow the first."""
    tiny_detector.register()
    shards = write_records(tmp_path, RECORDS)
    calls: list[tuple[int, int]] = []
    windows = TrainLoop.windows

    def noted(self: TrainLoop, batches: Any, *, start: int, stop: int, every: int) -> Any:
        calls.append((start, stop))
        return windows(self, batches, start=start, stop=stop, every=every)

    monkeypatch.setattr(TrainLoop, "windows", noted)
    events = {}
    for steps in (1, 100):
        keys = ("train.log_every=2", "train.checkpoint_every=100", f"train.steps_per_loop={steps}", "train.steps=5")
        with only_steps():
            run(tmp_path / str(steps), shards, "train.summaries.images_every=0", *keys)
        events[steps] = _events(tmp_path / str(steps) / LOGS)
    assert calls == [*((step, step + 1) for step in range(5)), (0, 1), (1, 5)]
    for name in SCALARS:
        expected = events[1][name]
        assert sorted(expected) == [2, 4, 5]
        logged = events[100][name]
        assert list(logged) == list(expected)
        np.testing.assert_allclose(list(logged.values()), list(expected.values()), rtol=1e-5, err_msg=name)
    assert sorted(events[100]["images_per_second"]) == [2, 4, 5]


def _callbacks(folder: Path, *, log_every: int) -> Callbacks:
    return Callbacks(
        total_steps=9,
        log_every=log_every,
        window=Window(batch_size=4),
        nonfinite=_steps(folder, folder),
        pictures=None,
        profiler=None,
        performance=folder / PERFORMANCE_JSON,
    )


def _one_step(**scalars: float) -> LoopReport:
    return LoopReport(1, scalars, dict.fromkeys(scalars, 1.0), scalars, 0, None, {}, False, 1.0, 0.0, 0.0, {})


def test_truncated_instances_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callbacks = _callbacks(tmp_path, log_every=1)
    with caplog.at_level(logging.WARNING, "cocoflow.trainer"):
        for step in (1, 2):
            callbacks.after_window(_one_step(loss=1.0, instances_cut_off=3.0), step)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("3 instances were dropped in the last steps")
    assert "model.max_instances" in message


def test_the_last_steps_of_a_run_that_ends_early_are_logged(tmp_path: Path) -> None:
    callbacks = _callbacks(tmp_path, log_every=5)
    with tf.summary.create_file_writer(str(tmp_path / "logs")).as_default():
        for step in (5, 7):
            callbacks.after_window(_one_step(loss=float(step)), step)
        callbacks.end(7)
        callbacks.end(7)
    assert {step: float(loss) for step, loss in _events(tmp_path / "logs")["Loss/total_loss"].items()} == {
        5: 5.0,
        7: 7.0,
    }


def test_the_speed_and_the_last_losses_are_in_a_file(tmp_path: Path) -> None:
    callbacks = _callbacks(tmp_path, log_every=2)
    steps = [_one_step(loss=9.0 - step, class_loss=1.0, learning_rate=0.1) for step in range(7)]
    for step, seconds in enumerate((99.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25), start=1):  # the first one compiles
        callbacks.after_window(steps[step - 1]._replace(seconds=seconds), step)
    callbacks.end(7)
    assert json.loads((tmp_path / PERFORMANCE_JSON).read_text()) == {
        "steps": 7,
        "steps_per_second": {"mean": pytest.approx(11 / 4), "p50": 3.0, "max": 4.0},
        "losses": {"Loss/total_loss": 3.0, "Loss/classification_loss": 1.0},
    }


@pytest.mark.parametrize(("last", "diverges"), [(19.0, False), (21.0, True), (2e14, True), (0.1, False)])
def test_a_loss_that_explodes_ends_the_run_although_it_is_finite(tmp_path: Path, last: float, diverges: bool) -> None:
    callbacks = _callbacks(tmp_path, log_every=5)
    for step, loss in enumerate((2.0, 500.0, last), start=1):
        callbacks.after_window(_one_step(loss=loss), step)
    message = r"diverged: the loss grew from 2 at the first step to .*Lower train\.schedule"
    with pytest.raises(CocoflowError, match=message) if diverges else contextlib.nullcontext():
        callbacks.end(3)


def _train_config(*assignments: str) -> TrainConfig:
    return load_config(None, [f"train.{assignment}" for assignment in assignments]).train


def _stops(train_config: TrainConfig) -> list[int]:
    stops = [0]
    while stops[-1] < train_config.fixed_steps:
        stops.append(next_stop(stops[-1], train_config))
    return stops[1:]


def test_a_call_ends_where_something_is_due_and_after_its_steps() -> None:
    few = ("steps=50", "schedule.warmup_steps=0", "checkpoint_every=1000", "log_every=20", "summaries.images_every=0")
    assert _stops(_train_config(*few, "steps_per_loop=100")) == [50]
    assert _stops(_train_config(*few, "steps_per_loop=15")) == [15, 30, 45, 50]
    assert _stops(_train_config(*few, "steps_per_loop=100", "checkpoint_every=25")) == [25, 50]
    assert _stops(_train_config(*few, "steps_per_loop=100", "summaries.images_every=30")) == [30, 50]
    for kind in ("gradient", "variable"):
        assert _stops(_train_config(*few, "steps_per_loop=100", f"summaries.{kind}_histograms_every=30")) == [30, 50]
    assert _stops(_train_config(*few, "steps_per_loop=100", "profile={start_step: 7, steps: 4}")) == [7, 11, 50]


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        (["run_eagerly=true", "jit_compile=true"], "run_eagerly and jit_compile are exclusive"),
        (["run_eagerly=true", "steps_per_loop=20"], "steps_per_loop = 20 does nothing with run_eagerly"),
        (["nonfinite.max_in_a_row=3"], "max_in_a_row = 3 does nothing with policy = stop"),
        (["profile.steps=20"], "steps = 20 does nothing while start_step is none"),
        (
            ["steps=1000", "profile={start_step: 995, steps: 10}"],
            "profile.start_step = 995 and profile.steps = 10 end after steps",
        ),
        (["summaries={images_every: 0, images: 3}"], "images = 3 does nothing while images_every = 0"),
    ],
)
def test_a_key_that_cannot_act_is_refused(assignments: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        _train_config(*assignments)


def test_log_points_of_one_call_are_timed_where_they_lie(caplog: pytest.LogCaptureFixture) -> None:
    meter = ProgressMeter(total_steps=100)
    with caplog.at_level(logging.INFO, "cocoflow.trainer"):
        meter.report(20, {}, at=100.0)
        meter.report(40, {}, at=110.0)
        meter.report(60, {}, at=130.0)
    notes = [record.getMessage().partition("loss nan")[2] for record in caplog.records]
    assert notes == ["", "  30 s left", "  40 s left"]


def test_progress_tells_waiting_only_where_it_is_notable(caplog: pytest.LogCaptureFixture) -> None:
    meter = ProgressMeter(total_steps=40)
    with caplog.at_level(logging.INFO, "cocoflow.trainer"):
        meter.report(10, {"loss": 0.5, "images_per_second": 3.0, "input_bound": 0.09})
        meter.report(20, {"loss": 0.5, "images_per_second": 3.0, "input_bound": 0.6})
        meter.report(30, {"nonfinite_steps": 2.0})
    first, second, third = [record.getMessage() for record in caplog.records]
    assert "waits" not in first
    assert second.endswith("waits for input 60%")
    assert third.startswith("step 30/40  loss nan")
