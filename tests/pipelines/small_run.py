"""The smallest run of the whole pipeline."""

from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from components.saved_model_pusher import component
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.artifacts import SUMMARY_JSON
from schemas.config.config import PushConfig

FEW_STEPS = (
    "model.name=efficientdet-nano",
    "model.overrides={neck: {filters: 16, cells: 1}, head: {layers: 1}, min_level: 4, max_level: 5}",
    "train.steps=3",
    "train.validation.every=null",
    "train.batch_size=4",
    "evaluate.thresholds={absolute: {AP: 0.0}, not_worse: []}",
    "push.validation.images=0",  # a process that imports TensorFlow
    "push.warmup_requests=0",
)


def run_pipeline(root: str | Path, data: str | Path, *flags: str, assignments: tuple[str, ...] = ()) -> int:
    sets = [part for key in (*FEW_STEPS, f"run.root={root}", *assignments) for part in ("--set", key)]
    return pipeline_runner.main(["run", "--data", str(data), *sets, *flags])


def push_at_once(patch: pytest.MonkeyPatch) -> None:
    """Makes the pusher's default options those that start no process: each would import TensorFlow."""
    options = PushConfig.model_validate({"validation": {"images": 0}, "warmup_requests": 0})
    patch.setattr(component, "PushConfig", lambda: options)


def read_summary(root: str | Path) -> dict[str, Any]:
    return dict(read_json(join(root, SUMMARY_JSON)))
