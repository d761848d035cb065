"""Evaluates checkpoints: metrics, losses and pictures; updates the history and the best checkpoint."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from detection.coco.metrics import CocoMetrics
from detection.coco.summary import metrics_to_json
from detection.images.drawing import Picture
from detection.inference.device_copies import copy_weights, on_device_of
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.formats.serving_module import ServingModule
from detection.inference.mean_losses import MeanLosses
from detection.inference.restore import ChosenOn
from detection.models.detector import Detector
from detection.reports.tensorboard import write_evaluation
from detection.training.checkpoints.files import checkpoint_path
from detection.training.checkpoints.manager import load_weights
from detection.training.validation.history import BestCheckpoint, HistoryEntry, read_history, write_history
from detection.training.validation.split import ValidationSplit
from schemas.artifacts import BEST, HISTORY_JSON
from schemas.config.evaluate import AnalysisConfig
from schemas.config.train.optimization import WeightsKind
from schemas.metrics import metrics_of_report
from schemas.progress import log_phase

_LOGGER = logging.getLogger("cocoflow.trainer")


class CheckpointEvaluation(NamedTuple):
    """Results of evaluating a checkpoint.

    metrics: metrics over all images of the split, per IoU type.
    losses: mean losses by name; empty: not computed.
    pictures: pictures of detections beside ground truth.
    """

    metrics: Sequence[CocoMetrics]
    losses: Mapping[str, float] = MappingProxyType({})
    pictures: Sequence[Picture] = ()


class DetectorEvaluator:
    """Computes the metrics of the model that would be exported from a checkpoint, bit for bit.

    Args:
        detector: detector of the run's configuration; its weights are replaced by each checkpoint's.
        split: split to evaluate on.
        categories: COCO categories, in the order of the detector's classes.
        batch_size: images per call.
        weights: the checkpoint's weights to evaluate.
        losses: computes the mean losses of this detector; None: no losses.
        options: options of the pictures; its `visualizations` may be 0.
        copies: copies of `detector` on other devices, which share the images.
        load: loads the weights of the checkpoint at a path into `detector`; None: read the checkpoint.
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
        copies: Sequence[Detector] = (),
        load: Callable[[str], None] | None = None,
    ) -> None:
        self._losses = losses
        self._options = options or AnalysisConfig()
        self._split = split
        self._load = load or functools.partial(load_weights, detector, weights=weights)
        self._detector = detector
        self._copies = copies
        # Modules own the functions of their signatures, so keep a reference.
        self._modules = [ServingModule(one, categories) for one in (detector, *copies)]
        first, *others = (module.serve_encoded for module in self._modules)
        on_devices = [on_device_of(copy, signature) for copy, signature in zip(copies, others, strict=True)]
        self._signatures = [SignatureDetector(one, batch_size=batch_size) for one in (first, *on_devices)]

    @property
    def num_images(self) -> int:
        """Number of images of the split."""
        return len(self._split)

    def __call__(self, path: str) -> CheckpointEvaluation:
        """Evaluates the checkpoint at `path`, together with the other machines of the split's `share`.

        Raises:
            DataError: the checkpoint or a record cannot be read or evaluated.
        """
        self._load(path)
        copy_weights(self._detector, self._copies)
        metrics = self._split.evaluate(*self._signatures)
        share = self._split.share
        losses = {} if self._losses is None else self._losses(self._split.records(), gather=share.gather)
        pictures = self._split.pictures(self._signatures[0], self._options) if share.index == 0 else ()
        return CheckpointEvaluation(metrics, losses, pictures)


class CheckpointEvaluator:
    """Evaluates checkpoints, and saves their metrics and the best checkpoint to a folder.

    Args:
        evaluate: evaluates the checkpoint at a path.
        folder: folder for the history of metrics and the best checkpoint.
        logs: TensorBoard's folder.
        chosen_on: the evaluated images, and the metric for choosing the best checkpoint; higher is better.
        learning_rate: returns that of the last step before a checkpoint.

    Attributes:
        best: the best checkpoint so far.
    """

    def __init__(
        self,
        evaluate: Callable[[str], CheckpointEvaluation],
        *,
        folder: Path,
        logs: Path,
        chosen_on: ChosenOn,
        learning_rate: Callable[[int], float] | None = None,
    ) -> None:
        self.best = BestCheckpoint(folder / BEST)
        self._evaluate = evaluate
        self._history = folder / HISTORY_JSON
        self._logs = logs
        self._chosen_on = chosen_on
        self._learning_rate = learning_rate

    def history(self) -> list[HistoryEntry]:
        """Reads the metrics of all evaluated checkpoints, by ascending step."""
        return read_history(self._history)

    def forget_after(self, step: int) -> None:
        """Drops the metrics of later steps, which the run will repeat; for step 0 also the best checkpoint.

        The copy of the best checkpoint is kept even if it is from a later step: the run may not reach
        as good a result again.
        """
        history = self.history()
        kept = [entry for entry in history if entry.step <= step]
        if kept != history:
            write_history(self._history, kept)
        if step == 0:
            self.best.clear()

    def evaluate(self, checkpoints: Path, step: int) -> HistoryEntry:
        """Evaluates a checkpoint.

        A kill during the evaluation leaves no entry, so the evaluation is repeated.

        Args:
            checkpoints: folder of the checkpoint.
            step: step of the checkpoint.

        Raises:
            FileNotFoundError: the checkpoint was removed meanwhile.
            DataError: the checkpoint cannot be evaluated, or the results cannot be written.
        """
        log_phase(_LOGGER, f"evaluating the checkpoint of step {step:,}")
        metrics, losses, pictures = self._evaluate(checkpoint_path(checkpoints, step))
        others = {} if self._learning_rate is None else {"learning_rate": self._learning_rate(step)}
        write_evaluation(self._logs, step=step, metrics=metrics, losses=losses, pictures=pictures, others=others)
        report = metrics_to_json(*metrics)
        is_best = self.best.offer(checkpoints, step, report=report, chosen_on=self._chosen_on)
        entry = HistoryEntry(step, metrics_of_report(report))
        write_history(self._history, [*(other for other in self.history() if other.step != step), entry])
        comparison = "the best so far" if is_best else f"the best is step {self.best.step:,}"
        metric = self._chosen_on.metric
        _LOGGER.info("step %s: %s %.4f on validation, %s", f"{step:,}", metric, entry.metrics[metric], comparison)
        return entry
