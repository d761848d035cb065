"""Analysis of an evaluation: from ground truth and detections to an `Analysis`."""

from collections.abc import Mapping, Sequence
from typing import Any

from detection.analysis.analysis_file import Analysis, Bin, Calibration, Confusion, ImageSample
from detection.analysis.bootstrap import bootstrap
from detection.analysis.boundaries import boundaries
from detection.analysis.categories import category_rows, mean_curves, operating_point, size_buckets
from detection.analysis.error_analysis import Gallery, error_counts, label_errors
from detection.analysis.evaluated import Evaluated, evaluate_models
from detection.coco.engine.batch import CalibrationBins
from detection.coco.params import RECALLS, Params
from detection.datasets.annotations.entries import Entry, Rows
from schemas.config.evaluate import AnalysisConfig


def analyse(
    ground_truth: Mapping[str, Any],
    detections: Sequence[Entry] | Rows,
    *,
    params: Params,
    total_images: int | None = None,
    baseline: Sequence[Entry] | Rows | None = None,
    options: AnalysisConfig | None = None,
) -> Analysis:
    """Analyses an evaluation.

    The analysis does not depend on the order of the images.  Keypoints have no confusion matrix
    and no label-error candidates: both compare categories by boxes, which detected keypoints do
    not have.

    Args:
        ground_truth: COCO tree: images, annotations, categories.
        detections: COCO results, or for boxes rows [N, 7]: image_id, x, y, width,
            height, score, category_id.
        params: parameters of the evaluation, with `use_cats`.
        total_images: number of evaluated images, if `ground_truth` has only a sample of them
            (by `sample_rank`); the metrics are then those of the sample.
        baseline: another model's detections on the same images.
        options: options of the analysis; default `AnalysisConfig()`.

    Raises:
        ConfigError: `params` without `use_cats`, or without the IoU threshold of `options`.
        DataError: ground truth or detections are invalid.
    """
    options = options or AnalysisConfig()
    models = [("detections", detections)]
    if baseline is not None:
        models.append(("the baseline's detections", baseline))
    model, *others = evaluate_models(ground_truth, models, params, options)
    candidate, before = model.sampled, others[0].sampled if others else None
    images = len(candidate.ground_truth.images)
    diagnosis = candidate.diagnosis(options)
    calibration = candidate.calibration(options)
    intervals = bootstrap(candidate, before, options)
    gallery = Gallery(candidate, diagnosis, options)
    keypoints = params.iou_type == "keypoints"
    return Analysis(
        iou_type=params.iou_type,
        sample=ImageSample(images, total_images or len(ground_truth["images"]), options.seed),
        metrics=model.metrics,
        baseline_metrics=others[0].metrics if others else {},
        confidence=options.confidence,
        replicates=options.replicates,
        intervals=intervals.metrics,
        differences=intervals.differences,
        iou=options.iou,
        score=options.score,
        categories=category_rows(
            candidate,
            before,
            diagnosis=diagnosis,
            calibration=calibration.by_category if calibration else {},
            errors=gallery.errors_by_category(),
            differences=intervals.categories,
            iou=options.iou,
        ),
        recall=[step / (RECALLS - 1) for step in range(RECALLS)],
        curves=mean_curves(candidate),
        confusion=None if keypoints else _confusion(candidate, options),
        errors=error_counts(candidate, options),
        calibration=_calibration(calibration),
        sizes=size_buckets(candidate),
        label_errors=[] if keypoints else label_errors(candidate, diagnosis, options.label_errors),
        worst=gallery.worst(options.worst),
        examples=gallery.examples(options.examples),
        operating_point=operating_point(candidate, diagnosis),
        boundaries=boundaries(candidate, diagnosis, options) if params.iou_type == "segm" else None,
    )


def _confusion(candidate: Evaluated, options: AnalysisConfig) -> Confusion:
    return Confusion(
        category_ids=[category["id"] for category in candidate.ground_truth.categories],
        matrix=candidate.evaluation.confusion(iou=options.iou, score=options.score).tolist(),
        iou=options.iou,
        score=options.score,
    )


def _calibration(measured: CalibrationBins | None) -> Calibration | None:
    if measured is None:
        return None
    bins = [Bin(low, high, count, score, precision) for low, high, score, precision, count in measured.bins]
    return Calibration(measured.expected_error, measured.max_error, bins)
