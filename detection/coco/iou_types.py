"""Chooses the IoU types of an evaluation: the requested ones, or those of both the detector and the ground truth."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from schemas.metrics import IouType

_ALL, _KEYPOINTS_OF = "annotations", "keypoints of "


def count_annotations(annotations: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Counts COCO annotations by the types they can be compared by, for `choose_iou_types`; counts can be added."""
    counts: Counter[str] = Counter()
    for annotation in annotations:
        counts[_ALL] += 1
        counts["segm"] += bool(annotation.get("segmentation")) and "area" in annotation
        if annotation.get("num_keypoints", annotation.get("keypoints")):
            counts["keypoints"] += 1
            numbers = len(annotation.get("keypoints", ())) // 3
            counts[f"{_KEYPOINTS_OF}{annotation.get('category_id')}: {numbers}"] += 1
    return counts


def choose_iou_types(
    requested: Sequence[IouType] | None, *, given: Sequence[IouType], count: Callable[[], Counter[str]]
) -> tuple[IouType, ...]:
    """Chooses the IoU types to evaluate; the first one's metrics have no prefix.

    Boxes are always evaluated, masks if all annotations have one, and keypoints if annotations have
    some, the same number in a category.

    Args:
        requested: types of the configuration; None: choose as above.
        given: types of the detector.
        count: returns `count_annotations` of the ground truth; only called if needed.
    """
    if requested is not None:
        return tuple(requested)
    if len(given) == 1:
        return tuple(given)
    counts = count()
    categories = [key.partition(":")[0] for key in counts if key.startswith(_KEYPOINTS_OF)]
    has = {
        "bbox": True,
        "segm": 0 < counts[_ALL] == counts["segm"],
        "keypoints": 0 < len(categories) == len({*categories}),
    }
    return tuple(iou_type for iou_type in given if has[iou_type])


def missing_types(counts: Counter[str], chosen: Sequence[IouType], *, given: Sequence[IouType]) -> list[str]:
    """Returns a sentence for each type of the detector that the ground truth does not support.

    Args:
        counts: `count_annotations` of the ground truth.
        chosen: types to evaluate.
        given: types of the detector.
    """
    needed = {
        "segm": "a segmentation and an area, required for all",
        "keypoints": "keypoints, of which all of a category need the same number",
    }
    return [
        f"{iou_type} is not evaluated: {counts[iou_type]} of {counts[_ALL]} annotations have {needed[iou_type]}"
        for iou_type in given
        if iou_type not in chosen
    ]
