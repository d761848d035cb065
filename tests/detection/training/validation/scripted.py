"""Checkpoints and metrics by script: what happens around an evaluation, without one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.coco import CocoMetrics, evaluate
from detection.inference.restore import ChosenOn
from detection.training.checkpoints.files import checkpoint_path, step_of
from detection.training.validation.checkpoint_evaluator import CheckpointEvaluation, CheckpointEvaluator

_GROUND_TRUTH: dict[str, Any] = {
    "images": [{"id": 1, "width": 9, "height": 9}],
    "annotations": [],
    "categories": [{"id": 1}],
}


def metrics_with(**values: float) -> CocoMetrics:
    """An evaluation with given metrics."""
    metrics = evaluate(_GROUND_TRUTH, [])
    metrics.by_name.update(values)
    return metrics


def save_checkpoint(folder: Path, step: int) -> None:
    """A checkpoint that holds its own step."""
    tf.train.Checkpoint(step=tf.Variable(step)).write(checkpoint_path(folder, step))


class Script:
    """An evaluation whose metrics are given; `asked` lists the evaluated steps."""

    def __init__(self, values: Mapping[int, float], metric: str = "AP") -> None:
        self.values = values
        self.asked: list[int] = []
        self._metric = metric

    def __call__(self, path: str) -> CheckpointEvaluation:
        step = step_of(path)
        self.asked.append(step)
        return CheckpointEvaluation([metrics_with(**{self._metric: self.values[step]})])

    def evaluator(self, folder: Path) -> CheckpointEvaluator:
        chosen_on = ChosenOn("eval", 7, self._metric)
        return CheckpointEvaluator(self, folder=folder / "validation", logs=folder / "logs", chosen_on=chosen_on)
