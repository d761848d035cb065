"""Metrics of single categories and of ranges of sizes, precision/recall curves, and score thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from detection.analysis.analysis_file import Category, OperatingPoint, SizeBucket
from detection.analysis.instances import Found, Objects
from detection.coco.engine import Arrays, MatchingEngine
from detection.coco.engine.batch import RIGHT, UNCOUNTED, Diagnosis
from detection.coco.metric_definitions import UNDEFINED, Figure, FloatArray, figure_value, figures_of
from detection.coco.params import Settings

_CURVES = {"0.50": 0.5, "0.75": 0.75}

_ROOTS = (0.0, 16.0, 32.0, 64.0, 96.0, 128.0, 256.0, 512.0)  # pixels


def category_columns(settings: Settings) -> list[Figure]:
    """The figures of a category: every AP, and the AR of all sizes and IoU thresholds with most detections."""

    def wanted(figure: Figure) -> bool:
        counts_most = figure.max_dets in (-1, len(settings.max_dets) - 1)
        return figure.array == "precision" or (figure.area == "all" and figure.iou is None and counts_most)

    return [figure for figure in figures_of(settings) if figure.frequency is None and wanted(figure)]


def category_figures(arrays: Arrays, settings: Settings) -> list[dict[str, float]]:
    """The figures of each category alone, by ascending id."""
    figures = category_columns(settings)
    return [
        {
            figure.name: figure_value(
                figure,
                arrays.precision[:, :, [position]],
                arrays.recall[:, [position]],
                iou_thresholds=settings.iou_thresholds,
                area_names=list(settings.area_ranges),
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
    settings: Settings,
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
        settings: of the evaluation.
    """
    figures = category_figures(arrays, settings)
    baseline = category_figures(before, settings) if before else [{} for _ in figures]
    curves = _curves_at(arrays, iou, settings)
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


def mean_curves(arrays: Arrays, settings: Settings) -> dict[str, list[float]]:
    """Mean precision over the categories that have objects, at each recall; -1 where none has."""
    precision = _counted_precision(arrays, settings)
    thresholds = settings.iou_thresholds
    curves = {
        name: precision[[abs(threshold - iou) < 1e-9 for threshold in thresholds]]
        for name, iou in _CURVES.items()
        if any(abs(threshold - iou) < 1e-9 for threshold in thresholds)
    }
    curves[f"{min(thresholds):.2f}:{max(thresholds):.2f}"] = precision
    return {name: _mean_over_categories(values) for name, values in curves.items()}


def operating_points(objects: Objects, found: Found, diagnosis: Diagnosis) -> list[OperatingPoint | None]:
    """For each category the score threshold of greatest F1, the highest of several; None where nothing is right."""
    counted = np.flatnonzero(diagnosis.detections != UNCOUNTED)
    order = counted[np.lexsort((-found.scores[counted], found.category[counted]))]
    ends = np.searchsorted(found.category[order], np.arange(len(objects.categories) + 1))
    instances = np.bincount(objects.category[~objects.ignored], minlength=len(objects.categories))
    right = diagnosis.detections == RIGHT
    return [
        _best(found.scores[order[start:end]], right[order[start:end]], int(count))
        for start, end, count in zip(ends[:-1], ends[1:], instances, strict=True)
    ]


def operating_point(objects: Objects, found: Found, diagnosis: Diagnosis) -> OperatingPoint | None:
    """The score threshold with the highest F1 over all categories; None without a true positive."""
    counted = np.flatnonzero(diagnosis.detections != UNCOUNTED)
    order = counted[np.argsort(-found.scores[counted], kind="stable")]
    right = diagnosis.detections[order] == RIGHT
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


def _counted_precision(arrays: Arrays, settings: Settings) -> FloatArray:
    """Precision [T, R, K] over all areas, with most detections."""
    return arrays.precision[:, :, :, list(settings.area_ranges).index("all"), -1]


def _curves_at(arrays: Arrays, iou: float, settings: Settings) -> FloatArray:
    """Precision [R, K] at one IoU threshold."""
    precision: FloatArray = _counted_precision(arrays, settings)[
        int(np.argmin(np.abs(np.array(settings.iou_thresholds) - iou)))
    ]
    return precision


def _mean_over_categories(precision: FloatArray) -> list[float]:
    """Args: precision [T, R, K]."""
    defined = precision[:, :, (precision > UNDEFINED).all(axis=(0, 1))]
    if not defined.size:
        return [UNDEFINED] * precision.shape[1]
    means: list[float] = defined.mean(axis=(0, 2)).tolist()
    return means


def size_buckets(objects: Objects, found: Found, settings: Settings) -> list[SizeBucket]:
    """The figures of each bucket of the roots of the objects' areas."""
    bounds = list(pairwise([root**2 for root in _ROOTS] + [np.inf]))
    # The ends of COCO's ranges belong to them; the upper one of a bucket does not.
    ranges = {f"{low:g}": (low, float(np.nextafter(high, 0.0))) for low, high in bounds}
    figures = [figure for figure in category_columns(settings) if figure.area == "all" and figure.iou in (None, 0.5)]
    settings = replace(settings, area_ranges=ranges, max_dets=settings.max_dets[-1:])
    engine = MatchingEngine(objects.categories, settings)
    engine.add(objects.sound, objects.annotations, found.entries, where="ground truth")
    arrays = engine.arrays()
    areas = objects.areas[~objects.ignored]
    return [
        SizeBucket(
            low=float(np.sqrt(low)),
            high=float(np.sqrt(high)) if np.isfinite(high) else 0.0,
            objects=int(((areas >= low) & (areas < high)).sum()),
            figures={
                figure.name: figure_value(
                    replace(figure, area=name, max_dets=-1),
                    arrays.precision,
                    arrays.recall,
                    iou_thresholds=settings.iou_thresholds,
                    area_names=list(settings.area_ranges),
                )
                for figure in figures
            },
        )
        for (low, high), name in zip(bounds, ranges, strict=True)
    ]
