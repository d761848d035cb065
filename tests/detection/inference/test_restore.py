"""A trained detector is the same one wherever it is loaded from."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.export.saved_model_export import export_saved_model
from detection.inference.restore import ExportedFrom, load_trained, read_exported_from, read_model_config
from detection.models.detector import variables_by_path
from detection.models.registry import detector_from_config
from schemas.artifacts import (
    CHECKPOINTS,
    CONFIG_YAML,
    EMA_PART,
    EXPORTED_FROM_JSON,
    EXTRA_FILES,
    LABELS_JSON,
    MODEL_PART,
    SAVED_MODEL,
    STEP_PART,
)
from schemas.config.config_io import to_yaml
from schemas.errors import DataError
from tests.detection.export.exported_models import export_config
from tests.detection.training.tiny_run import CATEGORIES
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

STEP = 7
EMA_STEM, RAW_STEM = 0.25, 0.75  # all values of the stem's kernel


def _write_checkpoint(folder: Path, *, with_ema: bool = True) -> None:
    detector = detector_from_config(export_config().model, CATEGORIES)
    stem = detector.backbone.stem.conv.kernel
    stem.assign(tf.fill(stem.shape, RAW_STEM))
    parts = {MODEL_PART: variables_by_path(detector.variables), STEP_PART: tf.Variable(STEP, dtype=tf.int64)}
    if with_ema:
        parts[EMA_PART] = {stem.path: tf.Variable(tf.fill(stem.shape, EMA_STEM))}
    tf.train.Checkpoint(**parts).write(str(folder / f"ckpt-{STEP}"))


def _write_output(folder: Path, *assignments: str, with_ema: bool = True) -> Path:
    """Writes a folder like the output of `train`."""
    _write_checkpoint(folder / CHECKPOINTS, with_ema=with_ema)
    (folder / CONFIG_YAML).write_text(to_yaml(export_config(*assignments)))
    (folder / LABELS_JSON).write_text(json.dumps(CATEGORIES))
    return folder


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_output(tmp_path_factory.mktemp("output"))


def _stem(detector: object) -> float:
    values = np.unique(detector.backbone.stem.conv.kernel.numpy())  # type: ignore[attr-defined]
    assert len(values) == 1
    return float(values[0])


def test_the_choice_of_weights(output: Path) -> None:
    auto, ema, raw = (load_trained(output, weights=weights) for weights in ("auto", "ema", "raw"))
    assert (auto.categories, auto.config) == (CATEGORIES, export_config())
    assert auto.exported_from == ema.exported_from == ExportedFrom(STEP, "ema")
    assert raw.exported_from == ExportedFrom(STEP, "raw")
    assert (_stem(auto.detector), _stem(ema.detector), _stem(raw.detector)) == (EMA_STEM, EMA_STEM, RAW_STEM)


def test_auto_means_the_weights_that_the_training_exports(tmp_path: Path) -> None:
    trained = load_trained(_write_output(tmp_path / "raw", "train.ema.use_moving_averages=false"))
    assert (_stem(trained.detector), trained.exported_from) == (RAW_STEM, ExportedFrom(STEP, "raw"))
    without = _write_output(tmp_path / "without", with_ema=False)
    trained = load_trained(without)
    assert (_stem(trained.detector), trained.exported_from) == (RAW_STEM, ExportedFrom(STEP, "raw"))
    with pytest.raises(DataError, match=r"ckpt-7: has no EMA weights"):
        load_trained(without, weights="ema")


def test_every_place_means_the_same_detector(output: Path, tmp_path: Path, gcs: Bucket) -> None:
    trained = load_trained(output / CHECKPOINTS / f"ckpt-{STEP}")
    model = tmp_path / "Model" / SAVED_MODEL
    export_saved_model(
        trained.detector,
        model,
        categories=trained.categories,
        config_yaml=to_yaml(trained.config),
        exported_from=trained.exported_from,
    )
    for path in (output / CHECKPOINTS, upload(output, f"{gcs.path}/output"), model, model.parent):
        other = load_trained(path)
        assert other[1:] == trained[1:]
        for one, same in zip(trained.detector.variables, other.detector.variables, strict=True):
            assert one.path == same.path
            np.testing.assert_array_equal(one.numpy(), same.numpy())
    assert _stem(load_trained(model, weights="ema").detector) == EMA_STEM
    with pytest.raises(DataError, match=r"requested the raw weights, but a SavedModel has .* the ema weights"):
        load_trained(model, weights="raw")


def test_weights_without_descriptions_are_refused(tmp_path: Path) -> None:
    _write_checkpoint(tmp_path)
    with pytest.raises(DataError, match=r"no config\.yaml beside its weights\. .* with import-checkpoint"):
        load_trained(tmp_path)
    (tmp_path / CONFIG_YAML).write_text(to_yaml(export_config()))
    with pytest.raises(DataError, match=r"no categories\.json beside its weights"):
        load_trained(tmp_path)
    (tmp_path / LABELS_JSON).write_text(json.dumps(CATEGORIES[:1]))
    with pytest.raises(DataError, match="does not match its configuration: class_net"):
        load_trained(tmp_path)
    (tmp_path / CONFIG_YAML).write_text("train: [")
    with pytest.raises(DataError, match=r"config\.yaml: not a YAML file: .*export or copy the model again"):
        load_trained(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"step": 7}',
        '{"step": "7", "weights": "ema"}',
        '{"step": true, "weights": "ema"}',
        '{"step": -1, "weights": "ema"}',
        '{"step": 1e400, "weights": "ema"}',
        '{"step": 7, "weights": ["ema"]}',
    ],
)
def test_a_spoilt_step_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / EXTRA_FILES).mkdir()
    (tmp_path / EXTRA_FILES / EXPORTED_FROM_JSON).write_text(text)
    with pytest.raises(DataError, match=r"assets\.extra/training\.json: not "):
        read_exported_from(tmp_path)


@pytest.mark.parametrize("content", [b"\x80", b"train: [", b"train: {nope: 1}"])
def test_a_damaged_configuration_of_a_model_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / EXTRA_FILES / CONFIG_YAML
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}: .*export or copy the model again"):
        read_model_config(tmp_path)
