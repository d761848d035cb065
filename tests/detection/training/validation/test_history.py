"""The file of figures, and early stopping."""

from pathlib import Path

import keras
import numpy as np
import pytest

from detection.training.validation.history import Entry, has_stalled, read_history, write_history
from schemas.errors import DataError


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


def test_the_file_keeps_the_order_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h.json"
    assert read_history(path) == []
    entries = [Entry(20, {"AP": 0.1}), Entry(10, {"AP": 1 / 3})]
    write_history(path, entries)
    assert read_history(path) == [Entry(10, {"AP": 1 / 3}), Entry(20, {"AP": 0.1})]


@pytest.mark.parametrize("content", ['{"step": 1}', '[{"step": 1}]', "[1]", "7"])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"h\.json: not a list of evaluations"):
        read_history(path)
