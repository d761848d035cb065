"""Invalid entries of an evaluation, found one by one: an error that names them, or a list of what was left out.

Slow, for lists in which something is known to be invalid: this says what, where and why.
`detection.coco.validation.checks` finds out whether.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from detection.coco.validation.mask_checks import segmentation_issue
from detection.datasets.entries import Entry, Ids, InvalidField, invalid_field, is_id
from schemas.errors import DataError
from schemas.quoting import quoted

Naming = Callable[[int, Any], str]  # (position, entry) -> how an error names it

_SHOWN = 5
_ID = "Each needs one: an integer from 0 to 2^53."
_REMEDIES = {
    "id": _ID,
    "image_id": _ID,
    "category_id": _ID,
    "file_name": "Images are found by it: add it.",
    "score": "Each needs one: a finite number.",
    "bbox": "Each needs one: four finite numbers, x, y, width, height in pixels.",
    "area": "Write a finite number of square pixels, not below 0.",
    "iscrowd": "Write 1 for a crowd, 0 for a single object.",
    "is_crowd": "Write 1 for a crowd, 0 for a single object.",
    "num_keypoints": "Write the number of labelled keypoints, or leave it out.",
    "keypoints": "Write x, y, visibility of each keypoint.",
    "height": "Masks need the image's size: add it in pixels.",
    "width": "Masks need the image's size: add it in pixels.",
    "neg_category_ids": "LVIS' images have such a list of category ids. Give LVIS' file, or evaluate as COCO does.",
    "not_exhaustive_category_ids": "LVIS' images have such a list of category ids. "
    "Give LVIS' file, or evaluate as COCO does.",
    "frequency": "LVIS' categories have one, r, c or f. Add it, or evaluate as COCO does.",
}


class Rule(NamedTuple):
    """A condition on an entry that has its type.

    what: the kind of issue if the condition is not met.
    remedy: what to do then.
    check: an entry -> None if the condition is met, else a detail that shows the issue; may be "".
    """

    what: str
    remedy: str
    check: Callable[[Entry], str | None]


class InvalidEntry(NamedTuple):
    """An entry of a COCO file, and why it is invalid.

    source: the file, or what the entries were given as.
    position: in its list, from 0.
    record: as an error names it: "annotation 7", "detection 3 (image 42)".
    what: the kind of issue.
    detail: what of this entry shows it; may be empty.
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
        """The entry and what shows the issue."""
        return f"{self.record}: {self.detail}" if self.detail else self.record


@dataclass(frozen=True, eq=False)
class Known:
    """What entries refer to, and what they are compared by.

    image_ids: int64 [N].
    category_ids: int64 [K].
    iou_type: `bbox`, `segm` or `keypoints`.
    sizes: int64 [N, 2], height and width of the images; None: masks are not compared with them.
    keypoints: number of keypoints of an annotation.
    """

    image_ids: Ids
    category_ids: Ids
    iou_type: str
    sizes: Ids | None = None
    keypoints: int = 17  # COCO's person


def find_invalid(
    entries: Sequence[Any], kind: Any, rules: Sequence[Rule], name: Naming, *, where: str, unique: bool = False
) -> tuple[list[Any], list[InvalidEntry]]:
    """Divides entries into valid and invalid ones.

    Args:
        entries: parsed JSON.
        kind: type of an entry, which it is converted to.
        rules: further conditions.
        name: names an entry in errors.
        where: names the source in errors.
        unique: whether each `id` may appear only once.

    Returns:
        The valid entries, converted, and the others, each with the first rule it breaks.
    """
    valid: list[Any] = []
    invalid: list[InvalidEntry] = []
    ids: set[int] = set()
    for position, entry in enumerate(map(plain, entries)):
        own: Any = entry.get("id") if isinstance(entry, dict) else None
        broken: tuple[str, str, str] | None = None
        if unique and is_id(own):
            if own in ids:
                broken = "duplicate id", "", "Give each entry an id of its own."
            ids.add(own)
        if broken is None:
            try:
                typed = _converted(entry, kind)
                broken = _broken_rule(typed, rules)
            except msgspec.ValidationError as error:
                broken = _explain(entry, invalid_field(error))
        if broken is None:
            valid.append(typed)
        else:
            what, detail, remedy = broken
            invalid.append(InvalidEntry(where, position, name(position, entry), what, detail, remedy))
    return valid, invalid


def _converted(entry: Any, kind: Any) -> Any:
    """Converts an entry to its type.

    Raises:
        msgspec.ValidationError: it is invalid.
    """
    try:
        return msgspec.convert(entry, kind)
    except UnicodeEncodeError:  # msgspec, while it words its own message
        return msgspec.convert(_without_surrogates(entry), kind)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(each) for each in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """Returns numpy's numbers and arrays, tuples and mappings as JSON is parsed."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def by_id(what: str) -> Naming:
    """Names entries by their `id`: "annotation 7"."""

    def name(position: int, entry: Any) -> str:
        known = isinstance(entry, Mapping) and "id" in entry
        return f"{what} {quoted(entry['id'])}" if known else f"{what} at position {position}"

    return name


def by_image(what: str, positions: Sequence[int] | None = None) -> Naming:
    """Names entries by position and image, as detections have no id: "detection 3 (image 42)".

    Args:
        what: the kind of entry.
        positions: in the whole list, if the entries are some of it.
    """

    def name(position: int, entry: Any) -> str:
        known = isinstance(entry, Mapping) and "image_id" in entry
        place = positions[position] if positions else position
        return f"{what} {place}" + (f" (image {quoted(entry['image_id'])})" if known else "")

    return name


def refuse_or_skip(invalid: Sequence[InvalidEntry], skipped: list[InvalidEntry] | None) -> None:
    """Adds invalid entries to those skipped.

    Raises:
        DataError: there are invalid entries and none may be skipped; it names those
            that share the first one's kind of issue.
    """
    if skipped is not None:
        skipped.extend(invalid)
    elif invalid:
        first = invalid[0]
        alike = [entry.named for entry in invalid if entry.what == first.what]
        others = len(invalid) - len(alike)
        more = f" Other issues there: {others}." if others else ""
        raise DataError(f"{first.source}: {first.what}: {listed(alike)}. {first.remedy}{more}")


def listed(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are."""
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def reference_rules(known: Known, *, of_detections: bool = True) -> list[Rule]:
    """Conditions on the ids that an annotation or detection refers to."""
    rules = []
    for key, ids in (("image_id", set(known.image_ids.tolist())), ("category_id", set(known.category_ids.tolist()))):
        remedy = f"The ground truth has no such {key.removesuffix('_id')}; do both belong to one data set?"
        if of_detections and key == "image_id":
            remedy += " `predict` numbers images from 1: pass it --ground-truth, or keep its NAME_images.json beside."
        rules.append(
            Rule(
                f"unknown {key}",
                remedy,
                lambda entry, key=key, ids=ids: None if _value(entry, key) in ids else quoted(_value(entry, key)),
            )
        )
    return rules


def _value(entry: Any, key: str) -> Any:
    return getattr(entry, key) if isinstance(entry, msgspec.Struct) else entry[key]


def annotation_rules(known: Known) -> list[Rule]:
    """Conditions on annotations."""
    rules = reference_rules(known, of_detections=False)
    if known.iou_type == "segm":
        remedy = "Masks have areas that their boxes do not tell. Add it in square pixels."
        rules += [*_mask_rules(known), Rule("missing area", remedy, lambda entry: None if "area" in entry else "")]
    if known.iou_type == "keypoints":
        rules.append(_keypoints_rule(known, needed=False))
    return rules


def detection_rules(known: Known, *, boxed: bool) -> list[Rule]:
    """Conditions on detections; `boxed`: other detections of the list have a box."""
    rules = reference_rules(known)
    if boxed:
        remedy = "Other detections have one, and its area decides what counts as small. Give all of them one, or none."
        rules.append(Rule("missing bbox", remedy, lambda entry: None if "bbox" in entry else ""))
    if known.iou_type == "segm":
        return [*rules, *_mask_rules(known)]
    if not boxed:
        remedy = "It is not clear which of the two tells the area. Add the bbox, or remove the segmentation."
        what = "keypoints with segmentation, without bbox"
        rules.append(Rule(what, remedy, lambda entry: "" if "segmentation" in entry else None))
    return [*rules, _keypoints_rule(known, needed=True)]


def _mask_rules(known: Known) -> list[Rule]:
    remedy = "Masks are compared, so each needs one; or evaluate with iou_type bbox."
    rules = [Rule("missing segmentation", remedy, lambda entry: None if entry.get("segmentation") else "")]
    if known.sizes is not None:
        sizes = dict(zip(known.image_ids.tolist(), known.sizes.tolist(), strict=True))
        rules.append(
            Rule(
                "invalid segmentation",
                "Correct it, or remove the entry.",
                lambda entry: segmentation_issue(entry["segmentation"], *sizes[entry["image_id"]]),
            )
        )
    return rules


def _keypoints_rule(known: Known, *, needed: bool) -> Rule:
    count = known.keypoints
    remedy = f"Each needs {count} times x, y, visibility; if there are not {count} keypoints, give oks_sigmas."
    allowed = {3 * count} if needed else {3 * count, None}

    def check(entry: Entry) -> str | None:
        return None if (len(entry["keypoints"]) if "keypoints" in entry else None) in allowed else ""

    return Rule("invalid keypoints", remedy, check)


def _broken_rule(entry: Entry, rules: Sequence[Rule]) -> tuple[str, str, str] | None:
    for rule in rules:
        detail = rule.check(entry)
        if detail is not None:
            return rule.what, detail, rule.remedy
    return None


def _explain(entry: Any, field: InvalidField) -> tuple[str, str, str]:
    if field.name is None:
        return "not an object", "", "Each entry of the list is an object with keys and values."
    if field.name == "bbox" and not field.missing and _has_negative_side(entry["bbox"]):
        return "negative width or height in bbox", "", "COCO boxes are x, y, width, height: were two corners written?"
    return f"{'missing' if field.missing else 'invalid'} {field.name}", "", _REMEDIES[field.name]


def _has_negative_side(box: Any) -> bool:
    try:
        return min(msgspec.convert(box, tuple[float, float, float, float])[2:]) < 0
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
