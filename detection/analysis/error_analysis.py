"""Error types of detections, the images with most errors, and the label-error candidates.

Source of the error types: Bolya et al., "TIDE: A General Toolbox for Identifying Object
Detection Errors", ECCV 2020, with the order of precedence of its code: Loc, Cls, Dupe, Bkg,
Both.  For keypoints the overlap with ground truth of the same category is the keypoint
similarity, with ground truth of another category the IoU of the boxes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detection.analysis.analysis_file import ERROR_TYPES, Box, ErrorType, ImageResult, LabelError
from detection.analysis.evaluated import Evaluated, evaluate_models
from detection.analysis.instances import IntArray
from detection.analysis.matching import BoolArray, by_image
from detection.coco.engine.batch import FOUND, MISSED, RIGHT, UNCOUNTED, WRONG, Diagnosis
from detection.coco.metric_definitions import FloatArray
from detection.coco.params import Settings
from detection.coco.validation.columns import Entry, Rows, is_number
from detection.datasets.entries import LARGEST_ID
from schemas.config.config import AnalysisConfig

_BACKGROUND_IOU = 0.1  # t_b of the paper


@dataclass(frozen=True, eq=False)
class TypedErrors:
    """Errors among the detections of at least a score.

    types: error type -> positions of the detections, ascending.
    fn: positions of the ground truth that no detection matches, nor would with its class or box corrected.
    matched: bool [G], whether a detection matches the ground truth.
    """

    types: dict[str, IntArray]
    fn: IntArray
    matched: BoolArray


def error_counts(evaluated: Evaluated, options: AnalysisConfig) -> list[ErrorType]:
    """All errors, whatever the score, by type."""
    errors = evaluated.evaluation.tide_errors(right_iou=options.iou, background_iou=_BACKGROUND_IOU)
    return [ErrorType(name, errors.counts[name], errors.gains[name]) for name in ERROR_TYPES]


def type_errors(evaluated: Evaluated, diagnosis: Diagnosis, options: AnalysisConfig) -> TypedErrors:
    """Types the wrong detections; those below the score are left out, as if they were not there."""
    ground_truth, detections = evaluated.ground_truth, evaluated.detections
    kept = detections.scores >= options.score
    wrong = np.flatnonzero(kept & (diagnosis.detections == WRONG))
    same, other = np.zeros(len(detections.image)), np.zeros(len(detections.image))
    same_object, other_object = np.zeros(len(detections.image), np.int64), np.zeros(len(detections.image), np.int64)
    for theirs, truth in by_image(ground_truth, detections, wrong):
        alike = detections.category[theirs, None] == ground_truth.category[truth]
        overlap, across = evaluated.geometry.overlaps_across(theirs, truth)
        _note_greatest(np.where(alike, overlap, 0.0), theirs, truth, same, same_object)
        _note_greatest(np.where(alike | ground_truth.crowd[truth], 0.0, across), theirs, truth, other, other_object)
    types = _types(same[wrong], other[wrong], options.iou)
    by_type = {name: wrong[those] for name, those in types.items()}
    by_kept = diagnosis.annotations == FOUND
    by_kept[by_kept] = kept[diagnosis.finders[by_kept]]
    missed = (diagnosis.annotations == MISSED) | ((diagnosis.annotations == FOUND) & ~by_kept)
    missed[same_object[by_type["Loc"]]] = False
    missed[other_object[by_type["Cls"]]] = False
    return TypedErrors(by_type, np.flatnonzero(missed), by_kept)


def _note_greatest(
    overlap: FloatArray, detections: IntArray, ground_truth: IntArray, values: FloatArray, places: IntArray
) -> None:
    """Notes for each detection the greatest of its overlaps [D, G] and the object it is with."""
    greatest = overlap.argmax(axis=1)
    values[detections] = overlap[np.arange(len(detections)), greatest]
    places[detections] = ground_truth[greatest]


def _types(same: FloatArray, other: FloatArray, iou: float) -> dict[str, BoolArray]:
    """Which detections are of which type, by their greatest overlap with objects of the same and of other categories.

    Args:
        same: float64 [N].
        other: float64 [N].
        iou: from which on a detection is right.
    """
    box = (same >= _BACKGROUND_IOU) & (same <= iou)
    category = ~box & (other >= iou)
    twice = ~box & ~category & (same > iou)  # and wrong: another detection has the object
    background = ~box & ~category & ~twice & (other <= _BACKGROUND_IOU)
    return {
        "Cls": category,
        "Loc": box,
        "Both": ~(box | category | twice | background),
        "Dupe": twice,
        "Bkg": background,
    }


class Gallery:
    """Images with the status of every box on them; detections below the score are left out.

    right, wrong, missed: int64 [I], by image, of detections and of objects.
    """

    def __init__(self, evaluated: Evaluated, diagnosis: Diagnosis, options: AnalysisConfig) -> None:
        ground_truth, detections = evaluated.ground_truth, evaluated.detections
        errors = type_errors(evaluated, diagnosis, options)
        self._ground_truth = ground_truth
        self._detections = detections
        self._boxes = evaluated.geometry.boxes
        self._errors = errors
        self._kept = detections.scores >= options.score
        self._statuses = np.select(
            [diagnosis.detections == RIGHT, diagnosis.detections == UNCOUNTED], ["TP", "ignored"], ""
        ).astype("U8")
        for name, positions in errors.types.items():
            self._statuses[positions] = name
        counted = diagnosis.annotations != UNCOUNTED
        images = len(ground_truth.images)
        self.tp = np.bincount(detections.image[self._kept & (diagnosis.detections == RIGHT)], minlength=images)
        self.fp = np.bincount(detections.image[self._kept & (diagnosis.detections == WRONG)], minlength=images)
        self.fn = np.bincount(ground_truth.image[counted & ~errors.matched], minlength=images)
        self._object_statuses = np.select([~counted, errors.matched], ["crowd", "matched"], "Miss")

    def worst(self, count: int) -> list[ImageResult]:
        """The images with most wrong detections and missed objects, first the worst."""
        errors = self.fp + self.fn
        order = np.argsort(-errors, kind="stable")
        return [self.image_result(image) for image in order[:count].tolist() if errors[image]]

    def examples(self, count: int) -> dict[str, list[ImageResult]]:
        """For each type of error the images where detections are most confident of it; of missed objects, most."""
        return {
            name: [self.image_result(image) for image in self._with_missed(count)]
            if name == "Miss"
            else [self.image_result(image) for image in self._most_confident(self._errors.types[name], count)]
            for name in ERROR_TYPES
        }

    def errors_by_category(self) -> list[dict[str, int]]:
        """For each category the false positives among its detections by type, and its missed ground truth."""
        size = len(self._ground_truth.categories)
        counts = {
            name: np.bincount(self._detections.category[positions], minlength=size)
            for name, positions in self._errors.types.items()
        }
        counts["Miss"] = np.bincount(self._ground_truth.category[self._errors.fn], minlength=size)
        return [{name: int(counts[name][position]) for name in ERROR_TYPES} for position in range(size)]

    def image_result(self, image: int) -> ImageResult:
        """An image by its position, with all its objects, and its detections by falling score."""
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
                )
                for position in np.flatnonzero(self._ground_truth.image == image)
            ],
            detections=[
                Box(
                    category_id=ids[self._detections.category[position]],
                    bbox=self._boxes[position].tolist(),
                    score=float(self._detections.scores[position]),
                    status=str(self._statuses[position]),
                )
                for position in detections
            ],
        )

    def _most_confident(self, detections: IntArray, count: int) -> list[int]:
        order = detections[np.argsort(-self._detections.scores[detections], kind="stable")]
        return list(dict.fromkeys(self._detections.image[order].tolist()))[:count]

    def _with_missed(self, count: int) -> list[int]:
        images, numbers = np.unique(self._ground_truth.image[self._errors.fn], return_counts=True)
        most: list[int] = images[np.argsort(-numbers, kind="stable")][:count].tolist()
        return most


def image_results(
    ground_truth: Mapping[str, Any], detections: Sequence[Entry] | Rows, *, settings: Settings, options: AnalysisConfig
) -> list[ImageResult]:
    """The findings on each of a few images, by ascending id.

    Args:
        ground_truth: COCO tree of these images.
        detections: COCO results or rows, see `detection.analysis.analyse.analyse`.
        settings: of the evaluation.
        options: its IoU and score count.

    Raises:
        ConfigError: settings or options that do not fit.
        DataError: see `detection.coco.validation.checks`.
    """
    every_one = options.model_copy(update={"images": max(1, len(ground_truth["images"]))})
    (model,) = evaluate_models(ground_truth, [("detections", detections)], settings, every_one)
    evaluated = model.sampled
    gallery = Gallery(evaluated, evaluated.diagnosis(options), options)
    return [gallery.image_result(position) for position in range(len(evaluated.ground_truth.images))]


def _side(value: object) -> int:
    """Pixels; 0 if the ground truth does not tell them, which only masks need."""
    return int(value) if isinstance(value, int | float) and is_number(value) and 0 < value <= LARGEST_ID else 0


def label_errors(evaluated: Evaluated, diagnosis: Diagnosis, count: int) -> list[LabelError]:
    """The most confident of the detections that suggest a fault of the ground truth."""
    ground_truth, detections, boxes = evaluated.ground_truth, evaluated.detections, evaluated.geometry.boxes
    listed = []
    for suspicion in diagnosis.suspicions[:count]:
        image = ground_truth.images[detections.image[suspicion.detection]]
        annotation = None if suspicion.annotation is None else ground_truth.annotations[suspicion.annotation]
        listed.append(
            LabelError(
                kind="missing" if annotation is None else "class",
                image_id=image["id"],
                file_name=str(image.get("file_name", "")),
                bbox=boxes[suspicion.detection].tolist(),
                score=float(detections.scores[suspicion.detection]),
                category_id=ground_truth.categories[detections.category[suspicion.detection]]["id"],
                annotated_category_id=None if annotation is None else annotation["category_id"],
            )
        )
    return listed
