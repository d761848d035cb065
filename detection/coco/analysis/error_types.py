"""The type of each wrong detection, as TIDE defines them, for pictures.

Source: Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection
Errors", ECCV 2020, with the order of precedence of its code: Loc, Cls, Dupe, Bkg,
Both.  For keypoints the overlap with an object of the same category is the
similarity of keypoints, with one of another category that of the boxes.
"""

from dataclasses import dataclass

import numpy as np

from detection.coco.analysis.instances import Found, IntArray, Objects
from detection.coco.analysis.matching import BoolArray, by_image
from detection.coco.engine.batch import FOUND, MISSED, WRONG, Diagnosis
from detection.coco.engine.geometry import Geometry
from detection.coco.figures import FloatArray

BACKGROUND_IOU = 0.1  # t_b of the paper


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


def type_errors(
    objects: Objects, found: Found, diagnosis: Diagnosis, geometry: Geometry, *, iou: float, score: float
) -> TypedErrors:
    """Types the wrong detections.

    Args:
        objects: the ground truth.
        found: the detections.
        diagnosis: which of them are wrong at `iou`.
        geometry: their shapes.
        iou: from which on a detection is right.
        score: detections below it are left out, as if they were not there.
    """
    kept = found.scores >= score
    wrong = np.flatnonzero(kept & (diagnosis.detections == WRONG))
    same, other = np.zeros(len(found.image)), np.zeros(len(found.image))
    same_object, other_object = np.zeros(len(found.image), np.int64), np.zeros(len(found.image), np.int64)
    for theirs, truth in by_image(objects, found, wrong):
        alike = found.category[theirs, None] == objects.category[truth]
        overlap, across = geometry.overlaps_across(theirs, truth)
        _note_greatest(np.where(alike, overlap, 0.0), theirs, truth, same, same_object)
        _note_greatest(np.where(alike | objects.crowd[truth], 0.0, across), theirs, truth, other, other_object)
    types = _types(same[wrong], other[wrong], iou)
    by_type = {name: wrong[those] for name, those in types.items()}
    finders = diagnosis.finders
    by_kept = (diagnosis.annotations == FOUND) & (finders >= 0) & kept[finders]
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
    box = (same >= BACKGROUND_IOU) & (same <= iou)
    category = ~box & (other >= iou)
    twice = ~box & ~category & (same > iou)  # and wrong: another detection has the object
    background = ~box & ~category & ~twice & (other <= BACKGROUND_IOU)
    return {
        "Cls": category,
        "Loc": box,
        "Both": ~(box | category | twice | background),
        "Dupe": twice,
        "Bkg": background,
    }
