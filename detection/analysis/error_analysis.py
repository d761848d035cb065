"""Error types of detections, the images with the most errors, and the label-error candidates.

Source of the error types: Bolya et al., "TIDE: A General Toolbox for Identifying Object
Detection Errors", ECCV 2020, with the order of precedence of its code: Loc, Cls, Dupe, Bkg,
Both.  For keypoints, the overlap with ground truth of the same category is the keypoint
similarity, with ground truth of another category the IoU of the boxes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detection.analysis.analysis_file import ERROR_TYPES, Box, ErrorType, ImageResult, LabelError
from detection.analysis.evaluated import Evaluated, evaluate_models
from detection.analysis.matching import BoolArray, by_image
from detection.coco.engine.batch import FN, FP, IGNORED, MATCHED, TP, Diagnosis
from detection.coco.metrics import FloatArray
from detection.coco.params import IntArray, Params
from detection.datasets.annotations.entries import LARGEST_ID, Entry, Rows, skeleton_of
from detection.datasets.masks import compressed_rle
from schemas.config.evaluate import AnalysisConfig

_BACKGROUND_IOU = 0.1  # t_b of the paper


@dataclass(frozen=True, eq=False)
class TypedErrors:
    """Errors among the detections above a score.

    types: error type -> positions of the detections, ascending.
    fn: positions of the ground truth that no detection matches, even with a corrected class or box.
    matched: bool [G], whether a detection matches the ground truth.
    """

    types: dict[str, IntArray]
    fn: IntArray
    matched: BoolArray


def error_counts(evaluated: Evaluated, options: AnalysisConfig) -> list[ErrorType]:
    """Counts the errors by type, for detections of any score."""
    errors = evaluated.evaluation.tide_errors(match_iou=options.iou, background_iou=_BACKGROUND_IOU)
    return [ErrorType(name, errors.counts[name], errors.gains[name]) for name in ERROR_TYPES]


def type_errors(evaluated: Evaluated, diagnosis: Diagnosis, options: AnalysisConfig) -> TypedErrors:
    """Finds the error types of false positives above the score."""
    ground_truth, detections = evaluated.ground_truth, evaluated.detections
    kept = detections.scores >= options.score
    fp = np.flatnonzero(kept & (diagnosis.detections == FP))
    same, other = np.zeros(len(detections.image)), np.zeros(len(detections.image))
    same_object, other_object = np.zeros(len(detections.image), np.int64), np.zeros(len(detections.image), np.int64)
    for theirs, gt in by_image(ground_truth, detections, fp):
        alike = detections.category[theirs, None] == ground_truth.category[gt]
        overlap, across = evaluated.geometry.overlaps_across(theirs, gt)
        _note_greatest(np.where(alike, overlap, 0.0), theirs, gt, same, same_object)
        _note_greatest(np.where(alike | ground_truth.crowd[gt], 0.0, across), theirs, gt, other, other_object)
    types = _types(same[fp], other[fp], options.iou)
    by_type = {name: fp[those] for name, those in types.items()}
    by_kept = diagnosis.annotations == MATCHED
    by_kept[by_kept] = kept[diagnosis.matches[by_kept]]
    fn = (diagnosis.annotations == FN) | ((diagnosis.annotations == MATCHED) & ~by_kept)
    fn[same_object[by_type["Loc"]]] = False
    fn[other_object[by_type["Cls"]]] = False
    return TypedErrors(by_type, np.flatnonzero(fn), by_kept)


def _note_greatest(
    overlap: FloatArray, detections: IntArray, ground_truth: IntArray, values: FloatArray, places: IntArray
) -> None:
    """Updates the max overlap [D, G] of each detection, and the index of that ground truth."""
    greatest = overlap.argmax(axis=1)
    values[detections] = overlap[np.arange(len(detections)), greatest]
    places[detections] = ground_truth[greatest]


def _types(same: FloatArray, other: FloatArray, iou: float) -> dict[str, BoolArray]:
    """Determines the error types from the max overlaps with objects of the same and of other categories.

    Args:
        same: float64 [N].
        other: float64 [N].
        iou: IoU threshold of TP and FP.
    """
    box = (same >= _BACKGROUND_IOU) & (same <= iou)
    category = ~box & (other >= iou)
    twice = ~box & ~category & (same > iou)  # an FP: another detection matches the ground truth
    background = ~box & ~category & ~twice & (other <= _BACKGROUND_IOU)
    return {
        "Cls": category,
        "Loc": box,
        "Both": ~(box | category | twice | background),
        "Dupe": twice,
        "Bkg": background,
    }


class Gallery:
    """Status of every box on the images, for detections above the score.

    tp, fp, fn: int64 [I], counts per image.
    """

    def __init__(self, evaluated: Evaluated, diagnosis: Diagnosis, options: AnalysisConfig) -> None:
        ground_truth, detections = evaluated.ground_truth, evaluated.detections
        errors = type_errors(evaluated, diagnosis, options)
        self._iou_type = evaluated.params.iou_type
        self._skeletons = {category["id"]: skeleton_of(category) for category in ground_truth.categories}
        self._ground_truth = ground_truth
        self._detections = detections
        self._boxes = evaluated.geometry.boxes
        self._errors = errors
        self._kept = detections.scores >= options.score
        self._statuses = np.select(
            [diagnosis.detections == TP, diagnosis.detections == IGNORED], ["TP", "ignored"], ""
        ).astype("U8")
        for name, positions in errors.types.items():
            self._statuses[positions] = name
        counted = diagnosis.annotations != IGNORED
        images = len(ground_truth.images)
        self.tp = np.bincount(detections.image[self._kept & (diagnosis.detections == TP)], minlength=images)
        self.fp = np.bincount(detections.image[self._kept & (diagnosis.detections == FP)], minlength=images)
        self.fn = np.bincount(ground_truth.image[counted & ~errors.matched], minlength=images)
        self._object_statuses = np.select([~counted, errors.matched], ["crowd", "matched"], "Miss")

    def worst(self, count: int) -> list[ImageResult]:
        """Returns the images with the most FP and FN, in descending order."""
        errors = self.fp + self.fn
        order = np.argsort(-errors, kind="stable")
        return [self.image_result(image) for image in order[:count].tolist() if errors[image]]

    def examples(self, count: int) -> dict[str, list[ImageResult]]:
        """Returns images per error type, the most confident detections first; for `Miss`, the most annotations."""
        return {
            name: [self.image_result(image) for image in self._with_fn(count)]
            if name == "Miss"
            else [self.image_result(image) for image in self._most_confident(self._errors.types[name], count)]
            for name in ERROR_TYPES
        }

    def errors_by_category(self) -> list[dict[str, int]]:
        """Counts the false positives by type, and the missed ground truth, per category."""
        size = len(self._ground_truth.categories)
        counts = {
            name: np.bincount(self._detections.category[positions], minlength=size)
            for name, positions in self._errors.types.items()
        }
        counts["Miss"] = np.bincount(self._ground_truth.category[self._errors.fn], minlength=size)
        return [{name: int(counts[name][position]) for name in ERROR_TYPES} for position in range(size)]

    def image_result(self, image: int) -> ImageResult:
        """Returns the image at a position: all its ground truth, and its detections by descending score."""
        entry = self._ground_truth.images[image]
        detections = np.flatnonzero((self._detections.image == image) & self._kept)
        detections = detections[np.argsort(-self._detections.scores[detections], kind="stable")]
        ids = [category["id"] for category in self._ground_truth.categories]
        return ImageResult(
            image_id=entry["id"],
            file_name=str(entry.get("file_name", "")),
            width=_side(entry.get("width")),
            height=_side(entry.get("height")),
            tp=int(self.tp[image]),
            fp=int(self.fp[image]),
            fn=int(self.fn[image]),
            ground_truth=[
                Box(
                    category_id=ids[self._ground_truth.category[position]],
                    bbox=self._ground_truth.boxes[position].tolist(),
                    score=None,
                    status=str(self._object_statuses[position]),
                    **self._shape(entry, self._ground_truth.annotations[position]),
                )
                for position in np.flatnonzero(self._ground_truth.image == image)
            ],
            detections=[
                Box(
                    category_id=ids[self._detections.category[position]],
                    bbox=self._boxes[position].tolist(),
                    score=float(self._detections.scores[position]),
                    status=str(self._statuses[position]),
                    **self._shape(entry, self._detections.results[position]),
                )
                for position in detections
            ],
        )

    def _shape(self, image: Entry, entry: Any) -> dict[str, Any]:
        """Returns the fields of `Box` that are compared besides the box: of an annotation or a detection."""
        if self._iou_type == "segm":
            return {"mask": compressed_rle(entry.get("segmentation"), height=image["height"], width=image["width"])}
        if self._iou_type == "keypoints":
            return {"keypoints": entry["keypoints"], "skeleton": self._skeletons[entry["category_id"]]}
        return {}

    def _most_confident(self, detections: IntArray, count: int) -> list[int]:
        order = detections[np.argsort(-self._detections.scores[detections], kind="stable")]
        return list(dict.fromkeys(self._detections.image[order].tolist()))[:count]

    def _with_fn(self, count: int) -> list[int]:
        images, numbers = np.unique(self._ground_truth.image[self._errors.fn], return_counts=True)
        most: list[int] = images[np.argsort(-numbers, kind="stable")][:count].tolist()
        return most


def image_results(
    ground_truth: Mapping[str, Any], detections: Sequence[Entry] | Rows, *, params: Params, options: AnalysisConfig
) -> list[ImageResult]:
    """Returns the result on each of a few images, by ascending id.

    Args:
        ground_truth: COCO tree of these images.
        detections: COCO results or rows.
        params: parameters of the evaluation.
        options: options of the analysis; uses `iou` and `score`.

    Raises:
        ConfigError: `params` without `use_cats`, or without the IoU threshold of `options`.
        DataError: ground truth or detections are invalid.
    """
    every_one = options.model_copy(update={"images": max(1, len(ground_truth["images"]))})
    (model,) = evaluate_models(ground_truth, [("detections", detections)], params, every_one)
    evaluated = model.sampled
    gallery = Gallery(evaluated, evaluated.diagnosis(options), options)
    return [gallery.image_result(position) for position in range(len(evaluated.ground_truth.images))]


def _side(value: object) -> int:
    """Returns pixels; 0 if missing in the ground truth, where only masks need them."""
    return (
        int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST_ID else 0
    )


def label_errors(evaluated: Evaluated, diagnosis: Diagnosis, count: int) -> list[LabelError]:
    """Lists the most confident label-error candidates."""
    ground_truth, detections, boxes = evaluated.ground_truth, evaluated.detections, evaluated.geometry.boxes
    listed = []
    for candidate in diagnosis.label_error_candidates[:count]:
        image = ground_truth.images[detections.image[candidate.detection]]
        annotation = None if candidate.annotation is None else ground_truth.annotations[candidate.annotation]
        listed.append(
            LabelError(
                kind="missing" if annotation is None else "class",
                image_id=image["id"],
                file_name=str(image.get("file_name", "")),
                bbox=boxes[candidate.detection].tolist(),
                score=float(detections.scores[candidate.detection]),
                category_id=ground_truth.categories[detections.category[candidate.detection]]["id"],
                annotated_category_id=None if annotation is None else annotation["category_id"],
            )
        )
    return listed
