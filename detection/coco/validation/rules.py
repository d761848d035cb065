"""What an entry of a COCO file must be to be evaluated, rule by rule.

Slow, for the entries of a file in which something is known to be wrong: these rules
say what, where and why.  `detection.coco.validation.fast_checks` finds out whether.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from detection.coco.metrics import FREQUENCIES
from detection.coco.validation.columns import Naming, are_numbers, is_number
from detection.coco.validation.invalid_entries import InvalidEntry
from detection.datasets.entries import Entry, Ids, is_id, unwritable
from detection.datasets.masks import has_degenerate_polygon, mask_fault
from schemas.quoting import quoted


class Rule(NamedTuple):
    """A condition.

    what: the fault where it is not met.
    remedy: what to do then.
    fault: an entry -> None where it is met, else what shows the fault, "" where nothing more is to be said.
    """

    what: str
    remedy: str
    fault: Callable[[Entry], str | None]


@dataclass(frozen=True, eq=False)
class Known:
    """What entries refer to, and what they are compared by.

    image_ids: int64 [N].
    category_ids: int64 [K].
    iou_type: `bbox`, `segm` or `keypoints`.
    sizes: int64 [N, 2], height and width of the images; None: masks are not compared with them.
    keypoints: how many an object has.
    """

    image_ids: Ids
    category_ids: Ids
    iou_type: str
    sizes: Ids | None = None
    keypoints: int = 17


def find_invalid(entries: Sequence[Any], rules: Sequence[Rule], name: Naming, *, where: str) -> list[InvalidEntry]:
    """The entries that break a rule, each with the first that it breaks."""
    bad = []
    for position, entry in enumerate(entries):
        for rule in rules:
            detail = rule.fault(entry)
            if detail is not None:
                bad.append(InvalidEntry(where, position, name(position, entry), rule.what, detail, rule.remedy))
                break
    return bad


def image_rules(*, sized: bool, lvis: bool) -> list[Rule]:
    """Args: `sized`, whether height and width are needed; `lvis`, whether LVIS' lists of categories are."""
    rules = [_id("id"), _unique()]
    if sized:
        remedy = "Masks need the image's size: add it in pixels."
        rules.append(
            _unless(
                "no integer height and width",
                remedy,
                lambda image: all(is_id(image.get(key)) and image[key] > 0 for key in ("height", "width")),
            )
        )
    for key in ("neg_category_ids", "not_exhaustive_category_ids") if lvis else ():
        remedy = f"LVIS' images have a list of category ids `{key}`. Give LVIS' file, or evaluate as COCO does."
        rules.append(_unless(f"no {key}", remedy, _has_ids(key)))
    return rules


def category_rules(*, lvis: bool) -> list[Rule]:
    """Args: `lvis`, whether LVIS' frequencies are needed."""
    writable = _unless("bad name", "Write it in UTF-8.", lambda category: unwritable(category.get("name")) is None)
    rules = [_id("id"), _unique(), writable]
    if lvis:
        remedy = (
            f"LVIS' categories have a `frequency`, one of {', '.join(FREQUENCIES)}. Add it, or evaluate as COCO does."
        )
        rules.append(_unless("no frequency", remedy, lambda category: category.get("frequency") in tuple(FREQUENCIES)))
    return rules


def annotation_rules(known: Known) -> list[Rule]:
    """The rules of ground truth."""
    area = "Each needs `area`: a finite number of square pixels, not below 0."
    rules = [
        _id("id"),
        _unique(),
        *_references(known),
        *_boxes(),
        _unless(
            "bad area", area, lambda entry: "area" not in entry or (is_number(entry["area"]) and entry["area"] >= 0)
        ),
        _unless("bad iscrowd", "Write 1 for a crowd, 0 for a single object.", _is_flag),
    ]
    if known.iou_type == "segm":
        remedy = "Masks have areas that their boxes do not tell. Add it in square pixels."
        rules += [*_masks(known), _unless("no area", remedy, lambda entry: "area" in entry)]
    if known.iou_type == "keypoints":
        count = "Write the number of labelled keypoints, or leave it out."
        rules += [
            _keypoints(known, needed=False),
            _unless("bad num_keypoints", count, lambda entry: is_id(entry.get("num_keypoints", 0))),
        ]
    return rules


def detection_rules(known: Known, *, boxed: bool) -> list[Rule]:
    """Args: `known`; `boxed`, whether other detections of the list have a box."""
    score = _unless("bad score", "Each needs `score`: a finite number.", lambda entry: is_number(entry.get("score")))
    rules = [*_references(known), score]
    if known.iou_type == "bbox":
        return [*rules, *_boxes()]
    if boxed:
        remedy = "Other detections have one, and its area decides what counts as small. Give all of them one, or none."
        rules += [_unless("no bbox", remedy, lambda entry: "bbox" in entry), *_boxes()]
    if known.iou_type == "segm":
        return [*rules, *_masks(known)]
    if not boxed:
        remedy = "It is not clear which of the two tells the area. Add the bbox, or remove the segmentation."
        rules.append(
            _unless("keypoints with segmentation, without bbox", remedy, lambda entry: "segmentation" not in entry)
        )
    return [*rules, _keypoints(known, needed=True)]


def _unless(what: str, remedy: str, accept: Callable[[Entry], bool]) -> Rule:
    return Rule(what, remedy, lambda entry: None if accept(entry) else "")


def _id(key: str) -> Rule:
    remedy = f"Each needs `{key}`: an integer from 0 to 2^53."
    return _unless(f"bad {key}", remedy, lambda entry: isinstance(entry, Mapping) and is_id(entry.get(key)))


def _unique() -> Rule:
    seen: set[int] = set()

    def is_new(entry: Entry) -> bool:
        known = entry["id"] in seen
        seen.add(entry["id"])
        return not known

    return _unless("an id is there more than once", "Give each entry an id of its own.", is_new)


def _references(known: Known) -> list[Rule]:
    rules = []
    for key, ids in (("image_id", known.image_ids), ("category_id", known.category_ids)):
        rules += [_id(key), _known(key, set(ids.tolist()))]
    return rules


def _known(key: str, ids: set[int]) -> Rule:
    remedy = f"The ground truth has no such {key.removesuffix('_id')}; do both belong to one data set?"
    return Rule(f"unknown {key}", remedy, lambda entry: None if entry[key] in ids else quoted(entry[key]))


def _boxes() -> list[Rule]:
    return [
        _unless(
            "bad bbox",
            "Each needs `bbox`: four finite numbers, x, y, width, height in pixels.",
            lambda entry: are_numbers(entry.get("bbox"), 4),
        ),
        _unless(
            "negative width or height in bbox",
            "COCO boxes are x, y, width, height: were two corners written?",
            lambda entry: bool(min(entry["bbox"][2:]) >= 0),
        ),
    ]


def _masks(known: Known) -> list[Rule]:
    remedy = "Masks are compared, so each needs one; or evaluate with iou_type bbox."
    rules = [_unless("no segmentation", remedy, lambda entry: bool(entry.get("segmentation")))]
    if known.sizes is not None:
        sizes = dict(zip(known.image_ids.tolist(), known.sizes.tolist(), strict=True))
        remedy = "Correct it, or remove the entry."
        rules.append(
            Rule(
                "bad segmentation",
                remedy,
                lambda entry: segmentation_fault(entry["segmentation"], *sizes[entry["image_id"]]),
            )
        )
    return rules


def segmentation_fault(segmentation: Any, height: int, width: int) -> str | None:
    """Why `segmentation` is no mask that can be compared in an image of this size in pixels; None where it is one."""
    if isinstance(segmentation, Mapping) and isinstance(segmentation.get("counts"), bytes):
        segmentation = {**segmentation, "counts": segmentation["counts"].decode("latin-1")}
    fault = mask_fault(segmentation, height=height, width=width)
    if fault is None and has_degenerate_polygon(segmentation):
        return "a polygon has fewer than three points"
    return fault


def _keypoints(known: Known, *, needed: bool) -> Rule:
    count = known.keypoints
    remedy = f"Each needs {count} times x, y, visibility; where there are not {count} keypoints, give oks_sigmas."
    return _unless(
        "bad keypoints",
        remedy,
        lambda entry: (not needed and "keypoints" not in entry) or are_numbers(entry.get("keypoints"), 3 * count),
    )


def _has_ids(key: str) -> Callable[[Entry], bool]:
    return lambda image: isinstance(image.get(key), list) and all(map(is_id, image[key]))


def _is_flag(entry: Entry) -> bool:
    value = entry.get("iscrowd", entry.get("is_crowd", 0))
    return isinstance(value, int | float) and value in (0, 1)
