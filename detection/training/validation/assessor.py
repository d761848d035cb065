"""Evaluating a checkpoint, and keeping what comes of it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from detection.coco.metrics import CocoMetrics
from detection.coco.summary import metrics_to_json
from detection.images.drawing import Picture
from detection.inference.export import ServingModule
from detection.inference.mean_losses import MeanLosses
from detection.inference.saved_model import SignatureDetector
from detection.models.detector import Detector
from detection.reports.tensorboard import write_evaluation
from detection.training.checkpoints.files import checkpoint_path
from detection.training.checkpoints.weights import load_weights
from detection.training.validation.best import BestCheckpoint
from detection.training.validation.history import Entry, read_history, write_history
from detection.training.validation.split import ValidationSplit
from schemas.artifacts import BEST, HISTORY_JSON
from schemas.config.config import AnalysisConfig
from schemas.config.optimization import WeightsKind

_LOGGER = logging.getLogger("cocoflow.trainer")


class CheckpointEvaluation(NamedTuple):
    """An evaluation of a checkpoint.

    metrics: of all images of the split.
    losses: see `MeanLosses`; empty: not asked for.
    pictures: see `ValidationSplit.pictures`.
    """

    metrics: CocoMetrics
    losses: Mapping[str, float] = MappingProxyType({})
    pictures: Sequence[Picture] = ()


class CheckpointEvaluator:
    """From a checkpoint to the metrics that its exported model would have, to the bit.

    Args:
        detector: built as the run's configuration says; gets each checkpoint's weights.
        split: to evaluate on.
        categories: the data set's, in the order of the detector's classes.
        batch_size: images per call.
        weights: the weights of a checkpoint that are evaluated.
        losses: built on this detector; None: no losses.
        options: of the pictures; its `visualizations` may be 0.
    """

    def __init__(
        self,
        detector: Detector,
        split: ValidationSplit,
        *,
        categories: Sequence[Mapping[str, Any]],
        batch_size: int,
        weights: WeightsKind = "ema",
        losses: MeanLosses | None = None,
        options: AnalysisConfig | None = None,
    ) -> None:
        self._losses = losses
        self._options = options or AnalysisConfig()
        self._split = split
        self._weights = weights
        self._detector = detector
        self._module = ServingModule(detector, [category["id"] for category in categories])
        self._signature = SignatureDetector(self._module.serve_encoded, batch_size=batch_size)

    def __call__(self, path: str) -> CheckpointEvaluation:
        """Evaluates the checkpoint at `path`.

        Raises:
            DataError: see `load_weights` and `ValidationSplit.evaluate`.
        """
        load_weights(self._detector, path, weights=self._weights)
        metrics = self._split.evaluate(self._signature)
        losses = {} if self._losses is None else self._losses(self._split.records())
        return CheckpointEvaluation(metrics, losses, self._split.pictures(self._signature, self._options))


class Assessor:
    """Keeps the figures of each checkpoint, and the best of them, in a folder.

    Args:
        evaluate: from the path of a checkpoint to its evaluation.
        folder: for the history of figures and the best checkpoint.
        logs: for TensorBoard.
        metric: that tells the best; more is better.
    """

    def __init__(
        self, evaluate: Callable[[str], CheckpointEvaluation], *, folder: Path, logs: Path, metric: str
    ) -> None:
        self.best = BestCheckpoint(folder / BEST)
        self._evaluate = evaluate
        self._history = folder / HISTORY_JSON
        self._logs = logs
        self._metric = metric

    def entries(self) -> list[Entry]:
        """Of all checkpoints that were assessed, by ascending step."""
        return read_history(self._history)

    def forget_after(self, step: int) -> None:
        """Drops the figures of later steps, whose checkpoints the run is going to make again; of 0 the best one, too.

        Of a lost checkpoint that was the best so far, the copy stays: the run may not
        come to as good a one again.
        """
        entries = self.entries()
        kept = [entry for entry in entries if entry.step <= step]
        if kept != entries:
            write_history(self._history, kept)
        if step == 0:
            self.best.clear()

    def assess(self, checkpoints: Path, step: int) -> Entry:
        """Evaluates a checkpoint.

        A kill on the way leaves no entry, so that it is done again.

        Args:
            checkpoints: folder that it lies in.
            step: which one.

        Raises:
            FileNotFoundError: the checkpoint was removed meanwhile.
            DataError: it cannot be evaluated, or what is found cannot be written.
        """
        metrics, losses, pictures = self._evaluate(checkpoint_path(checkpoints, step))
        write_evaluation(self._logs, step=step, metrics=metrics, losses=losses, pictures=pictures)
        report = metrics_to_json(metrics)
        is_best = self.best.offer(checkpoints, step, report=report, metric=self._metric)
        entry = Entry(step, metrics.by_name)
        write_history(self._history, [*(other for other in self.entries() if other.step != step), entry])
        words = "the best so far" if is_best else f"the best is that of step {self.best.step}"
        _LOGGER.info("step %d: %s %.4f on validation, %s", step, self._metric, metrics.by_name[self._metric], words)
        return entry
