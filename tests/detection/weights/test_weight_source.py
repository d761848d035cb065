"""Reading weights by name: against arrays that TensorFlow itself wrote."""

import json
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.weights.weight_source import WeightSource
from schemas.artifacts import LABELS_JSON
from schemas.errors import ConfigError, DataError

RAW = {"net/a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "net/v1.5/bias": np.array([7.0, 8.0], np.float32)}
EMA = {"net/a/kernel": RAW["net/a/kernel"] + 0.5}


def _variables(values: dict[str, np.ndarray]) -> dict[str, tf.Variable]:
    return {name: tf.Variable(value) for name, value in values.items()}


def _write(prefix: Path, **parts: Any) -> str:
    return str(tf.train.Checkpoint(**parts).write(str(prefix)))


@pytest.fixture
def ours(tmp_path: Path) -> str:
    step, slots = tf.Variable(3, dtype=tf.int64), _variables({"sgd/momentum": np.array([9.0], np.float32)})
    parts = {"model": _variables(RAW), "ema": _variables(EMA), "step": step, "optimizer": slots}
    return _write(tmp_path / "ckpt-3", **parts)


def _assert_holds(source: WeightSource, expected: dict[str, np.ndarray]) -> None:
    assert source.shapes == {name: value.shape for name, value in expected.items()}
    for name, value in expected.items():
        assert source.read(name).dtype == np.float32
        np.testing.assert_array_equal(source.read(name), value)


@pytest.mark.parametrize("weights", ["auto", "averaged"])
def test_ema_weights_go_before_raw_weights(ours: str, weights: Any) -> None:
    source = WeightSource(ours, weights=weights)
    _assert_holds(source, RAW | EMA)
    assert source.ema_names == set(EMA)
    assert str(source.prefix) == ours
    assert source.categories is None


def test_raw_weights_on_demand(ours: str) -> None:
    source = WeightSource(ours, weights="raw")
    _assert_holds(source, RAW)
    assert source.ema_names == set()


def test_missing_ema_weights_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "ckpt-3", model=_variables(RAW))
    _assert_holds(WeightSource(path), RAW)
    with pytest.raises(DataError, match=r"ckpt-3: has no EMA weights\. Set train\.init\.weights"):
        WeightSource(path, weights="averaged")


@pytest.mark.parametrize("dtype", [tf.float16, tf.float64, tf.bfloat16])
def test_any_float_becomes_float32(tmp_path: Path, dtype: tf.DType) -> None:
    values = np.array([0.5, -2.0], np.float32)
    path = _write(tmp_path / "ckpt", model={"w": tf.Variable(tf.constant(values, dtype))})
    _assert_holds(WeightSource(path), {"w": values})


def test_a_saved_model_holds_one_set(tmp_path: Path) -> None:
    module = tf.Module()
    module.weights = _variables(RAW)
    tf.saved_model.save(module, str(tmp_path))
    _assert_holds(WeightSource(tmp_path), RAW)
    for weights in ("raw", "averaged"):
        with pytest.raises(DataError, match="has one set of weights, the exported one"):
            WeightSource(tmp_path, weights=weights)


def test_name_based_checkpoints_and_their_ema_weights(tmp_path: Path) -> None:
    """As TF1 wrote them."""
    prefix = str(tmp_path / "model.ckpt")
    names = [*RAW, "net/a/kernel/ExponentialMovingAverage"]
    values = [*map(tf.constant, RAW.values()), tf.constant(EMA["net/a/kernel"])]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * 3, tensors=values)
    _assert_holds(WeightSource(prefix), RAW | EMA)
    _assert_holds(WeightSource(prefix, weights="raw"), RAW)


def test_object_based_checkpoints_give_the_names_of_their_variables(tmp_path: Path) -> None:
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="a"), keras.layers.Dense(1, name="b")])
    path = _write(tmp_path / "net", net=net)
    _assert_holds(WeightSource(path), {variable.path: variable.numpy() for variable in net.variables})


def test_without_names_the_path_of_objects_counts(tmp_path: Path) -> None:
    pair = [tf.Variable([1.0]), tf.Variable([2.0])]
    path = _write(tmp_path / "pair", side=tf.train.Checkpoint(pair=pair))
    _assert_holds(
        WeightSource(path), {"side/pair/0": np.array([1.0], np.float32), "side/pair/1": np.array([2.0], np.float32)}
    )


def test_renaming_applies_in_turn(ours: str) -> None:
    source = WeightSource(ours, rename=[("^net/", "body/"), (r"body/(\w)/", r"body/\1_x/")])
    renamed = {"net/a/kernel": "body/a_x/kernel", "net/v1.5/bias": "body/v1.5/bias"}
    _assert_holds(source, {renamed[name]: value for name, value in (RAW | EMA).items()})
    assert source.ema_names == {"body/a_x/kernel"}


def test_renaming_that_cannot_be_is_refused(ours: str) -> None:
    with pytest.raises(DataError, match=r"train\.init\.rename changes both net/a/kernel and net/v1\.5/bias to x"):
        WeightSource(ours, rename=[(".*", "x"), ("xx", "x")])
    with pytest.raises(ConfigError, match=r"train\.init\.rename: 'body' changes no name in .*ckpt-3; .* is net/a/k"):
        WeightSource(ours, rename=[("body", "x")])
    with pytest.raises(ConfigError, match=r"train\.init\.rename: '\\\\2' does not fit '\(net\)': invalid group"):
        WeightSource(ours, rename=[("(net)", r"\2")])


def test_categories_lie_beside_checkpoints(ours: str) -> None:
    labels = Path(ours).parent / LABELS_JSON
    labels.write_text(json.dumps([{"id": 3, "name": "cat"}]))
    assert WeightSource(ours).categories == [{"id": 3, "name": "cat"}]
    for invalid in ("{", "[3]", '[{"id": 3}]'):
        labels.write_text(invalid)
        with pytest.raises(DataError, match=r"categories\.json: cannot be read as the categories of the weights"):
            WeightSource(ours)


def test_files_that_are_not_whole_are_told(ours: str) -> None:
    data = Path(f"{ours}.data-00000-of-00001")
    whole = data.read_bytes()
    data.write_bytes(whole.replace(RAW["net/v1.5/bias"].tobytes(), b"\0" * 8))
    with pytest.raises(DataError, match=r"ckpt-3: cannot be read as a checkpoint: .*Copy it again"):
        WeightSource(ours).read("net/v1.5/bias")
    data.write_bytes(whole[:5])
    with pytest.raises(DataError, match=r"ckpt-3: cannot be read as a checkpoint: .*ckpt-3\.data-\* is truncated"):
        WeightSource(ours)
    data.unlink()
    with pytest.raises(DataError, match=r"ckpt-3: cannot be read as a checkpoint: .*No such file.*Copy it again"):
        WeightSource(ours)
    Path(f"{ours}.index").write_bytes(b"")
    with pytest.raises(DataError, match=r"ckpt-3: cannot be read as a checkpoint: .*Copy it again"):
        WeightSource(ours)


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
def test_a_pipe_is_not_waited_for(ending: str, ours: str) -> None:
    file = Path(f"{ours}.{ending}")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match=rf"ckpt-3{'' if ending == 'index' else '.' + ending}: "):
        WeightSource(ours)


@pytest.mark.parametrize("value", [1.5, np.inf, [1, 2], "7", ["7"], True, 1j])
def test_a_step_that_is_no_whole_number_is_refused(value: Any, tmp_path: Path) -> None:
    path = _write(tmp_path / "ckpt-3", model=_variables(RAW), step=tf.Variable(value))
    with pytest.raises(DataError, match=r"ckpt-3: cannot be read as a checkpoint: its step/.* is not an integer"):
        WeightSource(path)


@pytest.mark.parametrize("graph", [b"\xff" * 9, [b"a", b"b"], 3])
def test_a_graph_of_objects_that_is_none_is_refused(graph: Any, tmp_path: Path) -> None:
    """As no training writes it: under the file's valid checksums."""
    names = ["_CHECKPOINTABLE_OBJECT_GRAPH", "layer/kernel/.ATTRIBUTES/VARIABLE_VALUE"]
    prefix, values = str(tmp_path / "ckpt-3"), [tf.constant(graph), tf.constant([1.0])]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=["", ""], tensors=values)
    with pytest.raises(DataError, match=r"ckpt-3: cannot be read as a checkpoint: its _CHECK\w+ is not a graph"):
        WeightSource(prefix)


def test_weights_of_a_training_that_diverged_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "ckpt-9", model={"w": tf.Variable([1.0, np.nan])})
    with pytest.raises(DataError, match=r"ckpt-9: w is not finite: the training diverged"):
        WeightSource(path).read("w")
