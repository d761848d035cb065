"""Comparison of two models, a and b, on the same images: its types, and `compare_detections`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from detection.analysis.analysis_file import ErrorType, ImageResult, ImageSample, Interval
from detection.analysis.bootstrap import bootstrap
from detection.analysis.boundaries import matched_masks
from detection.analysis.categories import category_metrics
from detection.analysis.error_analysis import Gallery, error_counts
from detection.analysis.evaluated import Evaluated, evaluate_models
from detection.coco.engine.batch import Diagnosis
from detection.coco.metrics import UNDEFINED
from detection.coco.params import FloatArray, IntArray, Params
from detection.datasets.annotations.entries import Entry, Rows
from schemas.config.evaluate import AnalysisConfig

BOUNDARY_IOU = "boundary IoU"


@dataclass(frozen=True)
class Change:
    """A metric of both models, -1 if undefined.

    difference: b minus a; None if either is undefined.
    interval: interval of the difference on the sample; None without a sample or replicates.
    """

    a: float
    b: float
    difference: float | None
    interval: Interval | None


@dataclass(frozen=True)
class CategoryChange:
    """One category.

    ground_truth: number of annotated instances, without crowds and ignored ones; None if unknown.
    metrics: name -> change; only AP has an interval.  With masks compared image by image, also
        `BOUNDARY_IOU`, the mean over the ground truth that both models match.
    """

    id: int
    name: str
    ground_truth: int | None
    metrics: dict[str, Change]


@dataclass(frozen=True)
class ErrorChange:
    """One of `ERROR_TYPES`, in both models."""

    a: ErrorType
    b: ErrorType


@dataclass(frozen=True)
class ImageChange:
    """An image on which the models differ.

    errors: FP and FN of b minus those of a.
    """

    errors: int
    a: ImageResult
    b: ImageResult


@dataclass(frozen=True)
class Comparison:
    """Models a and b on the same images.

    a, b: names of the models.
    sample: the images compared one by one; None if only metrics were compared.
    remarks: notes on the comparison, as sentences, such as missing intervals or different ground
        truths.
    confidence: confidence of the intervals.
    replicates: number of bootstrap replicates.
    iou, score: thresholds of TP and FP on images.
    metrics: name -> change, on all images.
    categories: by ascending id.
    errors: in the order of `ERROR_TYPES`; empty if unknown for one model.
    better, worse: images on which b has fewer, or more, errors, the largest changes first.
    """

    iou_type: str
    a: str
    b: str
    sample: ImageSample | None
    remarks: list[str]
    confidence: float
    replicates: int
    iou: float
    score: float
    metrics: dict[str, Change]
    categories: list[CategoryChange]
    errors: list[ErrorChange]
    better: list[ImageChange]
    worse: list[ImageChange]


def compare_detections(
    ground_truth: Mapping[str, Any],
    a: Sequence[Entry] | Rows,
    b: Sequence[Entry] | Rows,
    *,
    params: Params,
    names: tuple[str, str] = ("a", "b"),
    options: AnalysisConfig | None = None,
) -> Comparison:
    """Compares two models' detections, image by image.

    Args:
        ground_truth: COCO tree of the images of both.
        a: COCO results, or for boxes rows [N, 7]: image_id, x, y, width, height, score,
            category_id.
        b: detections of the other model.
        params: parameters of the evaluation, with `use_cats`.
        names: names of the models, such as their files.
        options: options of the analysis; `worst` is the length of each list of images.

    Raises:
        ConfigError: `params` without `use_cats`, or without the IoU threshold of `options`.
        DataError: ground truth or detections are invalid.
    """
    options = options or AnalysisConfig()
    first, second = evaluate_models(ground_truth, list(zip(names, (a, b), strict=True)), params, options)
    intervals = bootstrap(second.sampled, first.sampled, options)
    errors = zip(error_counts(first.sampled, options), error_counts(second.sampled, options), strict=True)
    evaluated = first.sampled, second.sampled
    diagnoses = first.sampled.diagnosis(options), second.sampled.diagnosis(options)
    better, worse = _changed_images(evaluated, diagnoses, options)
    boundaries = _boundaries(evaluated, diagnoses) if params.iou_type == "segm" else None
    images = len(second.sampled.ground_truth.images)
    return Comparison(
        iou_type=params.iou_type,
        a=names[0],
        b=names[1],
        sample=ImageSample(images, len(ground_truth["images"]), options.seed),
        remarks=boundaries.remarks() if boundaries else [],
        confidence=options.confidence,
        replicates=options.replicates,
        iou=options.iou,
        score=options.score,
        metrics=changes(first.metrics, second.metrics, intervals.differences),
        categories=_category_changes(*evaluated, intervals.categories, boundaries),
        errors=[ErrorChange(*both) for both in errors],
        better=better,
        worse=worse,
    )


def changes(
    a: Mapping[str, float], b: Mapping[str, float], intervals: Mapping[str, Interval] | None = None
) -> dict[str, Change]:
    """Computes the changes of all metrics that either model has."""
    names = [*a, *(name for name in b if name not in a)]
    return {
        name: _change(a.get(name, UNDEFINED), b.get(name, UNDEFINED), (intervals or {}).get(name)) for name in names
    }


def _change(a: float, b: float, interval: Interval | None) -> Change:
    return Change(a, b, None if UNDEFINED in (a, b) else b - a, interval)


def _category_changes(
    a: Evaluated, b: Evaluated, intervals: Mapping[int, Interval], boundaries: "_Boundaries | None"
) -> list[CategoryChange]:
    ground_truth = a.ground_truth
    counts = np.bincount(ground_truth.category[~ground_truth.ignored], minlength=len(ground_truth.categories))
    metrics = zip(category_metrics(a), category_metrics(b), strict=True)
    return [
        CategoryChange(
            id=category["id"],
            name=str(category.get("name", category["id"])),
            ground_truth=int(count),
            metrics=changes(*both, {"AP": intervals[category["id"]]} if category["id"] in intervals else {})
            | ({BOUNDARY_IOU: boundaries.change(position)} if boundaries else {}),
        )
        for position, (category, count, both) in enumerate(zip(ground_truth.categories, counts, metrics, strict=True))
    ]


class _Boundaries(NamedTuple):
    """Boundary IoU of both models on the ground truth that both match, so that missing objects is no advantage.

    category: int64 [M], positions of the categories.
    a, b: float64 [M].
    """

    category: IntArray
    a: FloatArray
    b: FloatArray

    def change(self, category: int) -> Change:
        """Returns the change of the mean of a category, by position."""
        chosen = self.category == category
        if not chosen.any():
            return _change(UNDEFINED, UNDEFINED, None)
        return _change(float(self.a[chosen].mean()), float(self.b[chosen].mean()), None)

    def remarks(self) -> list[str]:
        """Returns the means as a sentence."""
        if not len(self.category):
            return []
        return [
            f"Mean boundary IoU {self.a.mean():.3f} (A), {self.b.mean():.3f} (B), of {len(self.category):,} instances "
            "that both models match."
        ]


def _boundaries(models: tuple[Evaluated, Evaluated], diagnoses: tuple[Diagnosis, Diagnosis]) -> _Boundaries:
    a, b = (matched_masks(model, diagnosis) for model, diagnosis in zip(models, diagnoses, strict=True))
    both, of_a, of_b = np.intersect1d(a.annotation, b.annotation, assume_unique=True, return_indices=True)
    return _Boundaries(models[0].ground_truth.category[both], a.boundary_iou[of_a], b.boundary_iou[of_b])


def _changed_images(
    models: tuple[Evaluated, Evaluated], diagnoses: tuple[Diagnosis, Diagnosis], options: AnalysisConfig
) -> tuple[list[ImageChange], list[ImageChange]]:
    """Returns the images on which b has fewer errors, and those on which it has more."""
    before, after = (Gallery(*both, options) for both in zip(models, diagnoses, strict=True))
    errors = after.fp + after.fn - before.fp - before.fn
    order = np.argsort(-np.abs(errors), kind="stable")

    def first(images: Any) -> list[ImageChange]:
        return [
            ImageChange(int(errors[image]), before.image_result(image), after.image_result(image))
            for image in images[: options.worst].tolist()
        ]

    return first(order[errors[order] < 0]), first(order[errors[order] > 0])
