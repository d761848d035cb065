"""Checkpoints as google/automl writes them, imported: the same values under our names."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.inference.restore import load_trained
from detection.interop.automl.checkpoint import AutomlFormat, automl_name
from detection.weights.imported_model import ImportedModel, import_model, write_model
from schemas.config.train.optimization import WeightsChoice
from schemas.errors import ConfigError, DataError
from tests.detection.interop.automl.checkpoints import (
    Weights,
    random_weights,
    save,
    save_named,
    save_objects,
    small_config,
)
from tests.detection.training import tiny_detector
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

CLASSES = 3


@pytest.fixture(scope="module")
def raw() -> Weights:
    return random_weights(CLASSES)


@pytest.fixture(scope="module")
def ema() -> Weights:
    return random_weights(CLASSES, seed=1)


def _assert_equal(ours: object, theirs: Weights) -> None:
    assert isinstance(ours, dict)
    assert {automl_name(path) for path in ours} == set(theirs)
    for path, value in ours.items():
        np.testing.assert_array_equal(value, theirs[automl_name(path)])


@pytest.mark.parametrize("scope", ["", "detector/"])
def test_a_checkpoint_of_tf1(tmp_path: Path, raw: Weights, ema: Weights, scope: str) -> None:
    prefix = save_named(tmp_path / "model", raw, ema, scope)
    model = import_model(AutomlFormat, f"{prefix}.index", small_config())
    _assert_equal(model.raw, raw)
    _assert_equal(model.ema, ema)
    assert (model.prefix, model.step, model.unused) == (prefix, 700, ())
    without = import_model(AutomlFormat, prefix, small_config(), weights="raw")
    _assert_equal(without.raw, raw)
    assert without.ema == {}


def test_a_checkpoint_of_tf2_with_the_state_of_its_optimizer(tmp_path: Path, raw: Weights, ema: Weights) -> None:
    """EMA weights of the trainable variables alone, as TensorFlow Addons keeps them."""
    trained = {name: value for name, value in ema.items() if "moving_" not in name}
    model = import_model(AutomlFormat, save_objects(tmp_path / "ckpt-3", raw, trained, ["momentum"]), small_config())
    _assert_equal(model.raw, raw)
    _assert_equal(model.ema, trained)
    assert model.unused == ()
    plain = save_objects(tmp_path / "plain", raw, {}, ["momentum"])
    assert import_model(AutomlFormat, plain, small_config()).ema == {}
    with pytest.raises(DataError, match=r"plain: has no EMA weights\. Set --weights=raw or auto"):
        import_model(AutomlFormat, plain, small_config(), weights="ema")


def test_a_folder_means_its_newest_checkpoint(tmp_path: Path, raw: Weights, gcs: Bucket) -> None:
    for step in (90, 100):
        save_named(tmp_path / f"model.ckpt-{step}", raw)
    assert import_model(AutomlFormat, tmp_path, small_config()).prefix == str(tmp_path / "model.ckpt-100")
    remote = upload(tmp_path, f"{gcs.path}/d0")
    assert import_model(AutomlFormat, remote, small_config()).prefix == f"{remote}/model.ckpt-100"


def test_variables_that_do_not_match_are_named(tmp_path: Path, raw: Weights) -> None:
    more = raw | {"seg_head/conv/kernel": np.zeros(3, np.float32)}
    assert import_model(AutomlFormat, save_named(tmp_path / "more", more), small_config()).unused == (
        "seg_head/conv/kernel",
    )
    lost, other = "box_net/box-0/bias", "efficientnet-nano/stem/tpu_batch_normalization/beta"
    changed = {name: value for name, value in more.items() if name != lost} | {other: np.zeros(5, np.float32)}
    with pytest.raises(
        DataError,
        match=rf"do not match: 1 missing: {lost}; 1 with another shape: {other} \[5\] instead of \[16\]; "
        r"1 without a counterpart: seg_head/conv/kernel",
    ):
        import_model(AutomlFormat, save_named(tmp_path / "changed", changed), small_config())


def test_what_cannot_be_imported_is_refused(tmp_path: Path, raw: Weights) -> None:
    with pytest.raises(DataError, match="not a checkpoint of google/automl's EfficientDet"):
        import_model(AutomlFormat, save(tmp_path / "other", {"conv/kernel": np.zeros(3, np.float32)}), small_config())
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        import_model(AutomlFormat, tmp_path / "nowhere", small_config())
    prefix = save_named(tmp_path / "model", raw | {"box_net/box-0/bias": np.full(16, np.nan, np.float32)})
    with pytest.raises(DataError, match="box_net/box-0/bias is not finite"):
        import_model(AutomlFormat, prefix, small_config())
    with pytest.raises(ConfigError, match=r"model\.name = 'efficientdet-d11': no such detector"):
        import_model(AutomlFormat, prefix, small_config("model.name=efficientdet-d11", "model.overrides={}"))
    tiny_detector.register()
    with pytest.raises(ConfigError, match="--model tiny: not an EfficientDet"):
        import_model(AutomlFormat, prefix, small_config("model.name=tiny", "model.overrides={}"))


def test_a_written_model_is_loaded_with_the_wanted_weights(tmp_path: Path, raw: Weights, ema: Weights) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    imported: ImportedModel = import_model(
        AutomlFormat, save_named(tmp_path / "tf1" / "model", raw, ema), small_config()
    )
    write_model(imported, folder)
    choices: dict[WeightsChoice, Weights] = {"auto": ema, "ema": ema, "raw": raw}
    for weights, expected in choices.items():
        trained = load_trained(folder, weights=weights)
        _assert_equal({variable.path: variable.numpy() for variable in trained.detector.variables}, expected)
    assert trained.categories == imported.categories
    assert trained.config == imported.config
    with pytest.raises(DataError, match="a model of Cocoflow, not of another program"):
        import_model(AutomlFormat, folder, small_config())
    prefix = tf.train.latest_checkpoint(str(folder / "checkpoints"))
    assert prefix is None, "no list of checkpoints: a training goes on from what it lists"
