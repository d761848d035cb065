"""Checks of what enters an evaluation; every fault names source, ids and remedy.

Where all is well, whole columns tell so.  Only where something is wrong the entries
are looked at one by one, to name the faulty ones or to leave them out.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from detection.coco.validation.columns import by_id, by_image
from detection.coco.validation.fast_checks import annotations_are_valid, detections_are_valid
from detection.coco.validation.invalid_entries import InvalidEntry, refuse_or_skip
from detection.coco.validation.rules import (
    Known,
    annotation_rules,
    category_rules,
    detection_rules,
    find_invalid,
    image_rules,
)
from detection.datasets.annotations import is_crowd
from detection.datasets.entries import Entry, Ids, Rows
from schemas.errors import DataError

_IMAGE_KEYS = ("id", "height", "width", "neg_category_ids", "not_exhaustive_category_ids")
_BOX_KEYS = frozenset({"id", "image_id", "category_id", "bbox", "area", "iscrowd", "ignore"})
_ANNOTATION_KEYS = {
    "bbox": _BOX_KEYS,
    "segm": _BOX_KEYS | {"segmentation"},
    "keypoints": _BOX_KEYS | {"keypoints", "num_keypoints"},
}
_DETECTION_KEYS = frozenset({"image_id", "category_id", "bbox", "segmentation", "keypoints", "score"})
_KEYPOINTS = 17  # COCO's person

Skipped = list[InvalidEntry] | None  # where given, bad records are added to it and left out; else they are refused


def check_images(images: Sequence[Entry], *, iou_type: str, where: str) -> Ids:
    """Returns the ids of `images` entries, int64 [N].

    Raises:
        DataError: see `valid_images`.
    """
    return np.array([image["id"] for image in valid_images(images, iou_type=iou_type, where=where)], np.int64)


def valid_images(
    images: Sequence[Entry], *, iou_type: str, where: str, lvis: bool = False, skipped: Skipped = None
) -> list[Entry]:
    """Returns `images` entries with what an evaluation needs of them.

    Raises:
        DataError: an id is missing, no integer or there twice; masks are to be
            compared and an image has no size; LVIS' lists are needed and missing.
    """
    sized = iou_type == "segm"
    bad = find_invalid(images, image_rules(sized=sized, lvis=lvis), by_id("image"), where=where)
    refuse_or_skip(bad, skipped)
    keys = _IMAGE_KEYS[: 1 if not sized else 3] + (_IMAGE_KEYS[3:] if lvis else ())
    return [{key: image[key] for key in keys} for image in _without(images, bad)]


def check_categories(categories: Sequence[Entry], *, where: str, lvis: bool = False) -> Ids:
    """Returns the ids of `categories` entries, int64 [K].

    Raises:
        DataError: an id is missing, invalid or a duplicate; a name is not UTF-8; LVIS'
            frequency is needed and missing.
    """
    refuse_or_skip(find_invalid(categories, category_rules(lvis=lvis), by_id("category"), where=where), None)
    return np.array([category["id"] for category in categories], np.int64)


def check_annotations(
    annotations: Sequence[Entry],
    *,
    image_ids: Ids,
    category_ids: Ids,
    iou_type: str,
    where: str,
    sizes: Ids | None = None,
    keypoints: int = _KEYPOINTS,
    skipped: Skipped = None,
) -> list[Entry]:
    """Returns of the `annotations` entries what the engine takes, with what is missing filled in.

    `iscrowd` may be written `is_crowd` or left out (0), `area` left out (that of the
    box, but not for masks); for keypoints, an object without any is ignored.

    Args:
        annotations: the entries.
        image_ids: int64 [N], known images.
        category_ids: int64, known categories.
        iou_type: `bbox`, `segm` or `keypoints`.
        where: names the source in error messages.
        sizes: int64 [N, 2], height and width of the images; None: masks are not
            compared with them.
        keypoints: how many an object has.
        skipped: see `Skipped`.

    Raises:
        DataError: an entry without ids, box or mask; an unknown image or category; a
            box that is not finite or has a negative side; an id that is there twice;
            the like.
    """
    known = Known(image_ids, category_ids, iou_type, sizes, keypoints)
    if not annotations_are_valid(annotations, known):
        bad = find_invalid(annotations, annotation_rules(known), by_id("annotation"), where=where)
        refuse_or_skip(bad, skipped)
        annotations = _without(annotations, bad)
    return [_filled(entry, known) for entry in annotations]


def check_detections(
    detections: Sequence[Entry] | Rows,
    *,
    image_ids: Ids,
    category_ids: Ids,
    iou_type: str,
    where: str,
    sizes: Ids | None = None,
    keypoints: int = _KEYPOINTS,
    skipped: Skipped = None,
) -> list[Entry] | Rows:
    """Returns the detections as the engine takes them.

    Args:
        detections: COCO results, or for boxes an array [N, 7] of rows (image_id, x,
            y, width, height, score, category_id), pixels.
        image_ids: int64 [N], known images.
        category_ids: int64, known categories.
        iou_type: `bbox`, `segm` or `keypoints`.
        where: names the source in error messages.
        sizes: int64 [N, 2], height and width of the images; None: masks are not
            compared with them.
        keypoints: how many a detection has.
        skipped: see `Skipped`.

    Returns:
        For boxes float64 [N, 7]; for masks and keypoints COCO results.

    Raises:
        DataError: a key is missing; an unknown image or category; a score or box
            that is not finite; a negative side; the like.
    """
    known = Known(image_ids, category_ids, iou_type, sizes, keypoints)
    if isinstance(detections, np.ndarray):
        return _check_rows(detections, known, where, skipped)
    boxed = any(isinstance(entry, dict | Mapping) and "bbox" in entry for entry in detections)
    if not detections_are_valid(detections, known, boxed=boxed):
        bad = find_invalid(detections, detection_rules(known, boxed=boxed), by_image("detection"), where=where)
        refuse_or_skip(bad, skipped)
        detections = _without(detections, bad)
    if iou_type != "bbox":
        return [
            entry if entry.keys() <= _DETECTION_KEYS else {key: entry[key] for key in entry.keys() & _DETECTION_KEYS}
            for entry in detections
        ]
    rows = [(d["image_id"], *d["bbox"], d["score"], d["category_id"]) for d in detections]
    return np.array(rows, np.float64).reshape(-1, 7)


def _check_rows(rows: Rows, known: Known, where: str, skipped: Skipped) -> Rows:
    if known.iou_type != "bbox" or rows.ndim != 2 or rows.shape[1] != 7 or rows.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: an array of shape {list(rows.shape)} and type {rows.dtype} for {known.iou_type}. Boxes may "
            "come as numbers [N, 7] (image_id, x, y, width, height, score, category_id), masks and keypoints as "
            "COCO results."
        )
    rows = rows.astype(np.float64)
    sound = (
        np.isin(rows[:, 0], known.image_ids)
        & np.isin(rows[:, 6], known.category_ids)
        & np.isfinite(rows[:, 1:6]).all(axis=1)
        & (rows[:, 3:5] >= 0).all(axis=1)
    )
    if sound.all():
        return rows
    faulty = np.flatnonzero(~sound).tolist()
    entries = [_entry_of(rows[row].tolist()) for row in faulty]
    bad = find_invalid(entries, detection_rules(known, boxed=True), by_image("detection", faulty), where=where)
    refuse_or_skip([record._replace(position=faulty[record.position]) for record in bad], skipped)
    return rows[sound]


def _entry_of(row: Sequence[float]) -> Entry:
    image_id, *box, score, category_id = row
    ids = {"image_id": image_id, "category_id": category_id}
    return {
        **{key: int(value) if value.is_integer() else value for key, value in ids.items()},
        "bbox": box,
        "score": score,
    }


def _filled(annotation: Entry, known: Known) -> Entry:
    wanted = _ANNOTATION_KEYS[known.iou_type]
    filled = (
        {**annotation} if annotation.keys() <= wanted else {key: annotation[key] for key in annotation.keys() & wanted}
    )
    if type(filled.get("iscrowd")) is not int:
        filled["iscrowd"] = int(is_crowd(annotation))
    if "area" not in filled:
        filled["area"] = filled["bbox"][2] * filled["bbox"][3]
    if known.iou_type == "keypoints":
        points = filled.setdefault("keypoints", [0] * (3 * known.keypoints))
        filled.setdefault("num_keypoints", sum(flag > 0 for flag in points[2::3]))
    return filled


def _without(entries: Sequence[Entry], bad: Sequence[InvalidEntry]) -> Sequence[Entry]:
    """The entries that are not bad."""
    positions = {record.position for record in bad}
    return [entry for position, entry in enumerate(entries) if position not in positions] if bad else entries
