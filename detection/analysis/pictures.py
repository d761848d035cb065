"""The images worth a look, and what to draw on them; the likely faults of the ground truth."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from detection.analysis.error_types import type_errors
from detection.analysis.evaluated import Evaluated, evaluate_models
from detection.analysis.findings import ERROR_TYPES, Box, ImageFindings, LabelError
from detection.analysis.instances import IntArray
from detection.analysis.options import AnalysisOptions
from detection.coco.engine.batch import FP, IGNORED, TP, Diagnosis
from detection.coco.params import Params
from detection.datasets.entries import LARGEST_ID, Entry, Rows


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
            [diagnosis.detections == TP, diagnosis.detections == IGNORED], ["right", "ignored"], ""
        ).astype("U8")
        for name, positions in errors.types.items():
            self._statuses[positions] = name
        counted = diagnosis.annotations != IGNORED
        images = len(objects.images)
        self.right = np.bincount(found.image[self._kept & (diagnosis.detections == TP)], minlength=images)
        self.wrong = np.bincount(found.image[self._kept & (diagnosis.detections == FP)], minlength=images)
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
    ground_truth: Mapping[str, Any], detections: Sequence[Entry] | Rows, *, params: Params, options: AnalysisOptions
) -> list[ImageFindings]:
    """The findings on each of a few images, by ascending id.

    Args:
        ground_truth: COCO tree of these images.
        detections: COCO results or rows, see `detection.analysis.analyse.analyse`.
        params: of the evaluation.
        options: its IoU and score count.

    Raises:
        ConfigError: params or options that do not fit.
        DataError: see `detection.coco.validation.checks`.
    """
    every_one = replace(options, images=max(1, len(ground_truth["images"])))
    (model,) = evaluate_models(ground_truth, [("detections", detections)], params, every_one)
    evaluated = model.sampled
    gallery = Gallery(evaluated, evaluated.diagnosis(options), options)
    return [gallery.findings(position) for position in range(len(evaluated.objects.images))]


def _side(value: object) -> int:
    """Pixels; 0 if the ground truth does not tell them, which only masks need."""
    return (
        int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST_ID else 0
    )


def label_errors(evaluated: Evaluated, diagnosis: Diagnosis, count: int) -> list[LabelError]:
    """The most confident of the detections that suggest a fault of the ground truth."""
    objects, found, boxes = evaluated.objects, evaluated.found, evaluated.geometry.boxes
    listed = []
    for candidate in diagnosis.label_error_candidates[:count]:
        image = objects.images[found.image[candidate.detection]]
        annotation = None if candidate.annotation is None else objects.annotations[candidate.annotation]
        listed.append(
            LabelError(
                kind="missing" if annotation is None else "class",
                image_id=image["id"],
                file_name=str(image.get("file_name", "")),
                bbox=boxes[candidate.detection].tolist(),
                score=float(found.scores[candidate.detection]),
                category_id=objects.categories[found.category[candidate.detection]]["id"],
                object_category_id=None if annotation is None else annotation["category_id"],
            )
        )
    return listed
