"""What kinds of errors there are, as TIDE defines them; the type of each wrong detection.

Source: Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection
Errors", ECCV 2020, with the order of precedence of its code: Loc, Cls, Dupe, Bkg,
Both.  For keypoints the overlap with an object of the same category is the
similarity of keypoints, with one of another category that of the boxes.
"""

from dataclasses import dataclass

import numpy as np

from detection.analysis.evaluated import Evaluated
from detection.analysis.findings import ERROR_TYPES, ErrorType
from detection.analysis.instances import IntArray
from detection.analysis.matching import BoolArray, by_image
from detection.analysis.options import AnalysisOptions
from detection.coco.engine.batch import FN, FP, MATCHED, Diagnosis
from detection.coco.params import FloatArray

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
    errors = evaluated.evaluation.tide_errors(match_iou=options.iou, background_iou=_BACKGROUND_IOU)
    return [ErrorType(name, errors.counts[name], errors.gains[name]) for name in ERROR_TYPES]


def type_errors(evaluated: Evaluated, diagnosis: Diagnosis, options: AnalysisOptions) -> TypedErrors:
    """Types the wrong detections; those below the score are left out, as if they were not there."""
    objects, found = evaluated.objects, evaluated.found
    kept = found.scores >= options.score
    wrong = np.flatnonzero(kept & (diagnosis.detections == FP))
    same, other = np.zeros(len(found.image)), np.zeros(len(found.image))
    same_object, other_object = np.zeros(len(found.image), np.int64), np.zeros(len(found.image), np.int64)
    for theirs, truth in by_image(objects, found, wrong):
        alike = found.category[theirs, None] == objects.category[truth]
        overlap, across = evaluated.geometry.overlaps_across(theirs, truth)
        _note_greatest(np.where(alike, overlap, 0.0), theirs, truth, same, same_object)
        _note_greatest(np.where(alike | objects.crowd[truth], 0.0, across), theirs, truth, other, other_object)
    types = _types(same[wrong], other[wrong], options.iou)
    by_type = {name: wrong[those] for name, those in types.items()}
    by_kept = diagnosis.annotations == MATCHED
    by_kept[by_kept] = kept[diagnosis.matches[by_kept]]
    missed = (diagnosis.annotations == FN) | ((diagnosis.annotations == MATCHED) & ~by_kept)
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
