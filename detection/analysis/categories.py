"""Metrics per category and per size range, precision/recall curves, and score thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from detection.analysis.analysis_file import Category, Interval, OperatingPoint, SizeBucket
from detection.analysis.evaluated import Evaluated
from detection.coco.engine import MatchingEngine
from detection.coco.engine.batch import FP, IGNORED, TP, Diagnosis
from detection.coco.metrics import UNDEFINED, FloatArray, category_values, metric_definitions_of, metric_value
from detection.coco.params import IntArray, Params
from schemas.metrics import MetricDefinition

_CURVES = {"0.50": 0.5, "0.75": 0.75}

_SCORES = np.arange(101) / 100  # lower bounds of the bins of scores
_ROOTS = (0.0, 16.0, 32.0, 64.0, 96.0, 128.0, 256.0, 512.0)  # pixels


def category_definitions(params: Params) -> list[MetricDefinition]:
    """Returns the metrics of a category: every AP, and the AR of all sizes and IoU thresholds with max `max_dets`."""

    def wanted(metric: MetricDefinition) -> bool:
        counts_most = metric.max_dets in (-1, len(params.max_dets) - 1)
        return metric.array == "precision" or (metric.area == "all" and metric.iou is None and counts_most)

    return [metric for metric in metric_definitions_of(params) if metric.frequency is None and wanted(metric)]


def category_metrics(evaluated: Evaluated) -> list[dict[str, float]]:
    """Computes the metrics of each category, by ascending id."""
    return category_values(category_definitions(evaluated.params), evaluated.arrays, evaluated.params)


def category_rows(
    evaluated: Evaluated,
    baseline: Evaluated | None,
    *,
    diagnosis: Diagnosis,
    calibration: Mapping[int, float],
    errors: Sequence[Mapping[str, int]],
    differences: Mapping[int, Interval],
    iou: float,
) -> list[Category]:
    """Computes the rows of the per-category table, by ascending id.

    Args:
        evaluated: evaluation of the images analysed.
        baseline: evaluation of the baseline on these images; None: no baseline.
        diagnosis: TP and FP at `iou`.
        calibration: category id -> expected calibration error, for categories with detections.
        errors: error counts per category, from `errors_by_category`.
        differences: category id -> difference of AP to the baseline.
        iou: one of the IoU thresholds.
    """
    ground_truth, detections = evaluated.ground_truth, evaluated.detections
    metrics = category_metrics(evaluated)
    before = category_metrics(baseline) if baseline else [{} for _ in metrics]
    curves = _counted_precision(evaluated)[np.argmin(np.abs(np.array(evaluated.params.iou_thresholds) - iou))]
    points = operating_points(evaluated, diagnosis)
    by_score = [_counts_by_score(evaluated, diagnosis.detections == status) for status in (TP, FP)]
    counted = ~ground_truth.ignored
    size = len(ground_truth.categories)
    instances = np.bincount(ground_truth.category[counted], minlength=size)
    pairs = np.unique(np.stack([ground_truth.image[counted], ground_truth.category[counted]]), axis=1)
    images = np.bincount(pairs[1], minlength=size)
    counts = np.bincount(detections.category, minlength=size)
    return [
        Category(
            id=category["id"],
            name=str(category.get("name", category["id"])),
            metrics=metrics[position],
            baseline_metrics=before[position],
            ground_truth=int(instances[position]),
            images=int(images[position]),
            detections=int(counts[position]),
            best=points[position],
            precision=curves[:, position].tolist() if instances[position] else [],
            calibration_error=calibration.get(category["id"]),
            errors=dict(errors[position]),
            ap_difference=differences.get(category["id"]),
            tp_by_score=by_score[0][position].tolist(),
            fp_by_score=by_score[1][position].tolist(),
        )
        for position, category in enumerate(ground_truth.categories)
    ]


def mean_curves(evaluated: Evaluated) -> dict[str, list[float]]:
    """Computes the mean precision over the categories with ground truth, at each recall; -1 without ground truth."""
    precision = _counted_precision(evaluated)
    thresholds = evaluated.params.iou_thresholds
    curves = {
        name: precision[[abs(threshold - iou) < 1e-9 for threshold in thresholds]]
        for name, iou in _CURVES.items()
        if any(abs(threshold - iou) < 1e-9 for threshold in thresholds)
    }
    curves[f"{min(thresholds):.2f}:{max(thresholds):.2f}"] = precision
    return {name: _mean_over_categories(values) for name, values in curves.items()}


def operating_points(evaluated: Evaluated, diagnosis: Diagnosis) -> list[OperatingPoint | None]:
    """Finds the score threshold with the highest F1 per category, the highest in a tie; None without a TP."""
    ground_truth, detections = evaluated.ground_truth, evaluated.detections
    counted = np.flatnonzero(diagnosis.detections != IGNORED)
    order = counted[np.lexsort((-detections.scores[counted], detections.category[counted]))]
    ends = np.searchsorted(detections.category[order], np.arange(len(ground_truth.categories) + 1))
    instances = np.bincount(ground_truth.category[~ground_truth.ignored], minlength=len(ground_truth.categories))
    tp = diagnosis.detections == TP
    return [
        _best(detections.scores[order[start:end]], tp[order[start:end]], int(count))
        for start, end, count in zip(ends[:-1], ends[1:], instances, strict=True)
    ]


def operating_point(evaluated: Evaluated, diagnosis: Diagnosis) -> OperatingPoint | None:
    """Finds the score threshold with the highest F1 over all categories; None without a true positive."""
    scores = evaluated.detections.scores
    counted = np.flatnonzero(diagnosis.detections != IGNORED)
    order = counted[np.argsort(-scores[counted], kind="stable")]
    tp = diagnosis.detections[order] == TP
    return _best(scores[order], tp, int(np.count_nonzero(~evaluated.ground_truth.ignored)))


def _best(scores: FloatArray, tp: npt.NDArray[np.bool_], ground_truth: int) -> OperatingPoint | None:
    """Args: scores [N], descending; tp [N]; ground_truth, number of annotated instances."""
    if not ground_truth or not tp.any():
        return None
    last_of_score = np.append(scores[1:] != scores[:-1], True)
    hits = np.cumsum(tp)[last_of_score]
    taken = np.flatnonzero(last_of_score) + 1
    f1 = 2 * hits / (taken + ground_truth)
    best = int(np.argmax(f1))
    return OperatingPoint(
        score=float(scores[last_of_score][best]),
        precision=float(hits[best] / taken[best]),
        recall=float(hits[best] / ground_truth),
        f1=float(f1[best]),
    )


def _counts_by_score(evaluated: Evaluated, chosen: npt.NDArray[np.bool_]) -> IntArray:
    """Counts chosen detections [N] in bins of scores of each category, int64 [K, 101]; [K, 0] if scores exceed 0..1."""
    detections, size = evaluated.detections, len(evaluated.ground_truth.categories)
    if np.any((detections.scores < 0.0) | (detections.scores > 1.0)):
        return np.zeros((size, 0), np.int64)
    bins = np.searchsorted(_SCORES, detections.scores[chosen], side="right") - 1
    cells = detections.category[chosen] * len(_SCORES) + bins
    return np.bincount(cells, minlength=size * len(_SCORES)).reshape(size, len(_SCORES))


def _counted_precision(evaluated: Evaluated) -> FloatArray:
    """Returns precision [T, R, K] over all areas, with the largest `max_dets`."""
    return evaluated.arrays.precision[:, :, :, list(evaluated.params.area_ranges).index("all"), -1]


def _mean_over_categories(precision: FloatArray) -> list[float]:
    """Args: precision [T, R, K]."""
    defined = precision[:, :, (precision > UNDEFINED).all(axis=(0, 1))]
    if not defined.size:
        return [UNDEFINED] * precision.shape[1]
    means: list[float] = defined.mean(axis=(0, 2)).tolist()
    return means


def size_buckets(evaluated: Evaluated) -> list[SizeBucket]:
    """Computes the metrics for each range of the square root of the area."""
    ground_truth, detections, params = evaluated.ground_truth, evaluated.detections, evaluated.params
    bounds = list(pairwise([root**2 for root in _ROOTS] + [np.inf]))
    # Both limits of COCO's ranges are inclusive; the upper limit of a bucket is not.
    ranges = {f"{low:g}": (low, float(np.nextafter(high, 0.0))) for low, high in bounds}
    metrics = [metric for metric in category_definitions(params) if metric.area == "all" and metric.iou in (None, 0.5)]
    params = replace(params, area_ranges=ranges, max_dets=params.max_dets[-1:])
    engine = MatchingEngine(ground_truth.categories, params)
    engine.add(ground_truth.checked_images, ground_truth.annotations, detections.results, where="ground truth")
    arrays = engine.arrays()
    areas = ground_truth.areas[~ground_truth.ignored]
    return [
        SizeBucket(
            low=float(np.sqrt(low)),
            high=float(np.sqrt(high)) if np.isfinite(high) else 0.0,
            ground_truth=int(((areas >= low) & (areas < high)).sum()),
            metrics={
                metric.name: metric_value(
                    replace(metric, area=name, max_dets=-1), arrays.precision, arrays.recall, params
                )
                for metric in metrics
            },
        )
        for (low, high), name in zip(bounds, ranges, strict=True)
    ]
