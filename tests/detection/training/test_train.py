"""Whole runs of a tiny detector."""

import logging
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.record_decoder import decode_record
from detection.training.distributed.strategy import make_strategy
from detection.training.train import log_pace, log_precision
from schemas.artifacts import CONFIG_YAML, EXTRA_FILES, LABELS_JSON, LOGS, SAVED_MODEL
from schemas.config.config_io import from_yaml
from tests.detection.synthetic import CATEGORY_IDS, rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import BALANCED, SMALL, run, tiny_config

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


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["train.schedule.warmup_steps=100"], None),
        (["train.schedule.warmup_steps=101"], "warmup_steps = 101 is more than a tenth of the 1000 steps"),
        (["train.ema={decay: 0.9999, dynamic: true}"], None),
        (["train.ema={decay: 0.9999, dynamic: false}"], "after 1000 steps, 90 % of the EMA weights are still the init"),
        (["train.ema={decay: 0.99, dynamic: false}"], None),
    ],
)
def test_a_recipe_for_longer_runs_is_told(
    assignments: list[str], message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cocoflow.trainer"):
        log_pace(tiny_config("train.steps=1000", *assignments).train)
    assert len(caplog.messages) == (message is not None)
    assert all((message or "") in text for text in caplog.messages)
