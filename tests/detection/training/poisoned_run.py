"""A training run of the tiny detector in which one white image makes everything not a number."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.training.train import train
from schemas import features
from schemas.config.config_io import load_config
from tests.detection.synthetic import CATEGORY_IDS, example, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import AUTOML, CATEGORIES

RECORDS, BATCH = 8, 4
KEYS = (
    "model.name=tiny",
    f"train.batch_size={BATCH}",
    "train.steps=6",
    "train.schedule.warmup_steps=0",
    "train.checkpoint_every=1",
    "train.log_every=2",
    "train.steps_per_loop=4",
    "train.augment={scale_min: 1.0, scale_max: 1.0}",
)


def image_id(index: int) -> str:
    """Of the record at `index` in reading order."""
    return str(900 - 7 * index)


def write_records(folder: Path, white: int) -> list[str]:
    """One shard of grey images of which one, at index `white`, is white; each with a box."""
    records = []
    for index in range(RECORDS):
        image = np.full((32, 32, 3), 255 if index == white else 100, np.uint8)
        record = tf.train.Example.FromString(example(image, [[4, 6, 20, 30]], [CATEGORY_IDS[index % 3]]))
        for key, value in ((features.SOURCE_ID, image_id(index)), (features.FILENAME, f"image_{index}.png")):
            record.features.feature[key].bytes_list.value.append(value.encode())
        records.append(record.SerializeToString())
    return write_shards(folder, records, shards=1)


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the tiny detector answers NaN where an image is white."""
    tiny_detector.register()
    call = tiny_detector.TinyDetector.call

    def poisoned(self: Any, images: tf.Tensor, **keywords: Any) -> tf.Tensor:
        is_white = tf.reduce_mean(images, axis=[1, 2, 3]) > 2.0
        return call(self, images, **keywords) + tf.where(is_white, math.nan, 0.0)[:, tf.newaxis]

    monkeypatch.setattr(tiny_detector.TinyDetector, "call", poisoned)


def run(output: Path, shards: Sequence[str], *assignments: str) -> None:
    """Trains into `output`."""
    train(load_config(None, [AUTOML, *KEYS, *assignments]), shards=shards, categories=CATEGORIES, output=output)
