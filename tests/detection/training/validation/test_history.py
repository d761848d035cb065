"""The file of metrics, and early stopping."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.inference.restore import ChosenOn
from detection.training.checkpoints.files import checkpoint_path, remove_checkpoint
from detection.training.validation import history as best_module
from detection.training.validation.history import (
    BestCheckpoint,
    HistoryEntry,
    has_stalled,
    outlook,
    read_history,
    write_history,
)
from schemas.errors import DataError
from tests.detection.training.validation.scripted import save_checkpoint


def _keras_stops_at(values: list[float], patience: int, min_delta: float) -> int | None:
    callback = keras.callbacks.EarlyStopping("AP", min_delta=min_delta, patience=patience, mode="max")
    callback.set_model(keras.Sequential([keras.layers.Dense(1)]))
    callback.model.stop_training = False
    callback.on_train_begin()
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {"AP": value})
        if callback.model.stop_training:
            return epoch
    return None


@pytest.mark.parametrize("min_delta", [0.0, 0.05])
@pytest.mark.parametrize("patience", [1, 2, 3])
def test_stops_where_keras_does(patience: int, min_delta: float) -> None:
    random = np.random.default_rng(patience)
    for _ in range(30):
        values = np.cumsum(random.normal(0.01, 0.1, 12))
        if not min_delta:  # equal ones; with a delta they would be a matter of rounding, Keras computing in float32
            values = np.round(values, 1)
        values = values.tolist()
        stops = (
            number
            for number in range(len(values))
            if has_stalled(values[: number + 1], patience=patience, min_delta=min_delta)
        )
        assert next(stops, None) == _keras_stops_at(values, patience, min_delta), values


def test_an_equal_value_is_no_improvement_and_the_first_always_is() -> None:
    assert not has_stalled([0.0], patience=1, min_delta=0.5)
    assert has_stalled([0.3, 0.3], patience=1, min_delta=0.0)
    assert not has_stalled([0.3, 0.31], patience=1, min_delta=0.0)


def test_slow_gains_count_once_they_add_up() -> None:
    values = [0.3, 0.34, 0.38, 0.42, 0.46]
    assert not has_stalled(values, patience=2, min_delta=0.05)
    assert has_stalled(values[:3], patience=2, min_delta=0.1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1, 0.3, 0.4], True),
        ([0.1, 0.3, 0.305], False),  # a gain that chance explains
        ([0.1, 0.4, 0.3], False),
        ([0.1, 0.2, 0.3, 0.31, 0.4, 0.39], False),  # the last is not the best
        ([0.1, 0.2, 0.3, 0.31, 0.315, 0.325], True),  # 0.325 against the best of the first four, 0.31
        ([0.0, 0.0, 0.0], False),
        ([-1.0, -1.0, -1.0], False),  # undefined
        ([0.1, 0.4], None),
        ([], None),
    ],
)
def test_a_metric_rises_if_the_last_third_of_the_steps_gained(values: list[float], expected: bool | None) -> None:
    found = outlook([(100 * number, value) for number, value in enumerate(values, 1)])
    assert (None if found is None else found.is_rising) is expected


def test_without_an_evaluation_in_the_first_two_thirds_nothing_is_known() -> None:
    """As after a run that went on with validation in its last steps."""
    assert outlook([(800, 0.1), (900, 0.2), (1000, 0.3)]) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(100, 0.1), (200, 0.2), (300, 0.3), (400, 0.5)], 0.8),  # odds of 1 to 4, of 1 to 1, of 4 to 1
        ([(100, 0.2), (150, 0.3), (400, 0.5)], 0.5 + 0.5 * np.tanh(0.5 * np.log(7 / 3) / np.log2(400 / 150))),
        ([(100, 0.5), (150, 0.5), (200, 0.4)], 0.4),
        ([(100, 0.0), (150, 0.2), (200, 0.5)], 0.995),
        ([(130, 0.1), (150, 0.1), (200, 0.7)], None),
        # Photographs of an aquarium, 1,030 steps: ten times as many reached 0.28 (2026-11-29).
        ([(258, 0.0345), (516, 0.0581), (774, 0.1074), (1030, 0.1317)], 0.272),
    ],
)
def test_ten_times_the_steps_bring_the_gain_of_the_last_doubling_once_more(
    values: list[tuple[int, float]], expected: float | None
) -> None:
    found = outlook(values)
    assert found is not None
    assert found.expected == (None if expected is None else pytest.approx(expected, abs=1e-3))


@pytest.mark.parametrize(
    ("values", "rising"),
    [
        ([(100, 0.2), (200, 0.3), (300, 0.5), (400, 0.6)], True),
        ([(100, 0.3), (200, 0.3), (300, 0.5), (400, 0.6)], False),  # only the decay has brought something
        ([(100, 0.2), (200, 0.3), (300, 0.5), (400, 0.29)], False),  # worse than before
        ([(200, 0.3), (300, 0.5), (400, 0.6)], None),
        ([(300, 0.3), (400, 0.5), (500, 0.6)], None),
    ],
)
def test_what_the_decay_brings_is_no_sign_that_more_steps_do(
    values: list[tuple[int, float]], rising: bool | None
) -> None:
    found = outlook(values, decay_start=280)
    assert (None if found is None else found.is_rising) is rising


def test_the_file_keeps_the_order_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h.json"
    assert read_history(path) == []
    entries = [HistoryEntry(20, {"AP": 0.1}), HistoryEntry(10, {"AP": 1 / 3})]
    write_history(path, entries)
    assert read_history(path) == [HistoryEntry(10, {"AP": 1 / 3}), HistoryEntry(20, {"AP": 0.1})]


@pytest.mark.parametrize("content", ['{"step": 1}', '[{"step": 1}]', "[1]", "7"])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"h\.json: not a list of evaluations"):
        read_history(path)


def _offer(best: BestCheckpoint, folder: Path, step: int, value: float) -> bool:
    save_checkpoint(folder, step)
    report: dict[str, Any] = {"iou_type": "bbox", "metrics": {"AP": 0.0, "AR100": value}}
    return best.offer(folder, step, report=report, chosen_on=ChosenOn("eval", 7, "AR100"))


def _stored_step(path: str) -> int:
    return int(tf.train.load_checkpoint(path).get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE"))


def test_the_better_one_takes_the_place_of_the_other(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path / "best")
    assert [best.step] == [None]
    answers = [_offer(best, tmp_path, step, value) for step, value in [(2, 0.1), (4, 0.3), (6, 0.3), (8, 0.2)]]
    assert answers == [True, True, False, False]
    assert best.step == 4
    assert best.metrics == {"AP": 0.0, "AR100": 0.3}
    assert best.chosen_on == ChosenOn("eval", 7, "AR100")
    remove_checkpoint(tmp_path, 4)
    assert _stored_step(best.path) == 4
    assert json.loads((tmp_path / "best" / "metrics.json").read_text()) == {
        "step": 4,
        "chosen_on": {"split": "eval", "images": 7, "metric": "AR100"},
        "iou_type": "bbox",
        "metrics": {"AP": 0.0, "AR100": 0.3},
    }
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == [
        "ckpt-4.data-00000-of-00001",
        "ckpt-4.index",
        "metrics.json",
    ]


def test_the_same_step_again_takes_its_own_place(tmp_path: Path) -> None:
    """As after a kill; on a device that is not deterministic the metric differs."""
    best = BestCheckpoint(tmp_path / "best")
    assert _offer(best, tmp_path, 4, 0.3)
    assert _offer(best, tmp_path, 4, 0.2)
    assert _offer(best, tmp_path, 6, 0.25)


def test_a_kill_between_link_and_metrics_leaves_the_earlier_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = BestCheckpoint(tmp_path / "best")
    _offer(best, tmp_path, 2, 0.1)

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(best_module, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            _offer(best, tmp_path, 4, 0.3)
    assert best.path == checkpoint_path(tmp_path / "best", 2)
    assert _offer(best, tmp_path, 4, 0.3)
    assert _stored_step(best.path) == 4
    assert not list((tmp_path / "best").glob("ckpt-2*"))


def test_a_checkpoint_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path / "best")
    with pytest.raises(FileNotFoundError):
        best.offer(tmp_path, 2, report={"metrics": {"AP": 1.0}}, chosen_on=ChosenOn("eval", 7, "AP"))
    assert best.step is None


def test_no_best_is_an_error_that_tells_the_way_out(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path / "best")
    with pytest.raises(DataError, match=r"the best checkpoint is missing.*export=final"):
        _ = best.path
    _offer(best, tmp_path, 2, 0.1)
    remove_checkpoint(tmp_path / "best", 2)
    with pytest.raises(DataError, match="the best checkpoint is missing"):
        _ = best.path
