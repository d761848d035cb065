"""What of some images belongs to each category."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from components.coco_evaluator.batches import DetectedBatch
from detection.coco.checks import check_annotations, check_categories, check_detections, check_images
from detection.coco.columns import Entry, Rows


def shares_of_categories(
    batch: DetectedBatch, categories: Sequence[Entry], iou_type: str, *, where: str, where_detections: str
) -> dict[int, DetectedBatch]:
    """Divides a batch by category; an image is in the shares of those that it has anything of.

    Args:
        batch: whole images.
        categories: of the data set.
        iou_type: `bbox`, `segm` or `keypoints`.
        where: names the source of images and annotations in errors.
        where_detections: names the source of the detections in errors.

    Returns:
        Category id -> its objects and detections, their order kept, without slices;
        categories that have none are left out.

    Raises:
        DataError: see `detection.coco.checks`.
    """
    known: dict[str, Any] = {
        "image_ids": check_images(batch.images, iou_type=iou_type, where=where),
        "category_ids": check_categories(categories, where=where),
        "iou_type": iou_type,
    }
    objects = defaultdict(list)
    for annotation in check_annotations(batch.annotations, **known, where=where):
        objects[annotation["category_id"]].append(annotation)
    detections = check_detections(batch.detections, **known, where=where_detections)
    found = _rows_by_category(detections) if isinstance(detections, np.ndarray) else _by_category(detections)
    images = {image["id"]: image for image in batch.images}
    shares = {}
    for category_id in sorted({*objects, *found}):
        mine = objects.get(category_id, [])
        ids, theirs = found.get(category_id, (set(), detections[:0]))
        ids = ids | {annotation["image_id"] for annotation in mine}
        shares[category_id] = DetectedBatch([images[image_id] for image_id in sorted(ids)], mine, theirs, [])
    return shares


def _rows_by_category(rows: Rows) -> dict[int, tuple[set[int], Rows]]:
    """Category id -> its images' ids and its rows."""
    order = np.argsort(rows[:, 6], kind="stable")
    category_ids, starts = np.unique(rows[order, 6], return_index=True)
    parts = np.split(rows[order], starts[1:])
    return {
        int(category_id): (set(part[:, 0].astype(np.int64).tolist()), part)
        for category_id, part in zip(category_ids, parts, strict=False)  # without rows there is one, empty part
    }


def _by_category(detections: Sequence[Entry]) -> dict[int, tuple[set[int], list[Entry]]]:
    found: dict[int, tuple[set[int], list[Entry]]] = defaultdict(lambda: (set(), []))
    for detection in detections:
        ids, theirs = found[detection["category_id"]]
        ids.add(detection["image_id"])
        theirs.append(detection)
    return dict(found)
