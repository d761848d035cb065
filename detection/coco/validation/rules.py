"""Rules of annotations, detections and categories beyond their types: condition, remedy and detail of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detection.coco.engine.masks import is_valid_mask, segmentation_issue
from detection.coco.params import are_among
from detection.datasets.entries import Ids, column, plain, unwritable
from schemas.quoting import quoted

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
class Known:
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


def annotation_rules(known: Known) -> list[Rule]:
    """Conditions on annotations."""
    rules = [_reference("image_id", known.image_ids), _reference("category_id", known.category_ids)]
    if known.iou_type == "segm":
        remedy = "Masks have areas that their boxes do not tell. Add it in square pixels."
        rules += [*_mask_rules(known), Rule("missing area", remedy, _has("area"))]
    if known.iou_type == "keypoints":
        rules.append(_keypoints_rule(known, needed=False))
    return rules


def detection_rules(known: Known, *, boxed: bool) -> list[Rule]:
    """Conditions on detections; `boxed`: some detection of the list has a box, though none is needed."""
    hint = " `predict` numbers images from 1: pass it --ground-truth, or keep its NAME_images.json beside."
    rules = [_reference("image_id", known.image_ids, hint), _reference("category_id", known.category_ids)]
    if known.iou_type == "bbox":
        return rules
    if boxed:
        remedy = "Other detections have one, and its area decides what counts as small. Give all of them one, or none."
        rules.append(Rule("missing bbox", remedy, _has("bbox")))
    if known.iou_type == "segm":
        return [*rules, *_mask_rules(known)]
    if not boxed:
        remedy = "It is not clear which of the two tells the area. Add the bbox, or remove the segmentation."
        what = "keypoints with segmentation, without bbox"
        rules.append(Rule(what, remedy, lambda entries: ["segmentation" not in entry for entry in entries]))
    return [*rules, _keypoints_rule(known, needed=True)]


def _reference(key: str, ids: Ids, hint: str = "") -> Rule:
    remedy = f"The ground truth has no such {key.removesuffix('_id')}; do both belong to one data set?{hint}"
    return Rule(
        f"unknown {key}",
        remedy,
        lambda entries: are_among(column(entries, key), ids),
        lambda entry: quoted(column([entry], key).item()),
    )


def _has(key: str) -> Callable[[Sequence[Any]], Flags]:
    return lambda entries: [key in entry for entry in entries]


def _mask_rules(known: Known) -> list[Rule]:
    remedy = "Masks are compared, so each needs one; or evaluate with iou_type bbox."

    def placed(entry: Any) -> tuple[Any, int, int]:
        return entry["segmentation"], *known.sizes[entry["image_id"]]

    return [
        Rule("missing segmentation", remedy, lambda entries: [bool(entry.get("segmentation")) for entry in entries]),
        Rule(
            "invalid segmentation",
            "Correct it, or remove the entry.",
            lambda entries: [is_valid_mask(*placed(entry)) for entry in entries],
            lambda entry: segmentation_issue(*placed(entry)) or "",
        ),
    ]


def _keypoints_rule(known: Known, *, needed: bool) -> Rule:
    count = known.keypoints
    remedy = f"Each needs {count} times x, y, visibility; if there are not {count} keypoints, give oks_sigmas."
    default = () if needed else (0,) * (3 * count)
    return Rule(
        "invalid keypoints",
        remedy,
        lambda entries: [len(entry.get("keypoints", default)) == 3 * count for entry in entries],
    )
