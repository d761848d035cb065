"""The per-category table and the mean precision/recall curves."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from detection.analysis.findings import Category, OperatingPoint
from detection.analysis.instances import Found, Objects
from detection.coco.engine import Arrays
from detection.coco.engine.batch import IGNORED, TP, Diagnosis
from detection.coco.metrics import UNDEFINED, MetricDefinition, metric_definitions_of, metric_value
from detection.coco.params import FloatArray, Params

_CURVES = {"0.50": 0.5, "0.75": 0.75}


def category_columns(params: Params) -> list[MetricDefinition]:
    """The figures of a category: every AP, and the AR of all sizes and IoU thresholds with most detections."""

    def wanted(figure: MetricDefinition) -> bool:
        counts_most = figure.max_dets in (-1, len(params.max_dets) - 1)
        return figure.array == "precision" or (figure.area == "all" and figure.iou is None and counts_most)

    return [figure for figure in metric_definitions_of(params) if figure.frequency is None and wanted(figure)]


def category_figures(arrays: Arrays, params: Params) -> list[dict[str, float]]:
    """The figures of each category alone, by ascending id."""
    figures = category_columns(params)
    return [
        {
            figure.name: metric_value(
                figure,
                arrays.precision[:, :, [position]],
                arrays.recall[:, [position]],
                iou_thresholds=params.iou_thresholds,
                area_names=list(params.area_ranges),
            )
            for figure in figures
        }
        for position in range(len(arrays.category_ids))
    ]


def category_rows(
    objects: Objects,
    found: Found,
    arrays: Arrays,
    before: Arrays | None,
    *,
    diagnosis: Diagnosis,
    calibration: Mapping[int, float],
    errors: Sequence[Mapping[str, int]],
    iou: float,
    params: Params,
) -> list[Category]:
    """The rows of the table, by ascending id.

    Args:
        objects: the ground truth.
        found: the detections.
        arrays: of their evaluation.
        before: of the baseline's, or None.
        diagnosis: which detections are right at `iou`.
        calibration: category id -> expected calibration error, where there are detections.
        errors: of each category, see `errors_by_category`.
        iou: one of the IoU thresholds.
        params: of the evaluation.
    """
    figures = category_figures(arrays, params)
    baseline = category_figures(before, params) if before else [{} for _ in figures]
    curves = _curves_at(arrays, iou, params)
    points = operating_points(objects, found, diagnosis)
    counted = ~objects.ignored
    size = len(objects.categories)
    instances = np.bincount(objects.category[counted], minlength=size)
    pairs = np.unique(np.stack([objects.image[counted], objects.category[counted]]), axis=1)
    images = np.bincount(pairs[1], minlength=size)
    detections = np.bincount(found.category, minlength=size)
    return [
        Category(
            id=category["id"],
            name=str(category.get("name", category["id"])),
            figures=figures[position],
            before=baseline[position],
            objects=int(instances[position]),
            images=int(images[position]),
            detections=int(detections[position]),
            best=points[position],
            precision=curves[:, position].tolist() if instances[position] else [],
            calibration_error=calibration.get(category["id"]),
            errors=dict(errors[position]),
        )
        for position, category in enumerate(objects.categories)
    ]


def mean_curves(arrays: Arrays, params: Params) -> dict[str, list[float]]:
    """Mean precision over the categories that have objects, at each recall; -1 where none has."""
    precision = _counted_precision(arrays, params)
    thresholds = params.iou_thresholds
    curves = {
        name: precision[[abs(threshold - iou) < 1e-9 for threshold in thresholds]]
        for name, iou in _CURVES.items()
        if any(abs(threshold - iou) < 1e-9 for threshold in thresholds)
    }
    curves[f"{min(thresholds):.2f}:{max(thresholds):.2f}"] = precision
    return {name: _mean_over_categories(values) for name, values in curves.items()}


def operating_points(objects: Objects, found: Found, diagnosis: Diagnosis) -> list[OperatingPoint | None]:
    """For each category the score threshold of greatest F1, the highest of several; None where nothing is right."""
    counted = np.flatnonzero(diagnosis.detections != IGNORED)
    order = counted[np.lexsort((-found.scores[counted], found.category[counted]))]
    ends = np.searchsorted(found.category[order], np.arange(len(objects.categories) + 1))
    instances = np.bincount(objects.category[~objects.ignored], minlength=len(objects.categories))
    right = diagnosis.detections == TP
    return [
        _best(found.scores[order[start:end]], right[order[start:end]], int(count))
        for start, end, count in zip(ends[:-1], ends[1:], instances, strict=True)
    ]


def operating_point(objects: Objects, found: Found, diagnosis: Diagnosis) -> OperatingPoint | None:
    """The score threshold with the highest F1 over all categories; None without a true positive."""
    counted = np.flatnonzero(diagnosis.detections != IGNORED)
    order = counted[np.argsort(-found.scores[counted], kind="stable")]
    right = diagnosis.detections[order] == TP
    return _best(found.scores[order], right, int(np.count_nonzero(~objects.ignored)))


def _best(scores: FloatArray, right: npt.NDArray[np.bool_], objects: int) -> OperatingPoint | None:
    """Args: scores [N], descending; right [N]; objects, how many there are to find."""
    if not objects or not right.any():
        return None
    last_of_score = np.append(scores[1:] != scores[:-1], True)
    hits = np.cumsum(right)[last_of_score]
    taken = np.flatnonzero(last_of_score) + 1
    f1 = 2 * hits / (taken + objects)
    best = int(np.argmax(f1))
    return OperatingPoint(
        score=float(scores[last_of_score][best]),
        precision=float(hits[best] / taken[best]),
        recall=float(hits[best] / objects),
        f1=float(f1[best]),
    )


def _counted_precision(arrays: Arrays, params: Params) -> FloatArray:
    """Precision [T, R, K] over all areas, with most detections."""
    return arrays.precision[:, :, :, list(params.area_ranges).index("all"), -1]


def _curves_at(arrays: Arrays, iou: float, params: Params) -> FloatArray:
    """Precision [R, K] at one IoU threshold."""
    precision: FloatArray = _counted_precision(arrays, params)[
        int(np.argmin(np.abs(np.array(params.iou_thresholds) - iou)))
    ]
    return precision


def _mean_over_categories(precision: FloatArray) -> list[float]:
    """Args: precision [T, R, K]."""
    defined = precision[:, :, (precision > UNDEFINED).all(axis=(0, 1))]
    if not defined.size:
        return [UNDEFINED] * precision.shape[1]
    means: list[float] = defined.mean(axis=(0, 2)).tolist()
    return means
