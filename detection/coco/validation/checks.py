"""Checks of what enters an evaluation; each issue names source, ids and remedy.

Types are in `detection.coco.validation.entry_types`.
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

Flags = Sequence[bool] | npt.NDArray[np.bool_]


class Rule(NamedTuple):
    """A condition on entries that have their type and meet the rules before.

    what: the kind of issue if the condition is not met.
    remedy: what to do then.
    holds: entries -> for each, whether the condition is met.
    detail: an entry that does not meet it -> what shows the issue; may be "".
    """

    what: str
    remedy: str
    holds: Callable[[Sequence[Any]], Flags]
    detail: Callable[[Any], str] = lambda entry: ""


@dataclass(frozen=True, eq=False)
class References:
    """What entries refer to, and what they are compared by.

    image_ids: int64 [N].
    category_ids: int64 [K].
    iou_type: `bbox`, `segm` or `keypoints`.
    sizes: height and width in pixels by image id; only needed for masks.
    keypoints: number of keypoints of an annotation.
    """

    image_ids: Ids
    category_ids: Ids
    iou_type: str
    sizes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    keypoints: int = 17  # COCO's person


def category_rules() -> list[Rule]:
    """Conditions on categories."""

    def holds(categories: Sequence[Any]) -> Flags:
        names = [category.get("name", "") for category in categories]
        try:
            "".join(names).encode()
        except (TypeError, UnicodeEncodeError):  # a name that is no text, or not UTF-8
            return [unwritable(plain(name)) is None for name in names]
        return [True] * len(names)

    return [Rule("invalid name", "Write it in UTF-8.", holds)]


def annotation_rules(references: References) -> list[Rule]:
    """Conditions on annotations."""
    rules = [_reference("image_id", references.image_ids), _reference("category_id", references.category_ids)]
    if references.iou_type == "segm":
        remedy = "Masks have areas that their boxes do not tell. Add it in square pixels."
        rules += _mask_rules(references)
        rules.append(Rule("missing area", remedy, lambda entries: ["area" in entry for entry in entries]))
    if references.iou_type == "keypoints":
        rules.append(_keypoints_rule(references, needed=False))
    return rules


def detection_rules(references: References, *, boxed: bool) -> list[Rule]:
    """Conditions on detections; `boxed`: some detection of the list has a box, though none is needed."""
    hint = " `predict` numbers images from 1: pass it --ground-truth, or keep its NAME_images.json beside."
    rules = [_reference("image_id", references.image_ids, hint), _reference("category_id", references.category_ids)]
    if references.iou_type == "bbox":
        return rules
    if boxed:
        remedy = "Other detections have one, and its area decides what counts as small. Give all of them one, or none."
        rules.append(Rule("missing bbox", remedy, lambda entries: ["bbox" in entry for entry in entries]))
    if references.iou_type == "segm":
        return [*rules, *_mask_rules(references)]
    if not boxed:
        remedy = "It is not clear which of the two tells the area. Add the bbox, or remove the segmentation."
        what = "keypoints with segmentation, without bbox"
        rules.append(Rule(what, remedy, lambda entries: ["segmentation" not in entry for entry in entries]))
    return [*rules, _keypoints_rule(references, needed=True)]


def _reference(key: str, ids: Ids, hint: str = "") -> Rule:
    remedy = f"The ground truth has no such {key.removesuffix('_id')}; do both belong to one data set?{hint}"
    return Rule(
        f"unknown {key}",
        remedy,
        lambda entries: are_among(column(entries, key), ids),
        lambda entry: quoted(column([entry], key).item()),
    )


def _mask_rules(references: References) -> list[Rule]:
    from detection.coco.engine.masks import is_valid_mask, segmentation_issue

    remedy = "Masks are compared, so each needs one; or evaluate with iou_type bbox."

    def placed(entry: Any) -> tuple[Any, int, int]:
        return entry["segmentation"], *references.sizes[entry["image_id"]]

    return [
        Rule("missing segmentation", remedy, lambda entries: [bool(entry.get("segmentation")) for entry in entries]),
        Rule(
            "invalid segmentation",
            "Correct it, or remove the entry.",
            lambda entries: [is_valid_mask(*placed(entry)) for entry in entries],
            lambda entry: segmentation_issue(*placed(entry)) or "",
        ),
    ]


def _keypoints_rule(references: References, *, needed: bool) -> Rule:
    count = references.keypoints
    remedy = f"Each needs {count} times x, y, visibility; if there are not {count} keypoints, give oks_sigmas."
    default = () if needed else (0,) * (3 * count)
    return Rule(
        "invalid keypoints",
        remedy,
        lambda entries: [len(entry.get("keypoints", default)) == 3 * count for entry in entries],
    )


class Typed(list[Any]):
    """Entries that a reader has decoded as this type, so that they need no conversion.

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

    All are converted together, and each rule is checked for all at once.  Only if a type does not fit or an id is a
    duplicate, they are converted one by one.

    Args:
        entries: parsed JSON.
        kind: type of an entry, which it is converted to.
        rules: further conditions.
        name: names an entry in errors.
        where: names the source in errors.
        unique: whether each `id` may appear only once.
        positions: positions of the entries in the source, int64 [N]; default 0, 1, 2, ...
        skipped: see `Skipped`.

    Raises:
        DataError: there are invalid entries and none may be skipped; it names those
            that share the first one's kind of issue.
    """
    issues: dict[int, Reason] = {}
    typed = convert_all(entries, kind) or []
    if len(typed) < len(entries) or (unique and len(np.unique(column(typed, "id"))) < len(typed)):
        typed, issues = convert_each(entries, kind, unique=unique)
    kept = np.delete(np.arange(len(entries)), list(issues))
    for rule in rules:
        holds = np.asarray(rule.holds(typed), bool)
        if not holds.all():
            typed = plain(typed)  # numpy's values may be the reason, where a type allows anything
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
    references = references_of(images, category_ids, params)
    annotations = check_annotations(annotations, references, where=where, skipped=skipped)
    checked = check_detections(detections, references, where=where_detections, skipped=skipped)
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
    return valid_entries(images, kind, (), IMAGE, where=where, unique=True, skipped=skipped)


def references_of(images: Sequence[Entry], category_ids: Ids, params: Params) -> References:
    """Returns what annotations and detections of valid images may refer to."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in images} if params.iou_type == "segm" else {}
    return References(column(images, "id"), category_ids, params.iou_type, sizes, len(params.oks_sigmas))


def check_categories(categories: Sequence[Any], *, where: str, lvis: bool = False) -> Ids:
    """Returns the ids of `categories` entries, int64 [K].

    Raises:
        DataError: an id is missing, invalid or a duplicate; a name is not UTF-8; LVIS'
            frequency is needed and missing.
    """
    kind = entry_types.LvisCategory if lvis else entry_types.Category
    return column(valid_entries(categories, kind, category_rules(), CATEGORY, where=where, unique=True), "id")


def check_annotations(
    annotations: Sequence[Any], references: References, *, where: str, skipped: Skipped = None
) -> list[Any]:
    """Returns the `annotations` entries as the engine takes them, with what is missing filled in.

    `iscrowd` may be written `is_crowd` or left out (0), `area` left out (that of the
    box, but not for masks); for keypoints, an annotation without any is ignored.

    Args:
        annotations: the entries.
        references: what they refer to.
        where: names the source in error messages.
        skipped: see `Skipped`.

    Raises:
        DataError: an entry without ids, box or mask; an unknown image or category; a
            box that is not finite or has a negative side; a duplicate id; the like.
    """
    kind, rules = entry_types.ANNOTATIONS[references.iou_type], annotation_rules(references)
    typed = valid_entries(annotations, kind, rules, ANNOTATION, where=where, unique=True, skipped=skipped)
    _fill(typed, references)
    return typed


def check_detections(
    detections: Sequence[Any] | Rows, references: References, *, where: str, skipped: Skipped = None
) -> list[Any] | Rows:
    """Returns the detections as the engine takes them.

    Args:
        detections: COCO results, or for boxes an array [N, 7] of rows (image_id, x,
            y, width, height, score, category_id), pixels.
        references: what they refer to.
        where: names the source in error messages.
        skipped: see `Skipped`.

    Returns:
        For boxes float64 [N, 7]; for masks and keypoints COCO results.

    Raises:
        DataError: a key is missing; an unknown image or category; a score or box
            that is not finite; a negative side; the like.
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
        if references.iou_type == "keypoints":
            points = annotation.setdefault("keypoints", [0] * (3 * references.keypoints))
            if "num_keypoints" not in annotation:
                annotation["num_keypoints"] = sum(flag > 0 for flag in points[2::3])
