"""Whole runs of a tiny detector."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.record_decoder import decode_record
from detection.training.distributed.strategy import make_strategy
from detection.training.train import log_precision
from schemas.artifacts import CONFIG_YAML, EXTRA_FILES, LABELS_JSON, LOGS, SAVED_MODEL
from schemas.config.config_io import from_yaml
from schemas.errors import CocoflowError, DataError
from tests.detection.synthetic import CATEGORY_IDS, rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import BALANCED, SMALL, checkpoint_values, run, tiny_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("records"), rectangles(10))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory, shards: list[str]) -> Path:
    tiny_detector.register()
    output = tmp_path_factory.mktemp("whole")
    run(output, shards, *SMALL, *BALANCED)
    return output


@pytest.mark.parametrize(("precision", "warnings"), [("float32", 0), ("mixed_bfloat16", 0), ("mixed_float16", 1)])
def test_float16_on_a_cpu_is_warned_of(precision: str, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    log_precision(tiny_config(f"train.precision={precision}").train, make_strategy("one_device"))
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == warnings
    assert all("mixed_float16 on a CPU takes about ten times as long as float32" in message for message in messages)


def test_several_steps_per_call_change_nothing(whole_run: Path, shards: list[str], tmp_path: Path) -> None:
    run(tmp_path, shards, *SMALL, *BALANCED, "train.steps_per_loop=2", "train.log_every=4", exports=False)
    got, expected = checkpoint_values(tmp_path, 4), checkpoint_values(whole_run, 4)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_another_model_in_the_same_folder_is_refused(whole_run: Path, shards: list[str]) -> None:
    with pytest.raises(DataError, match=r"ckpt-4: does not fit this configuration"):
        run(whole_run, shards, *SMALL, "train.steps=8", "model.overrides.filters=4")


def test_a_run_leaves_its_configuration_logs_and_a_model(whole_run: Path) -> None:
    resolved = ("model.weights=none", "train.schedule.warmup_steps=0")
    assert from_yaml((whole_run / CONFIG_YAML).read_text()) == tiny_config(*SMALL, *BALANCED, *resolved)
    assert list((whole_run / LOGS).glob("events.*"))
    assert (whole_run / SAVED_MODEL / EXTRA_FILES / LABELS_JSON).is_file()


def test_the_exported_model_keeps_the_contract(whole_run: Path, shards: list[str]) -> None:
    loaded = tf.saved_model.load(str(whole_run / SAVED_MODEL))
    images = [
        decode_record(record, category_ids=CATEGORY_IDS).image for record in tf.data.TFRecordDataset(shards).take(3)
    ]
    encoded = tf.stack([tf.io.encode_png(image) for image in images])
    outputs = loaded.signatures["serving_default"](encoded)
    assert outputs["detection_boxes"].shape == (3, 1, 4)
    assert outputs["detection_boxes"].dtype == outputs["detection_scores"].dtype == tf.float32
    assert outputs["detection_classes"].dtype == tf.int64
    assert outputs["num_detections"].dtype == tf.int32
    assert outputs["num_detections"].shape == (3,)
    assert set(np.unique(outputs["detection_classes"])) <= set(CATEGORY_IDS)
    assert outputs.pop("valid").numpy().tolist() == [True] * 3
    again = loaded.signatures["serving_images"](tf.stack(images))
    assert again.keys() == outputs.keys()
    for name, value in outputs.items():
        np.testing.assert_allclose(value, again[name], atol=1e-5, err_msg=name)


def test_the_exported_weights_are_the_ema_weights(whole_run: Path) -> None:
    values = checkpoint_values(whole_run, 4)
    loaded = tf.saved_model.load(str(whole_run / SAVED_MODEL))
    exported = {tuple(value.shape): value.numpy() for value in loaded.weights.values() if len(value.shape) == 4}
    ema = {value.shape: value for name, value in values.items() if name.startswith("ema/") and value.ndim == 4}
    raw = {value.shape: value for name, value in values.items() if name.startswith("model/") and value.ndim == 4}
    unique = [s for s in exported if sum(v.shape == s for n, v in values.items() if n.startswith("ema/")) == 1]
    assert unique
    for shape in unique:
        np.testing.assert_array_equal(exported[shape], ema[shape])
        assert (exported[shape] != raw[shape]).any()


def test_a_diverging_run_stops_and_says_so(shards: list[str], tmp_path: Path) -> None:
    tiny_detector.register()
    with pytest.raises(CocoflowError, match=r"training diverged: the loss is not finite at step \d+.*learning_rate"):
        run(
            tmp_path,
            shards,
            *SMALL,
            "train.schedule.learning_rate=1e38",
            "train.clip.global_norm=null",
            "train.run_eagerly=true",
        )
    assert not (tmp_path / SAVED_MODEL).exists()
