"""Evaluates models' detections on the images of an analysis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detection.analysis.instances import (
    DetectionColumns,
    GroundTruth,
    detection_columns,
    detections_in,
    ground_truth_columns,
    ground_truth_of_images,
    sample_ids,
)
from detection.coco.accumulator import MetricsAccumulator
from detection.coco.average_precision import named_metric
from detection.coco.engine import Arrays
from detection.coco.engine.batch import BatchEvaluation, CalibrationBins, Diagnosis
from detection.coco.engine.geometry import Geometry
from detection.coco.engine.streaming import require_analysis
from detection.coco.keypoint_sigmas import fit_keypoints
from detection.coco.metric import Matched, Metric
from detection.coco.metrics import metrics_from_arrays
from detection.coco.params import Params
from detection.coco.validation.checks import Checked, check_categories
from detection.datasets.annotations.entries import Entry, Rows
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import ConfigError

_BINS = 10  # bins of the calibration


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Ground truth and detections with lazily computed, cached results of their evaluation.

    ground_truth: the ground truth.
    detections: the detections.
    params: parameters of the evaluation.
    """

    ground_truth: GroundTruth
    detections: DetectionColumns
    params: Params

    @cached_property
    def evaluation(self) -> BatchEvaluation:
        """The engine's evaluation."""
        ground_truth = self.ground_truth
        return BatchEvaluation(
            ground_truth.checked_images,
            ground_truth.annotations,
            ground_truth.categories,
            self.detections.results,
            self.params,
        )

    @cached_property
    def arrays(self) -> Arrays:
        """Precision, recall and scores."""
        return self.evaluation.arrays()

    @cached_property
    def geometry(self) -> Geometry:
        """Shapes and overlaps."""
        return self.evaluation.geometry()

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics by name."""
        metrics = metrics_from_arrays(self.arrays, self.ground_truth.categories, self.params).by_name
        ids = self.category_ids
        return metrics | {metric.name: metric.values(rows, ids).overall for metric, rows in self.matched.items()}

    @property
    def category_ids(self) -> list[int]:
        """Ids of the categories, ascending."""
        return [category["id"] for category in self.ground_truth.categories]

    @cached_property
    def matched(self) -> dict[Metric, Matched]:
        """The matched images of each metric besides COCO's."""
        truth, params = self.ground_truth, self.params
        checked = Checked(truth.checked_images, truth.annotations, self.detections.results)
        metrics = [named_metric(name) for name in params.metrics]
        return {metric: metric.match(checked, truth.categories, params.iou_type) for metric in metrics}

    def diagnosis(self, options: AnalysisConfig) -> Diagnosis:
        """The status of each detection and annotation."""
        return self.evaluation.diagnose(iou=options.iou, score=options.score)

    def calibration(self, options: AnalysisConfig) -> CalibrationBins | None:
        """Returns scores compared with precision; None without detections, or if scores are not probabilities."""
        scores = self.detections.scores
        if not scores.size or scores.min() < 0.0 or scores.max() > 1.0:
            return None
        return self.evaluation.calibration(iou=options.iou, bins=_BINS)

    def with_scores(self, scores: npt.NDArray[np.floating[Any]]) -> "Evaluated":
        """Returns an evaluation of the same boxes with other scores.

        Args:
            scores: [N], in the order of `detections`, which must be rows.
        """
        rows = np.array(self.detections.results)
        rows[:, 5] = scores
        return replace(self, detections=replace(self.detections, results=rows, scores=rows[:, 5]))


class Model(NamedTuple):
    """One model's detections.

    metrics: metrics on all images.
    sampled: evaluation of the images analysed.
    """

    metrics: dict[str, float]
    sampled: Evaluated


def evaluate_models(
    ground_truth: Mapping[str, Any],
    results: Sequence[tuple[str, Sequence[Entry] | Rows]],
    params: Params,
    options: AnalysisConfig,
) -> list[Model]:
    """Checks ground truth and detections, and evaluates the same sample of images for all models.

    Args:
        ground_truth: COCO tree.
        results: for each model, the source of its detections for errors, and COCO results or rows.
        params: parameters of the evaluation.
        options: options of the analysis.

    Raises:
        ConfigError: `params` without `use_cats`, or without the IoU threshold of `options`.
        DataError: ground truth or detections are invalid; an analysis of so many categories needs too much memory.
    """
    _check(params, options)
    check_categories(ground_truth["categories"], where="ground truth", lvis=params.lvis)
    params = fit_keypoints(params, ground_truth["categories"])
    require_analysis(len(ground_truth["categories"]), params, models=len(results), replicates=options.replicates)
    whole = ground_truth_columns(ground_truth, params, where="ground truth")
    ids = [image["id"] for image in whole.images]
    part = ground_truth_of_images(whole, sample_ids(ids, options.images, options.seed), params)
    models = []
    for where, entries in results:
        detections = detection_columns(entries, whole, params, where=where)
        if len(part.images) == len(whole.images):
            evaluated = Evaluated(whole, detections, params)
            models.append(Model(evaluated.metrics, evaluated))
        else:
            sampled = Evaluated(part, detections_in(detections, whole, part), params)
            models.append(Model(_metrics(whole, detections, params), sampled))
    return models


def _check(params: Params, options: AnalysisConfig) -> None:
    if not params.use_cats:
        raise ConfigError("use_cats: an analysis needs categories. Evaluate without analysis.")
    if not any(abs(threshold - options.iou) < 1e-9 for threshold in params.iou_thresholds):
        known = ", ".join(f"{threshold:g}" for threshold in params.iou_thresholds)
        raise ConfigError(f"iou {options.iou}: the evaluation's IoU thresholds are {known}; choose one of them.")


def _metrics(ground_truth: GroundTruth, detections: DetectionColumns, params: Params) -> dict[str, float]:
    """Returns the metrics on all images, with less memory than an `Evaluated`."""
    accumulator = MetricsAccumulator(ground_truth.categories, params)
    accumulator.add_checked(Checked(ground_truth.checked_images, ground_truth.annotations, detections.results))
    return accumulator.result(last=True).by_name
