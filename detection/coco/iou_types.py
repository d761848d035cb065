"""Chooses the IoU types of an evaluation: what is requested, or what the detector gives and the ground truth has."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from detection.coco.params import OKS_SIGMAS
from schemas.metrics import IouType

_ALL, _OTHER_KEYPOINTS = "annotations", "other keypoints"


def count_annotations(annotations: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Counts COCO annotations by what can be compared of them, for `choose_iou_types`; counts of parts add up."""
    counts: Counter[str] = Counter()
    for annotation in annotations:
        counts[_ALL] += 1
        counts["segm"] += bool(annotation.get("segmentation")) and "area" in annotation
        if annotation.get("num_keypoints", annotation.get("keypoints")):
            usual = len(annotation.get("keypoints", ())) == 3 * len(OKS_SIGMAS)
            counts["keypoints" if usual else _OTHER_KEYPOINTS] += 1
    return counts


def choose_iou_types(
    requested: Sequence[IouType] | None, *, given: Sequence[IouType], count: Callable[[], Counter[str]]
) -> tuple[IouType, ...]:
    """Chooses what to evaluate; the first one's metrics have no prefix.

    Boxes are always evaluated; masks if all annotations have one, keypoints if some annotations
    have them, and all of these COCO's 17, whose OKS is defined.

    Args:
        requested: types of the configuration; None: as above.
        given: types that the detector gives.
        count: returns `count_annotations` of the whole ground truth; is called only if it decides.
    """
    if requested is not None:
        return tuple(requested)
    if len(given) == 1:
        return tuple(given)
    counts = count()
    has = {
        "bbox": True,
        "segm": 0 < counts[_ALL] == counts["segm"],
        "keypoints": counts["keypoints"] > 0 == counts[_OTHER_KEYPOINTS],
    }
    return tuple(iou_type for iou_type in given if has[iou_type])


def missing_types(counts: Counter[str], chosen: Sequence[IouType], *, given: Sequence[IouType]) -> list[str]:
    """Returns a sentence on each type that a detector gives and the ground truth does not have.

    Args:
        counts: `count_annotations` of the whole ground truth.
        chosen: types that are evaluated.
        given: types that the detector gives.
    """
    needed = {"segm": "a segmentation and an area, which all need", "keypoints": "COCO's 17 keypoints"}
    return [
        f"{iou_type} is not evaluated: {counts[iou_type]} of {counts[_ALL]} annotations have {needed[iou_type]}"
        for iou_type in given
        if iou_type not in chosen
    ]
