"""Checks of what enters an evaluation; each issue names source, ids and remedy.

Types are in `detection.coco.validation.entry_types`, further conditions in `detection.coco.validation.rules`.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from detection.coco.params import Params, are_among, best_of_images
from detection.coco.validation import entry_types
from detection.coco.validation.invalid_entries import Skipped, by_id, by_image, valid_entries
from detection.coco.validation.rules import Known, annotation_rules, category_rules, detection_rules
from detection.datasets.entries import Entry, Ids, Rows, column
from schemas.errors import DataError

_ROW = struct.Struct("=7d").pack
_NO_AREA = -1.0  # in no area range, so that the annotation is ignored in all


class Checked(NamedTuple):
    """Valid entries of some whole images.

    images, annotations: COCO entries.
    detections: COCO results, or rows float64 [N, 7] (image_id, x, y, width, height,
        score, category_id).
    """

    images: list[Any]
    annotations: list[Any]
    detections: list[Any] | Rows

    @property
    def image_ids(self) -> Ids:
        """Of the images, int64 [N]."""
        return column(self.images, "id")


def check_whole_images(
    images: Sequence[Any],
    annotations: Sequence[Any],
    detections: Sequence[Any] | Rows,
    *,
    category_ids: Ids,
    params: Params,
    where: str,
    where_detections: str,
    skipped: Skipped = None,
) -> Checked:
    """Checks all entries of some images.

    Args:
        images: COCO `images` entries.
        annotations: COCO `annotations` entries of these images.
        detections: COCO results of these images, or for boxes rows.
        category_ids: ids of all categories of the data set.
        params: parameters of the evaluation.
        where: names the source of images and annotations in errors.
        where_detections: names the source of the detections in errors.
        skipped: see `Skipped`.

    Raises:
        DataError: see the check of each kind of entry.
    """
    images = valid_images(images, iou_type=params.iou_type, where=where, lvis=params.lvis, skipped=skipped)
    known = known_of(images, category_ids, params)
    annotations = check_annotations(annotations, known, where=where, skipped=skipped)
    checked = check_detections(detections, known, where=where_detections, skipped=skipped)
    if params.lvis:
        annotations, checked = lvis_annotations(annotations), best_of_images(checked, params.max_dets[-1])
    return Checked(images, annotations, checked)


def valid_images(
    images: Sequence[Any], *, iou_type: str, where: str, lvis: bool = False, skipped: Skipped = None
) -> list[Any]:
    """Returns `images` entries with what an evaluation needs of them.

    Raises:
        DataError: an id is missing, invalid or a duplicate; masks are to be compared
            and an image has no size; LVIS' lists are needed and missing.
    """
    sized = iou_type == "segm"
    kinds = (entry_types.Image, entry_types.LvisImage, entry_types.SizedImage, entry_types.SizedLvisImage)
    kind = kinds[2 * sized + lvis]
    return valid_entries(images, kind, (), by_id("image"), where=where, unique=True, skipped=skipped)


def known_of(images: Sequence[Entry], category_ids: Ids, params: Params) -> Known:
    """Returns what annotations and detections of valid images may refer to."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in images} if params.iou_type == "segm" else {}
    return Known(column(images, "id"), category_ids, params.iou_type, sizes, len(params.oks_sigmas))


def check_categories(categories: Sequence[Any], *, where: str, lvis: bool = False) -> Ids:
    """Returns the ids of `categories` entries, int64 [K].

    Raises:
        DataError: an id is missing, invalid or a duplicate; a name is not UTF-8; LVIS'
            frequency is needed and missing.
    """
    kind = entry_types.LvisCategory if lvis else entry_types.Category
    return column(valid_entries(categories, kind, category_rules(), by_id("category"), where=where, unique=True), "id")


def check_annotations(annotations: Sequence[Any], known: Known, *, where: str, skipped: Skipped = None) -> list[Any]:
    """Returns the `annotations` entries as the engine takes them, with what is missing filled in.

    `iscrowd` may be written `is_crowd` or left out (0), `area` left out (that of the
    box, but not for masks); for keypoints, an annotation without any is ignored.

    Args:
        annotations: the entries.
        known: what they refer to.
        where: names the source in error messages.
        skipped: see `Skipped`.

    Raises:
        DataError: an entry without ids, box or mask; an unknown image or category; a
            box that is not finite or has a negative side; a duplicate id; the like.
    """
    kind, rules = entry_types.ANNOTATIONS[known.iou_type], annotation_rules(known)
    typed = valid_entries(annotations, kind, rules, by_id("annotation"), where=where, unique=True, skipped=skipped)
    _fill(typed, known)
    return typed


def check_detections(
    detections: Sequence[Any] | Rows, known: Known, *, where: str, skipped: Skipped = None
) -> list[Any] | Rows:
    """Returns the detections as the engine takes them.

    Args:
        detections: COCO results, or for boxes an array [N, 7] of rows (image_id, x,
            y, width, height, score, category_id), pixels.
        known: what they refer to.
        where: names the source in error messages.
        skipped: see `Skipped`.

    Returns:
        For boxes float64 [N, 7]; for masks and keypoints COCO results.

    Raises:
        DataError: a key is missing; an unknown image or category; a score or box
            that is not finite; a negative side; the like.
    """
    if isinstance(detections, np.ndarray):
        return _check_rows(detections, known, where, skipped)
    boxed = any(isinstance(entry, Mapping) and "bbox" in entry for entry in detections)
    kind, rules = entry_types.DETECTIONS[known.iou_type], detection_rules(known, boxed=boxed)
    typed = valid_entries(detections, kind, rules, by_image("detection"), where=where, skipped=skipped)
    if known.iou_type == "bbox":
        return rows_of(typed)
    if boxed:
        for detection in typed:
            detection["bbox"] = list(detection["bbox"])
    return typed


def rows_of(detections: Sequence[entry_types.BoxDetection]) -> Rows:
    """Returns rows float64 [N, 7] (image_id, x, y, width, height, score, category_id) of detections."""
    # Twice as fast as np.array.
    packed = bytearray().join([_ROW(one.image_id, *one.bbox, one.score, one.category_id) for one in detections])
    return np.frombuffer(packed, np.float64).reshape(-1, 7)


def lvis_annotations(annotations: Sequence[Entry]) -> list[Entry]:
    """Returns annotations as LVIS takes them: `ignore` is heeded, crowds are annotations like others.

    Source: lvis-api, eval.py and results.py.
    """
    return [
        {**annotation, "iscrowd": 0, "area": _NO_AREA if annotation.get("ignore") else annotation["area"]}
        for annotation in annotations
    ]


def _fill(annotations: list[dict[str, Any]], known: Known) -> None:
    for annotation in annotations:
        crowd = annotation.pop("is_crowd", 0)
        annotation["bbox"] = list(annotation["bbox"])
        annotation["iscrowd"] = int(annotation.get("iscrowd", crowd))
        if "area" not in annotation:
            annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
        if known.iou_type == "keypoints":
            points = annotation.setdefault("keypoints", [0] * (3 * known.keypoints))
            if "num_keypoints" not in annotation:
                annotation["num_keypoints"] = sum(flag > 0 for flag in points[2::3])


def _check_rows(rows: Rows, known: Known, where: str, skipped: Skipped) -> Rows:
    if known.iou_type != "bbox" or rows.ndim != 2 or rows.shape[1] != 7 or rows.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: an array of shape {list(rows.shape)} and type {rows.dtype} for {known.iou_type}. Boxes may "
            "come as numbers [N, 7] (image_id, x, y, width, height, score, category_id), masks and keypoints as "
            "COCO results."
        )
    rows = rows.astype(np.float64, copy=False)
    valid = _rows_are_valid(rows, known)
    if valid.all():
        return rows
    positions = np.flatnonzero(~valid)
    valid_entries(
        [_entry_of(row) for row in rows[positions].tolist()],
        entry_types.BoxDetection,
        detection_rules(known, boxed=True),
        by_image("detection"),
        where=where,
        positions=positions,
        skipped=skipped,
    )
    return rows[valid]


def _rows_are_valid(rows: Rows, known: Known) -> Any:
    return (
        are_among(rows[:, 0], known.image_ids)
        & are_among(rows[:, 6], known.category_ids)
        # Column by column: numpy is ten times slower along a short axis.
        & np.logical_and.reduce([np.isfinite(rows[:, column]) for column in range(1, 6)])
        & (rows[:, 3] >= 0)
        & (rows[:, 4] >= 0)
    )


def _entry_of(row: Sequence[float]) -> Entry:
    image_id, *box, score, category_id = row
    ids = {"image_id": image_id, "category_id": category_id}
    return {
        **{key: int(value) if value.is_integer() else value for key, value in ids.items()},
        "bbox": box,
        "score": score,
    }
