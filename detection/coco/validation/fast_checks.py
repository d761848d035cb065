"""Whether all entries of a list can be evaluated, found column by column.

The same conditions as `detection.coco.validation.rules`, which tell which entry breaks
which; here there is only yes or no, and most of a second less for half a million of
detections.
"""

from collections.abc import Sequence

import numpy as np

from detection.coco.validation.columns import id_column, list_column, number_column
from detection.coco.validation.fast_mask_checks import masks_are_valid
from detection.coco.validation.rules import Known
from detection.datasets.entries import Entry, Ids


def annotations_are_valid(annotations: Sequence[Entry], known: Known) -> bool:
    """Whether `record_rules.annotation_rules` hold for all."""
    ids = id_column(annotations, "id")
    if ids is None or len(np.unique(ids)) < len(ids):
        return False
    if not (_references_are_known(annotations, known) and _boxes_are_valid(annotations) and _are_flags(annotations)):
        return False
    areas = number_column([{"area": entry.get("area", 0.0)} for entry in annotations], "area")
    if areas is None or (areas < 0).any():
        return False
    if known.iou_type == "segm":
        return all("area" in entry for entry in annotations) and masks_are_valid(annotations, known)
    if known.iou_type == "keypoints":
        counts = [{"count": entry.get("num_keypoints", 0)} for entry in annotations]
        given = [entry for entry in annotations if "keypoints" in entry]
        return id_column(counts, "count") is not None and _keypoints_are_valid(given, known)
    return True


def detections_are_valid(detections: Sequence[Entry], known: Known, *, boxed: bool) -> bool:
    """Whether `record_rules.detection_rules` hold for all."""
    if not _references_are_known(detections, known) or number_column(detections, "score") is None:
        return False
    if (known.iou_type == "bbox" or boxed) and not _boxes_are_valid(detections):
        return False
    if known.iou_type == "segm":
        return masks_are_valid(detections, known)
    if known.iou_type == "keypoints":
        return (boxed or not any("segmentation" in entry for entry in detections)) and _keypoints_are_valid(
            detections, known
        )
    return True


def _references_are_known(entries: Sequence[Entry], known: Known) -> bool:
    return _are_known(entries, "image_id", known.image_ids) and _are_known(entries, "category_id", known.category_ids)


def _are_known(entries: Sequence[Entry], key: str, known: Ids) -> bool:
    ids = id_column(entries, key)
    return ids is not None and bool(np.isin(ids, known).all())


def _boxes_are_valid(entries: Sequence[Entry]) -> bool:
    boxes = list_column(entries, "bbox", 4)
    return boxes is not None and not (boxes[:, 2:] < 0).any()


def _are_flags(annotations: Sequence[Entry]) -> bool:
    flags = [entry.get("iscrowd", entry.get("is_crowd", 0)) for entry in annotations]
    return set(map(type, flags)) <= {int, bool} and set(flags) <= {0, 1}


def _keypoints_are_valid(entries: Sequence[Entry], known: Known) -> bool:
    return list_column(entries, "keypoints", 3 * known.keypoints) is not None
