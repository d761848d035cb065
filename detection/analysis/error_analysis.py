"""Error types of detections, the images with most errors, and the label-error candidates.

Source of the error types: Bolya et al., "TIDE: A General Toolbox for Identifying Object
Detection Errors", ECCV 2020, with the order of precedence of its code: Loc, Cls, Dupe, Bkg,
Both.  For keypoints the overlap with ground truth of the same category is the keypoint
similarity, with ground truth of another category the IoU of the boxes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detection.analysis.analysis_file import ERROR_TYPES, Box, ErrorType, ImageFindings, LabelError
from detection.analysis.evaluated import Evaluated, evaluate_models
from detection.analysis.instances import IntArray
from detection.analysis.matching import BoolArray, by_image
from detection.analysis.options import AnalysisOptions
from detection.coco.engine.batch import FOUND, MISSED, RIGHT, UNCOUNTED, WRONG, Diagnosis
from detection.coco.metric_definitions import FloatArray
from detection.coco.params import Settings
from detection.coco.validation.columns import Entry, Rows, is_number
from detection.datasets.entries import LARGEST_ID

_BACKGROUND_IOU = 0.1  # t_b of the paper


@dataclass(frozen=True, eq=False)
class TypedErrors:
    """What is wrong with the detections of at least a score.

    types: error type -> positions of the detections, ascending.
    missed: positions of the objects that nothing found, nor would if its class or box were mended.
    found: bool [G], whether the object was found.
    """

    types: dict[str, IntArray]
    missed: IntArray
    found: BoolArray


def error_counts(evaluated: Evaluated, options: AnalysisOptions) -> list[ErrorType]:
    """All errors, whatever the score, by type."""
    errors = evaluated.evaluation.tide_errors(right_iou=options.iou, background_iou=_BACKGROUND_IOU)
    return [ErrorType(name, errors.counts[name], errors.gains[name]) for name in ERROR_TYPES]


def type_errors(evaluated: Evaluated, diagnosis: Diagnosis, options: AnalysisOptions) -> TypedErrors:
    """Types the wrong detections; those below the score are left out, as if they were not there."""
    objects, found = evaluated.objects, evaluated.found
    kept = found.scores >= options.score
    wrong = np.flatnonzero(kept & (diagnosis.detections == WRONG))
    same, other = np.zeros(len(found.image)), np.zeros(len(found.image))
    same_object, other_object = np.zeros(len(found.image), np.int64), np.zeros(len(found.image), np.int64)
    for theirs, truth in by_image(objects, found, wrong):
        alike = found.category[theirs, None] == objects.category[truth]
        overlap, across = evaluated.geometry.overlaps_across(theirs, truth)
        _note_greatest(np.where(alike, overlap, 0.0), theirs, truth, same, same_object)
        _note_greatest(np.where(alike | objects.crowd[truth], 0.0, across), theirs, truth, other, other_object)
    types = _types(same[wrong], other[wrong], options.iou)
    by_type = {name: wrong[those] for name, those in types.items()}
    by_kept = diagnosis.annotations == FOUND
    by_kept[by_kept] = kept[diagnosis.finders[by_kept]]
    missed = (diagnosis.annotations == MISSED) | ((diagnosis.annotations == FOUND) & ~by_kept)
    missed[same_object[by_type["Loc"]]] = False
    missed[other_object[by_type["Cls"]]] = False
    return TypedErrors(by_type, np.flatnonzero(missed), by_kept)


def _note_greatest(
    overlap: FloatArray, detections: IntArray, objects: IntArray, values: FloatArray, places: IntArray
) -> None:
    """Notes for each detection the greatest of its overlaps [D, G] and the object it is with."""
    greatest = overlap.argmax(axis=1)
    values[detections] = overlap[np.arange(len(detections)), greatest]
    places[detections] = objects[greatest]


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

    def __init__(self, evaluated: Evaluated, diagnosis: Diagnosis, options: AnalysisOptions) -> None:
        objects, found = evaluated.objects, evaluated.found
        errors = type_errors(evaluated, diagnosis, options)
        self._objects = objects
        self._found = found
        self._boxes = evaluated.geometry.boxes
        self._errors = errors
        self._kept = found.scores >= options.score
        self._statuses = np.select(
            [diagnosis.detections == RIGHT, diagnosis.detections == UNCOUNTED], ["right", "ignored"], ""
        ).astype("U8")
        for name, positions in errors.types.items():
            self._statuses[positions] = name
        counted = diagnosis.annotations != UNCOUNTED
        images = len(objects.images)
        self.right = np.bincount(found.image[self._kept & (diagnosis.detections == RIGHT)], minlength=images)
        self.wrong = np.bincount(found.image[self._kept & (diagnosis.detections == WRONG)], minlength=images)
        self.missed = np.bincount(objects.image[counted & ~errors.found], minlength=images)
        self._object_statuses = np.select([~counted, errors.found], ["crowd", "found"], "Miss")

    def worst(self, count: int) -> list[ImageFindings]:
        """The images with most wrong detections and missed objects, first the worst."""
        errors = self.wrong + self.missed
        order = np.argsort(-errors, kind="stable")
        return [self.findings(image) for image in order[:count].tolist() if errors[image]]

    def examples(self, count: int) -> dict[str, list[ImageFindings]]:
        """For each type of error the images where detections are most confident of it; of missed objects, most."""
        return {
            name: [self.findings(image) for image in self._with_missed(count)]
            if name == "Miss"
            else [self.findings(image) for image in self._most_confident(self._errors.types[name], count)]
            for name in ERROR_TYPES
        }

    def errors_by_category(self) -> list[dict[str, int]]:
        """For each category the false positives among its detections by type, and its missed ground truth."""
        size = len(self._objects.categories)
        counts = {
            name: np.bincount(self._found.category[positions], minlength=size)
            for name, positions in self._errors.types.items()
        }
        counts["Miss"] = np.bincount(self._objects.category[self._errors.missed], minlength=size)
        return [{name: int(counts[name][position]) for name in ERROR_TYPES} for position in range(size)]

    def findings(self, image: int) -> ImageFindings:
        """An image by its position, with all its objects, and its detections by falling score."""
        entry = self._objects.images[image]
        detections = np.flatnonzero((self._found.image == image) & self._kept)
        detections = detections[np.argsort(-self._found.scores[detections], kind="stable")]
        ids = [category["id"] for category in self._objects.categories]
        return ImageFindings(
            image_id=entry["id"],
            file_name=str(entry.get("file_name", "")),
            width=_side(entry.get("width")),
            height=_side(entry.get("height")),
            right=int(self.right[image]),
            wrong=int(self.wrong[image]),
            missed=int(self.missed[image]),
            objects=[
                Box(
                    category_id=ids[self._objects.category[position]],
                    bbox=self._objects.boxes[position].tolist(),
                    score=None,
                    status=str(self._object_statuses[position]),
                )
                for position in np.flatnonzero(self._objects.image == image)
            ],
            detections=[
                Box(
                    category_id=ids[self._found.category[position]],
                    bbox=self._boxes[position].tolist(),
                    score=float(self._found.scores[position]),
                    status=str(self._statuses[position]),
                )
                for position in detections
            ],
        )

    def _most_confident(self, detections: IntArray, count: int) -> list[int]:
        order = detections[np.argsort(-self._found.scores[detections], kind="stable")]
        return list(dict.fromkeys(self._found.image[order].tolist()))[:count]

    def _with_missed(self, count: int) -> list[int]:
        images, numbers = np.unique(self._objects.image[self._errors.missed], return_counts=True)
        most: list[int] = images[np.argsort(-numbers, kind="stable")][:count].tolist()
        return most


def image_findings(
    ground_truth: Mapping[str, Any], detections: Sequence[Entry] | Rows, *, settings: Settings, options: AnalysisOptions
) -> list[ImageFindings]:
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
    every_one = replace(options, images=max(1, len(ground_truth["images"])))
    (model,) = evaluate_models(ground_truth, [("detections", detections)], settings, every_one)
    evaluated = model.sampled
    gallery = Gallery(evaluated, evaluated.diagnosis(options), options)
    return [gallery.findings(position) for position in range(len(evaluated.objects.images))]


def _side(value: object) -> int:
    """Pixels; 0 if the ground truth does not tell them, which only masks need."""
    return int(value) if isinstance(value, int | float) and is_number(value) and 0 < value <= LARGEST_ID else 0


def label_errors(evaluated: Evaluated, diagnosis: Diagnosis, count: int) -> list[LabelError]:
    """The most confident of the detections that suggest a fault of the ground truth."""
    objects, found, boxes = evaluated.objects, evaluated.found, evaluated.geometry.boxes
    listed = []
    for suspicion in diagnosis.suspicions[:count]:
        image = objects.images[found.image[suspicion.detection]]
        annotation = None if suspicion.annotation is None else objects.annotations[suspicion.annotation]
        listed.append(
            LabelError(
                kind="missing" if annotation is None else "class",
                image_id=image["id"],
                file_name=str(image.get("file_name", "")),
                bbox=boxes[suspicion.detection].tolist(),
                score=float(found.scores[suspicion.detection]),
                category_id=objects.categories[found.category[suspicion.detection]]["id"],
                object_category_id=None if annotation is None else annotation["category_id"],
            )
        )
    return listed
