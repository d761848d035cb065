"""Checks of what enters an evaluation; every fault names source, ids and remedy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from detection.coco.annotations import is_crowd
from detection.coco.columns import (
    Entry,
    Ids,
    Naming,
    Rows,
    are_numbers,
    boxes_xywh,
    by_id,
    by_image,
    identifiers,
    is_id,
    numbers,
    refuse,
    refuse_unless,
)
from schemas.errors import DataError

_KEYPOINTS = 17  # COCO's person; the engine knows no other skeleton


def check_images(images: Sequence[Entry], *, iou_type: str, where: str) -> Ids:
    """Returns the ids of `images` entries, int64 [N].

    Raises:
        DataError: an id is missing, no integer or there twice; masks are to be
            compared and an image has no size.
    """
    ids = _unique_ids(images, "image", where)
    if iou_type == "segm":
        refuse_unless(
            lambda image: is_id(image.get("height")) and is_id(image.get("width")),
            images,
            by_id("image"),
            where=where,
            what="no integer height and width",
            remedy="Masks need the image's size: add it in pixels.",
        )
    return ids


def check_categories(categories: Sequence[Entry], *, where: str) -> Ids:
    """Returns the ids of `categories` entries, int64 [K].

    Raises:
        DataError: an id is missing, no integer or there twice.
    """
    return _unique_ids(categories, "category", where)


def check_annotations(
    annotations: Sequence[Entry], *, image_ids: Ids, category_ids: Ids, iou_type: str, where: str
) -> list[Entry]:
    """Returns the `annotations` entries with what is missing filled in.

    `iscrowd` may be written `is_crowd` or left out (0), `area` left out (that of the
    box); for keypoints, an object without any is ignored.

    Raises:
        DataError: an entry without ids, box or mask; an unknown image or category; a
            box that is not finite or has a negative side; an id that is there twice.
    """
    name = by_id("annotation")
    _unique_ids(annotations, "annotation", where)
    _known_ids(annotations, "image_id", image_ids, name, where)
    _known_ids(annotations, "category_id", category_ids, name, where)
    boxes = boxes_xywh(annotations, name, where=where)
    areas = boxes[:, 2] * boxes[:, 3]
    filled: list[Entry] = [
        {"area": area, **annotation, "iscrowd": int(is_crowd(annotation))}
        for annotation, area in zip(annotations, areas.tolist(), strict=True)
    ]
    numbers(filled, "area", name, where=where)
    if iou_type == "segm":
        _require_masks(filled, name, where)
    if iou_type == "keypoints":
        return _with_keypoints(filled, where)
    return filled


def check_detections(
    detections: Sequence[Entry] | Rows, *, image_ids: Ids, category_ids: Ids, iou_type: str, where: str
) -> list[Entry] | Rows:
    """Returns the detections as the engine takes them.

    Args:
        detections: COCO results, or for boxes an array [N, 7] of rows (image_id, x,
            y, width, height, score, category_id), pixels.
        image_ids: int64, known images.
        category_ids: int64, known categories.
        iou_type: `bbox`, `segm` or `keypoints`.
        where: names the source in error messages.

    Returns:
        For boxes float64 [N, 7]; for masks and keypoints the entries themselves.

    Raises:
        DataError: a key is missing; an unknown image or category; a score or box
            that is not finite; a negative side.
    """
    if isinstance(detections, np.ndarray):
        return _check_rows(detections, image_ids, category_ids, iou_type, where)
    name = by_image("detection")
    images = _known_ids(detections, "image_id", image_ids, name, where)
    categories = _known_ids(detections, "category_id", category_ids, name, where)
    scores = numbers(detections, "score", name, where=where)
    if iou_type == "bbox":
        return np.column_stack([images, boxes_xywh(detections, name, where=where), scores, categories])
    if iou_type == "segm":
        _require_masks(detections, name, where)
    else:
        _require_keypoints(detections, name, where)
    return list(detections)


def _check_rows(rows: Rows, image_ids: Ids, category_ids: Ids, iou_type: str, where: str) -> Rows:
    if iou_type != "bbox" or rows.ndim != 2 or rows.shape[1] != 7 or rows.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: an array of shape {list(rows.shape)} and type {rows.dtype} for {iou_type}. Boxes may come as "
            "numbers [N, 7] (image_id, x, y, width, height, score, category_id), masks and keypoints as COCO results."
        )
    rows = rows.astype(np.float64)
    faults = {
        "unknown image_id": ~np.isin(rows[:, 0], image_ids),
        "unknown category_id": ~np.isin(rows[:, 6], category_ids),
        "box or score is not finite": ~np.isfinite(rows).all(axis=1),
        "negative width or height": (rows[:, 3:5] < 0).any(axis=1),
    }
    for what, faulty in faults.items():
        names = [f"row {row} (image {rows[row, 0]:.0f}, category {rows[row, 6]:.0f})" for row in np.flatnonzero(faulty)]
        refuse(names, where=where, what=what, remedy="Correct or remove them.")
    return rows


def _unique_ids(entries: Sequence[Entry], what: str, where: str) -> Ids:
    ids = identifiers(entries, "id", by_id(what), where=where)
    values, counts = np.unique(ids, return_counts=True)
    refuse(
        [f"{what} {value}" for value in values[counts > 1]],
        where=where,
        what="an id is there more than once",
        remedy="Give each entry an id of its own.",
    )
    return ids


def _known_ids(entries: Sequence[Entry], key: str, known: Ids, name: Naming, where: str) -> Ids:
    ids = identifiers(entries, key, name, where=where)
    unknown = np.flatnonzero(~np.isin(ids, known)).tolist()
    refuse(
        [f"{name(position, entries[position])}: {ids[position]}" for position in unknown],
        where=where,
        what=f"unknown {key}",
        remedy=f"The ground truth has no such {key.removesuffix('_id')}; do both belong to one data set?",
    )
    return ids


def _require_masks(entries: Sequence[Entry], name: Naming, where: str) -> None:
    refuse_unless(
        lambda entry: bool(entry.get("segmentation")),
        entries,
        name,
        where=where,
        what="no segmentation",
        remedy="Masks are compared, so each needs one; or evaluate with iou_type bbox.",
    )


def _require_keypoints(entries: Sequence[Entry], name: Naming, where: str) -> None:
    refuse_unless(
        lambda entry: are_numbers(entry.get("keypoints"), 3 * _KEYPOINTS),
        entries,
        name,
        where=where,
        what="bad keypoints",
        remedy=f"COCO's {_KEYPOINTS} of a person can be evaluated: each needs {_KEYPOINTS} times x, y, visibility.",
    )


def _with_keypoints(annotations: Sequence[Entry], where: str) -> list[Entry]:
    """Fills `num_keypoints` in, and blank keypoints where an object has none."""
    _require_keypoints([entry for entry in annotations if "keypoints" in entry], by_id("annotation"), where)
    blank: dict[str, Any] = {"keypoints": [0] * (3 * _KEYPOINTS)}
    return [
        {"num_keypoints": sum(value > 0 for value in entry.get("keypoints", [])[2::3]), **blank, **entry}
        for entry in annotations
    ]
