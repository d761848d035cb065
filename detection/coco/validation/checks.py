"""Checks of the inputs of an evaluation; each issue has source, ids and remedy.

`detection.coco.validation.entry_types` defines the types.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from detection.coco.params import (
    Params,
    are_among,
    best_of_images,
    column,
    lvis_annotations,
    require_rows,
    rows_are_valid,
    rows_of,
)
from detection.coco.validation import entry_types
from detection.coco.validation.invalid_entries import (
    InvalidEntry,
    Naming,
    Reason,
    Skipped,
    by_id,
    by_image,
    convert_each,
    entry_of,
    refuse,
)
from detection.datasets.entries import Entry, Ids, Rows, plain, unwritable
from schemas.quoting import quoted

IMAGE, CATEGORY, ANNOTATION = (partial(by_id, what) for what in ("image", "category", "annotation"))
DETECTION = partial(by_image, "detection")

# Key of an annotation without a mask among masks: whether it is a crowd.
CROWD_WITHOUT_MASK = "crowd_without_mask"

Flags = Sequence[bool] | npt.NDArray[np.bool_]


class Rule(NamedTuple):
    """A condition on entries that have the right type and meet the previous rules.

    what: kind of issue if the condition is not met.
    remedy: what to do.
    holds: entries -> whether each entry meets the condition.
    detail: invalid entry -> the value in question; may be "".
    """

    what: str
    remedy: str
    holds: Callable[[Sequence[Any]], Flags]
    detail: Callable[[Any], str] = lambda entry: ""


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


def category_rules() -> list[Rule]:
    """Returns the rules for categories."""

    def holds(categories: Sequence[Any]) -> Flags:
        names = [category.get("name", "") for category in categories]
        try:
            "".join(names).encode()
        except (TypeError, UnicodeEncodeError):  # a name that is not text, or not UTF-8
            return [unwritable(plain(name)) is None for name in names]
        return [True] * len(names)

    return [Rule("invalid name", "Write it in UTF-8.", holds)]


def annotation_rules(references: References) -> list[Rule]:
    """Returns the rules for annotations."""
    rules = [_reference("image_id", references.image_ids), _reference("category_id", references.category_ids)]
    if references.iou_type == "segm":
        remedy = "The area of a mask does not follow from its box. Add it in square pixels."
        rules += _mask_rules(references, needed=not references.partial_masks)

        def has_area(entry: Any) -> bool:
            return "area" in entry or (references.partial_masks and not entry.get("segmentation"))

        rules.append(Rule("missing area", remedy, lambda entries: list(map(has_area, entries))))
    if references.iou_type == "keypoints":
        rules.append(_keypoints_rule(references, needed=False))
    return rules


def detection_rules(references: References, *, boxed: bool) -> list[Rule]:
    """Returns the rules for detections; `boxed`: some detection has an (optional) box."""
    hint = " `predict` numbers images from 1: pass --ground-truth to it, or keep its NAME_images.json beside."
    rules = [_reference("image_id", references.image_ids, hint), _reference("category_id", references.category_ids)]
    if references.iou_type == "bbox":
        return rules
    if boxed:
        remedy = "Other detections have one, and its area determines the area range. Add one to all, or to none."
        rules.append(Rule("missing bbox", remedy, lambda entries: ["bbox" in entry for entry in entries]))
    if references.iou_type == "segm":
        return [*rules, *_mask_rules(references)]
    if not boxed:
        remedy = "The area is ambiguous. Add the bbox, or remove the segmentation."
        what = "keypoints with segmentation, without bbox"
        rules.append(Rule(what, remedy, lambda entries: ["segmentation" not in entry for entry in entries]))
    return [*rules, _keypoints_rule(references, needed=True)]


def _reference(key: str, ids: Ids, hint: str = "") -> Rule:
    remedy = f"The ground truth has no such {key.removesuffix('_id')}; are both from the same data set?{hint}"
    return Rule(
        f"unknown {key}",
        remedy,
        lambda entries: are_among(column(entries, key), ids),
        lambda entry: quoted(column([entry], key).item()),
    )


def _mask_rules(references: References, *, needed: bool = True) -> list[Rule]:
    from detection.coco.engine.masks import is_valid_mask, segmentation_issue

    remedy = "Masks are compared, so every entry needs one; or evaluate with iou_type bbox."

    def placed(entry: Any) -> tuple[Any, int, int]:
        return entry["segmentation"], *references.sizes[entry["image_id"]]

    def is_there(entry: Any) -> bool:
        return bool(entry.get("segmentation"))

    return [
        Rule("missing segmentation", remedy, lambda entries: [not needed or is_there(entry) for entry in entries]),
        Rule(
            "invalid segmentation",
            "Correct it, or remove the entry.",
            lambda entries: [not is_there(entry) or is_valid_mask(*placed(entry)) for entry in entries],
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

    return Rule("invalid keypoints", remedy, lambda entries: [holds(entry) for entry in entries], detail)


class Typed(list[Any]):
    """Entries that were decoded as this type, so they need no conversion.

    kind: the type.
    """

    def __init__(self, entries: Iterable[Any], kind: Any) -> None:
        super().__init__(entries)
        self.kind = kind


def valid_entries(
    entries: Sequence[Any],
    kind: Any,
    rules: Sequence[Rule],
    name: Naming,
    *,
    where: str,
    unique: bool = False,
    positions: Ids | None = None,
    skipped: Skipped = None,
) -> list[Any]:
    """Returns the valid entries, converted to their type.

    All are converted together, and each rule is checked for all at once.  They are converted one by one only if a
    type does not fit or an id is a duplicate.

    Args:
        entries: parsed JSON.
        kind: type of an entry, which it is converted to.
        rules: further conditions.
        name: returns the name of an entry, for errors.
        where: source of the entries, for errors.
        unique: whether ids must be unique.
        positions: positions of the entries in the source, int64 [N]; default 0, 1, 2, ...
        skipped: receives invalid entries; None: invalid entries are refused.

    Raises:
        DataError: there are invalid entries and none may be skipped; the message names those
            with the same kind of issue as the first one.
    """
    issues: dict[int, Reason] = {}
    typed = convert_all(entries, kind) or []
    if len(typed) < len(entries) or (unique and len(np.unique(column(typed, "id"))) < len(typed)):
        typed, issues = convert_each(entries, kind, unique=unique)
    kept = np.delete(np.arange(len(entries)), list(issues))
    for rule in rules:
        holds = np.asarray(rule.holds(typed), bool)
        if not holds.all():
            typed = plain(typed)  # NumPy values may be the reason, for a type that allows anything
            holds = np.asarray(rule.holds(typed), bool)
            for index in np.flatnonzero(~holds).tolist():
                issues[int(kept[index])] = Reason(rule.what, rule.detail(typed[index]), rule.remedy)
            typed, kept = [typed[index] for index in np.flatnonzero(holds)], kept[holds]
    invalid = []
    for index in sorted(issues):
        position = index if positions is None else int(positions[index])
        invalid.append(InvalidEntry(where, position, name(position, plain(entries[index])), *issues[index]))
    if skipped is not None:
        skipped.extend(invalid)
    elif invalid:
        refuse(invalid)
    return typed


def convert_all(entries: Sequence[Any], kind: Any) -> list[Any] | None:
    """Converts entries to their type; None if any is invalid."""
    if isinstance(entries, Typed) and entries.kind is kind:
        return entries
    try:
        return msgspec.convert(list(entries), list[kind])
    except (msgspec.ValidationError, UnicodeEncodeError):  # UnicodeEncodeError: a lone surrogate
        pass
    try:
        return msgspec.convert(plain(list(entries)), list[kind])  # NumPy numbers, or mappings other than dict
    except (msgspec.ValidationError, UnicodeEncodeError):  # UnicodeEncodeError: a lone surrogate
        return None


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
    return valid_entries(images, kind, (), IMAGE, where=where, unique=True, skipped=skipped)


def references_of(images: Sequence[Entry], category_ids: Ids, params: Params) -> References:
    """Returns the values that annotations and detections of valid images may refer to."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in images} if params.iou_type == "segm" else {}
    keypoints = {category_id: len(sigmas) for category_id, sigmas in params.sigmas_of.items()}
    return References(
        column(images, "id"), category_ids, params.iou_type, sizes, keypoints, partial_masks=bool(params.metrics)
    )


def check_categories(categories: Sequence[Any], *, where: str, lvis: bool = False) -> Ids:
    """Returns the ids of `categories` entries, int64 [K].

    Raises:
        DataError: an id is missing, invalid or a duplicate; a name is not UTF-8; a category has no
            frequency for LVIS.
    """
    kind = entry_types.LvisCategory if lvis else entry_types.Category
    return column(valid_entries(categories, kind, category_rules(), CATEGORY, where=where, unique=True), "id")


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
    kind, rules = entry_types.ANNOTATIONS[references.iou_type], annotation_rules(references)
    typed = valid_entries(annotations, kind, rules, ANNOTATION, where=where, unique=True, skipped=skipped)
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
        entries, rules = [entry_of(row) for row in rows[invalid].tolist()], detection_rules(references, boxed=True)
        kind = entry_types.BoxDetection
        valid_entries(entries, kind, rules, DETECTION, where=where, positions=invalid, skipped=skipped)
        return rows if not len(invalid) else np.delete(rows, invalid, axis=0)
    boxed = any(isinstance(entry, Mapping) and "bbox" in entry for entry in detections)
    kind, rules = entry_types.DETECTIONS[references.iou_type], detection_rules(references, boxed=boxed)
    typed = valid_entries(detections, kind, rules, DETECTION, where=where, skipped=skipped)
    if references.iou_type == "bbox":
        return rows_of(typed)
    for entry in typed if references.keypoints else ():
        del entry["keypoints"][3 * references.keypoints[entry["category_id"]] :]
    if boxed:
        for detection in typed:
            detection["bbox"] = list(detection["bbox"])
    return typed


def _fill(annotations: list[dict[str, Any]], references: References) -> None:
    for annotation in annotations:
        crowd = annotation.pop("is_crowd", 0)
        annotation["bbox"] = list(annotation["bbox"])
        annotation["iscrowd"] = int(annotation.get("iscrowd", crowd))
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
