"""`analyse`: ground truth and detections to everything that is told beyond the figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from detection.coco.analysis.categories import category_rows, mean_curves
from detection.coco.analysis.error_types import BACKGROUND_IOU, type_errors
from detection.coco.analysis.evaluated import Evaluated, figures_of
from detection.coco.analysis.findings import (
    ERROR_TYPES,
    Analysis,
    Bin,
    Calibration,
    Confusion,
    ErrorType,
    Interval,
    Sample,
)
from detection.coco.analysis.instances import objects_of_images, read_found, read_objects
from detection.coco.analysis.intervals import difference_intervals, figure_intervals
from detection.coco.analysis.options import AnalysisOptions
from detection.coco.analysis.pictures import Gallery, label_errors
from detection.coco.analysis.resampling import draw_images
from detection.coco.analysis.sampling import sample_ids
from detection.coco.analysis.sizes import size_buckets
from detection.coco.columns import Entry, Rows
from detection.coco.engine.batch import CalibrationBins
from detection.coco.settings import RECALLS, Settings
from schemas.errors import ConfigError

_BINS = 10


def analyse(
    ground_truth: Mapping[str, Any],
    detections: Sequence[Entry] | Rows,
    *,
    settings: Settings,
    total_images: int | None = None,
    figures: Mapping[str, float] | None = None,
    baseline: Sequence[Entry] | Rows | None = None,
    before: Mapping[str, float] | None = None,
    options: AnalysisOptions | None = None,
) -> Analysis:
    """Analyses an evaluation.

    The same images, objects and detections give the same analysis, whatever the order
    of the images.  Keypoints have no confusion and no label errors: both compare
    categories by boxes, which detected keypoints do not have.

    Args:
        ground_truth: COCO tree: images, annotations, categories.
        detections: COCO results, or for boxes rows [N, 7]: image_id, x, y, width,
            height, score, category_id.
        settings: of the evaluation, with categories told apart.
        total_images: how many images were evaluated, where `ground_truth` has only a
            sample of them (see `sample_rank`); its `figures` and `before` are then those of all.
        figures: of all images; default: of those given.
        baseline: another model's detections on the same images.
        before: the baseline's figures of all images; default: of those given.
        options: sizes and thresholds.

    Raises:
        ConfigError: settings or options that do not fit.
        DataError: see `detection.coco.checks`.
    """
    options = options or AnalysisOptions()
    _check(settings, options)
    whole = read_objects(ground_truth, settings.iou_type, where="ground truth")
    image_ids = [image["id"] for image in whole.images]
    part = objects_of_images(whole, sample_ids(image_ids, options.images, options.seed), settings.iou_type)
    everything = [
        Evaluated(whole, read_found(those, whole, settings.iou_type, where=where), settings)
        for those, where in ((detections, "detections"), (baseline, "the baseline's detections"))
        if those is not None
    ]
    sampled = len(part.images) < len(whole.images)
    of_all = [
        dict(known) if known else figures_of(one.objects, one.found, settings) if sampled else one.figures
        for one, known in zip(everything, (figures, before), strict=False)
    ]
    candidate, *others = [one.in_images_of(part) for one in everything]
    return _analysis(
        candidate,
        others[0] if others else None,
        sample=Sample(len(part.images), total_images or len(whole.images), options.seed),
        figures=of_all[0],
        before=of_all[1] if others else {},
        options=options,
    )


def _check(settings: Settings, options: AnalysisOptions) -> None:
    if not settings.use_cats:
        raise ConfigError("use_cats: an analysis tells categories apart; evaluate without it only.")
    if not any(abs(threshold - options.iou) < 1e-9 for threshold in settings.iou_thresholds):
        known = ", ".join(f"{threshold:g}" for threshold in settings.iou_thresholds)
        raise ConfigError(f"iou {options.iou}: the evaluation's IoU thresholds are {known}; choose one of them.")


def _analysis(
    candidate: Evaluated,
    baseline: Evaluated | None,
    *,
    sample: Sample,
    figures: dict[str, float],
    before: dict[str, float],
    options: AnalysisOptions,
) -> Analysis:
    objects, found, settings = candidate.objects, candidate.found, candidate.settings
    diagnosis = candidate.evaluation.diagnose(iou=options.iou, score=options.score)
    boxes = candidate.geometry.boxes
    calibration = _calibrate(candidate, options.iou)
    intervals, differences = _intervals(candidate, baseline, options)
    gallery = Gallery(
        objects,
        found,
        boxes=boxes,
        diagnosis=diagnosis,
        errors=type_errors(objects, found, diagnosis, candidate.geometry, iou=options.iou, score=options.score),
        score=options.score,
    )
    keypoints = settings.iou_type == "keypoints"
    return Analysis(
        iou_type=settings.iou_type,
        sample=sample,
        figures=figures,
        before=before,
        confidence=options.confidence,
        replicates=options.replicates,
        intervals=intervals,
        differences=differences,
        iou=options.iou,
        score=options.score,
        categories=category_rows(
            objects,
            found,
            candidate.arrays,
            baseline.arrays if baseline else None,
            diagnosis=diagnosis,
            calibration=calibration.by_category if calibration else {},
            iou=options.iou,
            settings=settings,
        ),
        recall=[step / (RECALLS - 1) for step in range(RECALLS)],
        curves=mean_curves(candidate.arrays, settings),
        confusion=None if keypoints else _confusion(candidate, options),
        errors=_errors(candidate, options.iou),
        calibration=_calibration(calibration),
        sizes=size_buckets(objects, found, settings),
        label_errors=[] if keypoints else label_errors(objects, found, boxes, diagnosis, options.label_errors),
        worst=gallery.worst(options.worst),
        examples=gallery.examples(options.examples),
    )


def _intervals(
    candidate: Evaluated, baseline: Evaluated | None, options: AnalysisOptions
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Of the figures, and of the candidate's minus the baseline's."""
    if not options.replicates or not candidate.objects.images:
        return {}, {}
    weights = draw_images(len(candidate.objects.images), options.replicates, options.seed)
    replicates = candidate.resampled(weights).figures
    intervals = figure_intervals(candidate.figures, replicates, options.confidence)
    if baseline is None:
        return intervals, {}
    replicates_before = baseline.resampled(weights).figures
    differences = difference_intervals(
        candidate.figures, baseline.figures, replicates, replicates_before, options.confidence
    )
    return intervals, differences


def _confusion(candidate: Evaluated, options: AnalysisOptions) -> Confusion:
    return Confusion(
        category_ids=[category["id"] for category in candidate.objects.categories],
        matrix=candidate.evaluation.confusion(iou=options.iou, score=options.score).tolist(),
        iou=options.iou,
        score=options.score,
    )


def _errors(candidate: Evaluated, iou: float) -> list[ErrorType]:
    errors = candidate.evaluation.tide_errors(right_iou=iou, background_iou=BACKGROUND_IOU)
    return [ErrorType(name, errors.counts[name], errors.gains[name]) for name in ERROR_TYPES]


def _calibrate(candidate: Evaluated, iou: float) -> CalibrationBins | None:
    """None where there are no scores, or they are no probabilities."""
    scores = candidate.found.scores
    if not scores.size or scores.min() < 0.0 or scores.max() > 1.0:
        return None
    return candidate.evaluation.calibration(iou=iou, bins=_BINS)


def _calibration(told: CalibrationBins | None) -> Calibration | None:
    if told is None:
        return None
    bins = [Bin(low, high, count, score, right) for low, high, score, right, count in told.bins]
    return Calibration(told.expected_error, told.greatest_error, bins)
