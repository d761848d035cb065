"""The rules of an evaluation, besides those of every COCO entry (`detection.datasets.entry_rules`).

They compare the entries with each other: with the image of a mask, the keypoints of a category, other detections.
`detection.coco.validation.entry_types` defines the types.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detection.coco.params import Params
from detection.datasets.entries import Entry, Ids
from detection.datasets.entry_rules import UNIQUE_ID, Rule, column, known_category, known_image

_SAME_DATA = "Are ground truth and detections of the same data set?"
_NUMBERED = "`predict` numbers images from 1: pass --ground-truth to it, or keep its NAME_images.json beside."


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


def annotation_rules(references: References) -> list[Rule]:
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


def detection_rules(references: References, *, boxed: bool) -> list[Rule]:
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
