"""Checks of the inputs of an evaluation; each issue has source, ids and remedy.

`detection.coco.validation.entry_types` defines the types, and `detection.datasets.annotations.entry_rules` the rules of
all COCO entries.  The rules here compare entries with each other: with the image of a mask, the keypoints of a
category, other detections.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from detection.coco.params import Params, best_of_images, lvis_annotations, require_rows, rows_are_valid, rows_of
from detection.coco.validation import entry_types
from detection.datasets.annotations.entries import Entry, Ids, Rows
from detection.datasets.annotations.entry_rules import (
    UNIQUE_ID,
    WRITABLE,
    Rule,
    check_entries,
    column,
    is_crowd,
    known_category,
    known_image,
    plain,
)
from schemas.errors import DataError
from schemas.quoting import first_of, quoted

# Key of an annotation without a mask among masks: whether it is a crowd.
CROWD_WITHOUT_MASK = "crowd_without_mask"
_SHOWN = 5  # max entries in an error
_SAME_DATA = "Are ground truth and detections of the same data set?"
_NUMBERED = "`predict` numbers images from 1: pass --ground-truth to it, or keep its NAME_images.json beside."


class InvalidEntry(NamedTuple):
    """An entry of a COCO file, and why it is invalid.

    source: the file, or the name of the argument.
    position: index in its list, from 0.
    record: name of the entry in errors: "annotation 7", "detection 3 (image 42)".
    what: kind of issue.
    detail: the value in question; may be empty.
    remedy: what to do.
    """

    source: str
    position: int
    record: str
    what: str
    detail: str
    remedy: str

    @property
    def named(self) -> str:
        """Name of the entry, with the value in question."""
        return f"{self.record}: {self.detail}" if self.detail else self.record


Skipped = list[InvalidEntry] | None  # receives invalid entries, which are skipped; None: they are refused


def valid_entries(
    entries: Sequence[Any],
    kind: Any,
    rules: Sequence[Rule],
    what: str,
    *,
    where: str,
    positions: Ids | None = None,
    skipped: Skipped = None,
) -> list[Any]:
    """Returns the valid entries, converted to their type.

    Args:
        entries: parsed JSON.
        kind: type of an entry, which it is converted to.
        rules: further conditions.
        what: what an entry is, for errors: "image", "annotation", "category" or "detection".
        where: source of the entries, for errors.
        positions: positions of the entries in the source, int64 [N]; default 0, 1, 2, ...
        skipped: receives invalid entries; None: invalid entries are refused.

    Raises:
        DataError: there are invalid entries and none may be skipped; the message names those
            with the same kind of issue as the first one.
    """
    valid, issues = check_entries(entries, kind, rules)
    invalid = []
    for index, issue in issues.items():
        position = index if positions is None else int(positions[index])
        record = _record(what, position, plain(entries[index]))
        invalid.append(InvalidEntry(where, position, record, issue.what, issue.detail, issue.remedy))
    if skipped is not None:
        skipped.extend(invalid)
    elif invalid:
        first = invalid[0]
        alike = [entry.named for entry in invalid if entry.what == first.what]
        others = len(invalid) - len(alike)
        more = f" Other issues there: {others}." if others else ""
        raise DataError(f"{where}: {first.what}: {first_of(alike, _SHOWN)}. {first.remedy}{more}")
    return valid


def _record(what: str, position: int, entry: Any) -> str:
    """Returns the name of an entry: by id, or for detections, which have none, by position and image."""
    key = "image_id" if what == "detection" else "id"
    value = quoted(entry[key]) if isinstance(entry, Mapping) and key in entry else ""
    if what == "detection":
        return f"{what} {position}" + (f" (image {value})" if value else "")
    return f"{what} {value or f'at position {position}'}"


@dataclass(frozen=True, eq=False)
class References:
    """Values that entries are checked against.

    image_ids: int64 [N].
    category_ids: int64 [K].
    iou_type: `bbox`, `segm` or `keypoints`.
    sizes: height and width in pixels by image id; only needed for masks.
    keypoints: number of keypoints by category id; only needed for keypoints.
    partial_masks: annotations may lack a mask, as metrics besides COCO's have a rule for them.
    """

    image_ids: Ids
    category_ids: Ids
    iou_type: str
    sizes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    keypoints: Mapping[int, int] = field(default_factory=dict)
    partial_masks: bool = False


def references_of(images: Sequence[Entry], category_ids: Ids, params: Params) -> References:
    """Returns the values that annotations and detections of valid images may refer to."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in images} if params.iou_type == "segm" else {}
    keypoints = {category_id: len(sigmas) for category_id, sigmas in params.sigmas_of.items()}
    return References(
        column(images, "id"), category_ids, params.iou_type, sizes, keypoints, partial_masks=bool(params.metrics)
    )


class Checked(NamedTuple):
    """Valid entries of some images.

    images, annotations: COCO entries.
    detections: COCO results, or rows float64 [N, 7] (image_id, x, y, width, height,
        score, category_id).
    """

    images: list[Any]
    annotations: list[Any]
    detections: list[Any] | Rows

    @property
    def image_ids(self) -> Ids:
        """Image ids, int64 [N]."""
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
        where: source of images and annotations, for errors.
        where_detections: source of the detections, for errors.
        skipped: receives invalid entries; None: invalid entries are refused.

    Raises:
        DataError: an entry is invalid, and none may be skipped.
    """
    images = valid_images(images, iou_type=params.iou_type, where=where, lvis=params.lvis, skipped=skipped)
    references = references_of(images, category_ids, params)
    annotations = check_annotations(annotations, references, where=where, skipped=skipped)
    checked = check_detections(detections, references, where=where_detections, skipped=skipped)
    if params.lvis:
        annotations, checked = lvis_annotations(annotations), best_of_images(checked, params.max_dets[-1])
    return Checked(images, annotations, checked)


def valid_images(
    images: Sequence[Any], *, iou_type: str, where: str, lvis: bool = False, skipped: Skipped = None
) -> list[Any]:
    """Returns the `images` entries with the keys that an evaluation needs.

    Raises:
        DataError: an id is missing, invalid or a duplicate; an image has no size for comparing
            masks, or no list for LVIS.
    """
    sized = iou_type == "segm"
    kinds = (entry_types.Image, entry_types.LvisImage, entry_types.SizedImage, entry_types.SizedLvisImage)
    kind = kinds[2 * sized + lvis]
    return valid_entries(images, kind, [UNIQUE_ID], "image", where=where, skipped=skipped)


def check_categories(categories: Sequence[Any], *, where: str, lvis: bool = False) -> Ids:
    """Returns the ids of `categories` entries, int64 [K].

    Raises:
        DataError: an id is missing, invalid or a duplicate; a text is not UTF-8; a category has no
            frequency for LVIS.
    """
    kind = entry_types.LvisCategory if lvis else entry_types.Category
    return column(valid_entries(categories, kind, [UNIQUE_ID, WRITABLE], "category", where=where), "id")


def check_annotations(
    annotations: Sequence[Any], references: References, *, where: str, skipped: Skipped = None
) -> list[Any]:
    """Returns the `annotations` entries for the engine, with missing values filled in.

    `iscrowd` may also be `is_crowd`, or missing (0); `area` may be missing except for masks
    (the box's area); annotations without keypoints are ignored for keypoints.  Those without a mask, where further
    metrics are computed, are regions that COCO's metrics ignore: crowds of their boxes, with `CROWD_WITHOUT_MASK`.

    Args:
        annotations: the entries.
        references: values to check against.
        where: source of the entries, for errors.
        skipped: receives invalid entries; None: invalid entries are refused.

    Raises:
        DataError: an entry is invalid, such as a missing id, box or mask, an unknown image or
            category, a box that is not finite or has a negative side, or a duplicate id.
    """
    kind, rules = entry_types.ANNOTATIONS[references.iou_type], _annotation_rules(references)
    typed = valid_entries(annotations, kind, rules, "annotation", where=where, skipped=skipped)
    _fill(typed, references)
    return typed


def check_detections(
    detections: Sequence[Any] | Rows, references: References, *, where: str, skipped: Skipped = None
) -> list[Any] | Rows:
    """Returns the detections for the engine.

    Args:
        detections: COCO results, or for boxes an array [N, 7] of rows (image_id, x,
            y, width, height, score, category_id), pixels.
        references: values to check against.
        where: source of the detections, for errors.
        skipped: receives invalid entries; None: invalid entries are refused.

    Returns:
        For boxes float64 [N, 7]; for masks and keypoints COCO results.

    Raises:
        DataError: a detection is invalid, such as a missing key, an unknown image or category,
            a score or box that is not finite, or a negative side.
    """
    if isinstance(detections, np.ndarray):
        require_rows(detections, references.iou_type, where)
        rows = detections.astype(np.float64, copy=False)
        invalid = np.flatnonzero(~rows_are_valid(rows, references.image_ids, references.category_ids))
        entries, rules = [_entry_of(row) for row in rows[invalid].tolist()], _detection_rules(references, boxed=True)
        kind = entry_types.BoxDetection
        valid_entries(entries, kind, rules, "detection", where=where, positions=invalid, skipped=skipped)
        return rows if not len(invalid) else np.delete(rows, invalid, axis=0)
    boxed = any(isinstance(entry, Mapping) and "bbox" in entry for entry in detections)
    kind, rules = entry_types.DETECTIONS[references.iou_type], _detection_rules(references, boxed=boxed)
    typed = valid_entries(detections, kind, rules, "detection", where=where, skipped=skipped)
    if references.iou_type == "bbox":
        return rows_of(typed)
    for entry in typed if references.keypoints else ():
        del entry["keypoints"][3 * references.keypoints[entry["category_id"]] :]
    if boxed:
        for detection in typed:
            detection["bbox"] = list(detection["bbox"])
    return typed


def _annotation_rules(references: References) -> list[Rule]:
    """Returns the rules for annotations."""
    rules = [UNIQUE_ID, known_image(references.image_ids), known_category(references.category_ids)]
    if references.iou_type == "segm":
        rules += _mask_rules(references, needed=not references.partial_masks)
        rules.append(
            _each(
                "missing area",
                "The area of a mask does not follow from its box. Add it in square pixels.",
                lambda entry: "area" in entry or (references.partial_masks and not entry.get("segmentation")),
            )
        )
    if references.iou_type == "keypoints":
        rules.append(_keypoints_rule(references, needed=False))
    return rules


def _detection_rules(references: References, *, boxed: bool) -> list[Rule]:
    """Returns the rules for detections; `boxed`: some detection has an (optional) box."""
    rules = [
        known_image(references.image_ids, f"The ground truth has no such image. {_SAME_DATA} {_NUMBERED}"),
        known_category(references.category_ids, _SAME_DATA),
    ]
    if references.iou_type == "bbox":
        return rules
    if boxed:
        remedy = "Other detections have one, and its area determines the area range. Add one to all, or to none."
        rules.append(_each("missing bbox", remedy, lambda entry: "bbox" in entry))
    if references.iou_type == "segm":
        return [*rules, *_mask_rules(references)]
    if not boxed:
        remedy = "The area is ambiguous. Add the bbox, or remove the segmentation."
        what = "keypoints with segmentation, without bbox"
        rules.append(_each(what, remedy, lambda entry: "segmentation" not in entry))
    return [*rules, _keypoints_rule(references, needed=True)]


def _each(
    what: str, remedy: str, holds: Callable[[Any], bool], detail: Callable[[Any], str] = lambda entry: ""
) -> Rule:
    """Returns a rule on each entry alone."""
    return Rule(what, remedy, lambda entries: list(map(holds, entries)), detail=detail)


def _mask_rules(references: References, *, needed: bool = True) -> list[Rule]:
    from detection.coco.engine.masks import is_valid_mask, segmentation_issue

    def placed(entry: Any) -> tuple[Any, int, int]:
        return entry["segmentation"], *references.sizes[entry["image_id"]]

    return [
        _each(
            "missing segmentation",
            "Masks are compared, so every entry needs one; or evaluate with iou_type bbox.",
            lambda entry: not needed or bool(entry.get("segmentation")),
        ),
        _each(
            "invalid segmentation",
            "Correct it, or remove the entry.",
            lambda entry: not entry.get("segmentation") or is_valid_mask(*placed(entry)),
            lambda entry: segmentation_issue(*placed(entry)) or "",
        ),
    ]


def _keypoints_rule(references: References, *, needed: bool) -> Rule:
    remedy = "Every entry needs x, y, visibility for each keypoint: name them in `categories`, or set oks_sigmas."

    def size(entry: Any) -> int:
        return 3 * references.keypoints[entry["category_id"]]

    def holds(entry: Any) -> bool:
        points, count = entry.get("keypoints"), size(entry)
        if points is None or len(points) == count:
            return points is not None or not needed
        # A model pads with zeros, to the largest number of keypoints of a category.
        return needed and len(points) > count and not any(points[count:])

    def detail(entry: Any) -> str:
        return f"{len(entry.get('keypoints', ()))} numbers instead of {size(entry)}"

    return _each("invalid keypoints", remedy, holds, detail)


def _fill(annotations: list[dict[str, Any]], references: References) -> None:
    for annotation in annotations:
        annotation["bbox"] = list(annotation["bbox"])
        annotation["iscrowd"] = int(is_crowd(annotation))
        annotation.pop("is_crowd", None)
        if "area" not in annotation:
            annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
        if references.iou_type == "segm" and not annotation.get("segmentation"):
            x, y, width, height = annotation["bbox"]
            annotation["segmentation"] = [[x, y, x + width, y, x + width, y + height, x, y + height]]
            annotation[CROWD_WITHOUT_MASK], annotation["iscrowd"] = annotation["iscrowd"], 1
        if references.iou_type == "keypoints":
            count = references.keypoints[annotation["category_id"]]
            points = annotation.setdefault("keypoints", [0] * (3 * count))
            if "num_keypoints" not in annotation:
                annotation["num_keypoints"] = sum(flag > 0 for flag in points[2::3])


def _entry_of(row: Sequence[float]) -> dict[str, Any]:
    """Returns a row as a COCO result."""
    image_id, *box, score, category_id = row
    ids = {"image_id": image_id, "category_id": category_id}
    return {
        **{key: int(value) if value.is_integer() else value for key, value in ids.items()},
        "bbox": box,
        "score": score,
    }
