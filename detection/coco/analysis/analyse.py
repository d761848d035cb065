"""`analyse`: ground truth and detections to everything that is told beyond the figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detection.coco.analysis.categories import category_rows, mean_curves
from detection.coco.analysis.findings import (
    ERROR_TYPES,
    Analysis,
    Bin,
    Calibration,
    Confusion,
    ErrorType,
    Sample,
)
from detection.coco.analysis.instances import Found, Objects, found_in, objects_of_images, read_found, read_objects
from detection.coco.analysis.options import AnalysisOptions
from detection.coco.analysis.sampling import sample_ids
from detection.coco.columns import Entry, Rows
from detection.coco.engine import Arrays, BatchEvaluation, MatchingEngine
from detection.coco.engine.batch import CalibrationBins
from detection.coco.metrics import metrics_from_arrays
from detection.coco.settings import RECALLS, Settings
from schemas.errors import ConfigError

_BACKGROUND_IOU = 0.1  # TIDE's t_b
_BINS = 10


def analyse(
    ground_truth: Mapping[str, Any],
    detections: Sequence[Entry] | Rows,
    *,
    settings: Settings,
    total_images: int | None = None,
    baseline: Sequence[Entry] | Rows | None = None,
    options: AnalysisOptions | None = None,
) -> Analysis:
    """Analyses an evaluation."""
    options = options or AnalysisOptions()
    _check(settings, options)
    kind = settings.iou_type
    whole = read_objects(ground_truth, kind, where="ground truth")
    all_found = read_found(detections, whole, kind, where="detections")
    all_before = None if baseline is None else read_found(baseline, whole, kind, where="baseline's detections")
    chosen = sample_ids((image["id"] for image in whole.images), options.images, options.seed)
    objects = objects_of_images(whole, chosen, kind)
    found = found_in(all_found, whole, objects)
    evaluation = _evaluation(objects, found, settings)
    before = None if all_before is None else _evaluation(objects, found_in(all_before, whole, objects), settings)
    arrays = evaluation.arrays()
    arrays_before = before.arrays() if before else None
    diagnosis = evaluation.diagnose(iou=options.iou, score=options.score)
    calibration = _calibrate(evaluation, found, options.iou)
    sampled = len(objects.images) < len(whole.images)
    return Analysis(
        iou_type=kind,
        sample=Sample(len(objects.images), total_images or len(whole.images), options.seed),
        figures=_figures(whole, all_found, None if sampled else arrays, settings),
        before={} if all_before is None else _figures(whole, all_before, None if sampled else arrays_before, settings),
        confidence=options.confidence,
        replicates=options.replicates,
        intervals={},
        differences={},
        iou=options.iou,
        score=options.score,
        categories=category_rows(
            objects,
            found,
            arrays,
            arrays_before,
            diagnosis=diagnosis,
            calibration=calibration.by_category if calibration else {},
            iou=options.iou,
            settings=settings,
        ),
        recall=np.linspace(0.0, 1.0, RECALLS).round(2).tolist(),
        curves=mean_curves(arrays, settings),
        confusion=Confusion(
            category_ids=[category["id"] for category in objects.categories],
            matrix=evaluation.confusion(iou=options.iou, score=options.score).tolist(),
            iou=options.iou,
            score=options.score,
        )
        if kind != "keypoints"
        else None,
        errors=_errors(evaluation, options.iou),
        calibration=_calibration(calibration),
        sizes=[],
        label_errors=[],
        worst=[],
        examples={},
    )


def _check(settings: Settings, options: AnalysisOptions) -> None:
    if not settings.use_cats:
        raise ConfigError("use_cats: an analysis tells categories apart; leave it out, or evaluate with use_cats.")
    if not any(abs(threshold - options.iou) < 1e-9 for threshold in settings.iou_thresholds):
        raise ConfigError(
            f"iou {options.iou}: the evaluation's thresholds are {settings.iou_thresholds}; give one of them."
        )


def _evaluation(objects: Objects, found: Found, settings: Settings) -> BatchEvaluation:
    return BatchEvaluation(objects.images, objects.annotations, objects.categories, found.entries, settings)


def _figures(objects: Objects, found: Found, arrays: Arrays | None, settings: Settings) -> dict[str, float]:
    """The figures of all images, from `arrays` where these are of all images."""
    if arrays is None:
        engine = MatchingEngine(objects.categories, settings)
        engine.add(objects.images, objects.annotations, found.entries, where="ground truth")
        arrays = engine.arrays()
    return metrics_from_arrays(arrays, objects.categories, settings).figures


def _errors(evaluation: BatchEvaluation, iou: float) -> list[ErrorType]:
    errors = evaluation.tide_errors(right_iou=iou, background_iou=_BACKGROUND_IOU)
    return [ErrorType(name, errors.counts[name], errors.gains[name]) for name in ERROR_TYPES]


def _calibrate(evaluation: BatchEvaluation, found: Found, iou: float) -> CalibrationBins | None:
    """None where scores are no probabilities."""
    if not len(found.scores) or found.scores.min() < 0.0 or found.scores.max() > 1.0:
        return None
    return evaluation.calibration(iou=iou, bins=_BINS)


def _calibration(told: CalibrationBins | None) -> Calibration | None:
    if told is None:
        return None
    return Calibration(
        told.expected_error,
        told.greatest_error,
        [Bin(low, high, count, score, right) for low, high, score, right, count in told.bins],
    )
