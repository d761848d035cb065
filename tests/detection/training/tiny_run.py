"""A training run of seconds: as a function, and as a process of its own.

`python -m tests.detection.training.tiny_run OUTPUT SHARD... -- KEY=VALUE ...` exports no SavedModel if a key is
`no-export`; it knows the tiny detector, too.
"""

import contextlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from detection.training import train as training
from schemas.artifacts import CHECKPOINTS
from schemas.config.config import Config
from schemas.config.config_io import load_config
from tests.detection.synthetic import CATEGORY_IDS
from tests.detection.training import tiny_detector

CATEGORIES = [{"id": number, "name": f"kind {number}"} for number in CATEGORY_IDS]

# The keys of `tests.detection.training.tiny_detector`, for runs where the network does not matter.
SMALL = ("model.name=tiny", "model.overrides={}", "model.image_size=null")
# What depends on the records of the run and on its past steps; for the tiny detector.
BALANCED = (
    "train.sampling={name: repeat_factor, threshold: 0.9}",
    "train.class_weights=inverse_sqrt_frequency",
    "model.overrides.positives_momentum=0.5",
)
# The rules of google/automl's trainer, for runs whose steps are compared with plain ones.
AUTOML = (
    "train={steps: 1000, optimizer: {name: sgd, weight_decay: 4.0e-5}, augment: {scale_min: 0.1, scale_max: 2.0}, "
    "schedule: {learning_rate: 0.08, reference_batch_size: 64, warmup_learning_rate: 0.008, hold_steps: 0}}"
)
# Drop-connect is on, so that a seed that is not restored shows.
TINY = (
    AUTOML,
    "model.name=efficientdet-nano",
    "model.image_size=64",
    "model.overrides={neck: {filters: 16, cells: 1}, head: {layers: 1}, max_level: 5}",
    "model.overrides.backbone.survival_probability=0.5",
    "train.batch_size=4",
    "train.steps=4",
    "train.checkpoint_every=2",
    "train.log_every=1",
    "train.schedule.learning_rate=0.02",
    "train.schedule.reference_batch_size=null",
)


def tiny_config(*assignments: str) -> Config:
    """The tiny run's configuration with some keys changed."""
    return load_config(None, [*TINY, *assignments])


def only_steps() -> AbstractContextManager[object]:
    """Makes training end with its last checkpoint: tracing a SavedModel and losses costs as much as the steps."""
    return mock.patch.multiple(training, export_checkpoint=mock.DEFAULT, check_inference_losses=mock.DEFAULT)


def run(output: Path, shards: Sequence[str], *assignments: str, exports: bool = True) -> None:
    """Trains into `output`, and exports if the test needs it."""
    with contextlib.nullcontext() if exports else only_steps():
        training.train(tiny_config(*assignments), shards=shards, categories=CATEGORIES, output=output)


def checkpoint_values(output: Path, step: int) -> dict[str, np.ndarray]:
    """Every value in a checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(output / CHECKPOINTS / f"ckpt-{step}"))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name not in ("_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE")
    }


if __name__ == "__main__":
    folder, *rest = sys.argv[1:]
    end = rest.index("--")
    tiny_detector.register()
    assignments = [one for one in rest[end + 1 :] if one != "no-export"]
    run(Path(folder), rest[:end], *assignments, exports="no-export" not in rest)
