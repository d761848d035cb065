"""Checks of what enters an evaluation; each issue names source, ids and remedy.

Entries of a list are converted to their types together (`detection.coco.validation.entry_types`),
and what refers to other entries is compared as whole columns. Only if something is
invalid, they are looked at one by one, to name the invalid ones or to leave them out.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from detection.coco.params import Params, are_among, best_of_images
from detection.coco.validation import entry_types
from detection.coco.validation.invalid_entries import (
    InvalidEntry,
    Known,
    Rule,
    annotation_rules,
    by_id,
    by_image,
    detection_rules,
    find_invalid,
    plain,
    reference_rules,
    refuse_or_skip,
)
from detection.coco.validation.mask_checks import masks_are_valid
from detection.datasets.entries import Entry, Ids, Rows, unwritable
from schemas.errors import DataError

_ROW = struct.Struct("=7d").pack
_NO_AREA = -1.0  # in no area range, so that the annotation is ignored in all

Skipped = list[InvalidEntry] | None  # receives invalid entries, which are then left out; None: they are refused


class Typed(list[Any]):
    """Entries that a reader has decoded as this type, so that they need no conversion.

    kind: the type.
    """

    def __init__(self, entries: Iterable[Any], kind: Any) -> None:
        super().__init__(entries)
        self.kind = kind


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
        return _ids(self.images, "id")


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
    typed = convert_all(images, kind)
    if typed is None or not _are_unique(_ids(typed, "id")):
        typed, invalid = find_invalid(images, kind, (), by_id("image"), where=where, unique=True)
        refuse_or_skip(invalid, skipped)
    return typed


def known_of(images: Sequence[Entry], category_ids: Ids, params: Params) -> Known:
    """Returns what annotations and detections of valid images may refer to."""
    sizes = None
    if params.iou_type == "segm":
        sizes = np.array([(image["height"], image["width"]) for image in images], np.int64).reshape(-1, 2)
    return Known(_ids(images, "id"), category_ids, params.iou_type, sizes, len(params.oks_sigmas))


def check_categories(categories: Sequence[Any], *, where: str, lvis: bool = False) -> Ids:
    """Returns the ids of `categories` entries, int64 [K].

    Raises:
        DataError: an id is missing, invalid or a duplicate; a name is not UTF-8; LVIS'
            frequency is needed and missing.
    """
    kind = entry_types.LvisCategory if lvis else entry_types.Category
    typed = convert_all(categories, kind)
    if typed is None or not _are_unique(_ids(typed, "id")) or not _are_writable(typed):
        name = Rule("invalid name", "Write it in UTF-8.", lambda entry: unwritable(entry.get("name")) and "")
        typed, invalid = find_invalid(categories, kind, [name], by_id("category"), where=where, unique=True)
        refuse_or_skip(invalid, None)
    return _ids(typed, "id")


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
    kind = entry_types.ANNOTATIONS[known.iou_type]
    typed = convert_all(annotations, kind)
    if typed is None or not _are_unique(_ids(typed, "id")) or not _annotations_fit(typed, known):
        typed, invalid = find_invalid(
            annotations, kind, annotation_rules(known), by_id("annotation"), where=where, unique=True
        )
        refuse_or_skip(invalid, skipped)
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
    kind = entry_types.DETECTIONS[known.iou_type]
    typed = convert_all(detections, kind)
    if known.iou_type == "bbox":
        if typed is not None:
            rows = rows_of(typed)
            if _rows_are_valid(rows, known).all():
                return rows
        typed, invalid = find_invalid(detections, kind, reference_rules(known), by_image("detection"), where=where)
        refuse_or_skip(invalid, skipped)
        return rows_of(typed)
    objects = [entry for entry in detections if isinstance(entry, Mapping)] if typed is None else typed
    boxed = any("bbox" in entry for entry in objects)
    if typed is None or not _detections_fit(typed, known, boxed=boxed):
        rules = detection_rules(known, boxed=boxed)
        typed, invalid = find_invalid(detections, kind, rules, by_image("detection"), where=where)
        refuse_or_skip(invalid, skipped)
    if boxed:
        for detection in typed:
            detection["bbox"] = list(detection["bbox"])
    return typed


def rows_of(detections: Sequence[entry_types.BoxDetection]) -> Rows:
    """Returns rows float64 [N, 7] (image_id, x, y, width, height, score, category_id) of detections."""
    # Twice as fast as np.array.
    packed = bytearray().join([_ROW(one.image_id, *one.bbox, one.score, one.category_id) for one in detections])
    return np.frombuffer(packed, np.float64).reshape(-1, 7)


def convert_all(entries: Sequence[Any], kind: Any) -> list[Any] | None:
    """Converts entries to their type; None if one of them is invalid."""
    if isinstance(entries, Typed) and entries.kind is kind:
        return entries
    try:
        return msgspec.convert(list(entries), list[kind])
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter of a lone surrogate
        pass
    try:
        return msgspec.convert(plain(list(entries)), list[kind])  # of numpy's numbers, or other mappings than dict
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter of a lone surrogate
        return None


def lvis_annotations(annotations: Sequence[Entry]) -> list[Entry]:
    """Returns annotations as LVIS takes them: `ignore` is heeded, crowds are annotations like others.

    Source: lvis-api, eval.py and results.py.
    """
    return [
        {**annotation, "iscrowd": 0, "area": _NO_AREA if annotation.get("ignore") else annotation["area"]}
        for annotation in annotations
    ]


def _ids(entries: Sequence[Entry], key: str) -> Ids:
    return np.fromiter(map(itemgetter(key), entries), np.int64, len(entries))


def _are_unique(ids: Ids) -> bool:
    return len(np.unique(ids)) == len(ids)


def _are_writable(categories: Sequence[Entry]) -> bool:
    """Whether all names are certain to be valid; those that are no text are looked at one by one."""
    names = [category.get("name", "") for category in categories]
    try:
        return "".join(names).encode() is not None
    except (TypeError, UnicodeEncodeError):
        return False


def _references_are_known(entries: Sequence[Entry], known: Known) -> bool:
    references = (("image_id", known.image_ids), ("category_id", known.category_ids))
    return all(bool(are_among(_ids(entries, key), ids).all()) for key, ids in references)


def _annotations_fit(annotations: Sequence[Entry], known: Known) -> bool:
    """Whether `annotation_rules` hold for all."""
    if not _references_are_known(annotations, known):
        return False
    if known.iou_type == "segm":
        return all("area" in entry for entry in annotations) and masks_are_valid(
            annotations, known.image_ids, known.sizes
        )
    return known.iou_type == "bbox" or _keypoints_fit([one for one in annotations if "keypoints" in one], known)


def _detections_fit(detections: Sequence[Entry], known: Known, *, boxed: bool) -> bool:
    """Whether `detection_rules` hold for all."""
    if not _references_are_known(detections, known) or (boxed and not all("bbox" in entry for entry in detections)):
        return False
    if known.iou_type == "segm":
        return masks_are_valid(detections, known.image_ids, known.sizes)
    return (boxed or not any("segmentation" in entry for entry in detections)) and _keypoints_fit(detections, known)


def _keypoints_fit(entries: Sequence[Entry], known: Known) -> bool:
    return {len(entry.get("keypoints", ())) for entry in entries} <= {3 * known.keypoints}


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
    positions = np.flatnonzero(~valid).tolist()
    entries = [_entry_of(rows[row].tolist()) for row in positions]
    _, invalid = find_invalid(
        entries,
        entry_types.BoxDetection,
        reference_rules(known),
        by_image("detection", positions),
        where=where,
    )
    refuse_or_skip([entry._replace(position=positions[entry.position]) for entry in invalid], skipped)
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
