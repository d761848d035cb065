"""Checks of an annotation against its image's size, with fixes."""

import json
import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

from detection.datasets.annotations.entries import LARGEST_FLOAT32, AnnotationEntry, Entry
from detection.datasets.annotations.entry_rules import WRITABLE, entry_issue, is_crowd, unread_fields
from detection.datasets.issues import ImageIssues
from detection.datasets.masks import (
    has_degenerate_polygon,
    mask_area,
    mask_box,
    mask_issue,
    points_in_pairs,
    without_degenerate_polygons,
)
from detection.storage.json_files import serialize

_MARGIN = 1.0  # pixels that a box may exceed its image, because annotation tools round
_CLIPPED = 5.0  # pixels by which it may, and is clipped
_CLIPPED_FRACTION = 0.02  # or this fraction of the image's side
_SIDE = 4  # pixels of an image's side, below which a box within 0 to 1 may be one in pixels
_AREA = 1.1  # times a box's area, up to which roundings explain an annotation's
_KEYPOINT_MARGIN = 2.0  # pixels that a keypoint may lie beyond its box
_KEYPOINT_FRACTION = 0.25  # and this fraction of the box's side
_MASK_MARGIN = 2.0  # pixels that a box may differ from the box of its mask
_MASK_FRACTION = 0.1  # or this fraction of the box's side


class Context(NamedTuple):
    """Values that an annotation is checked against.

    height, width: size of the image in pixels.
    keypoints: category id -> number of keypoints, for categories with keypoints.
    ignored: ids of categories for regions to ignore.
    """

    height: int
    width: int
    keypoints: Mapping[int, int]
    ignored: Container[int] = ()


class FixableIssue(NamedTuple):
    """An issue of an annotation.

    message: what is wrong, and what to do.
    fixed: the fixed annotation; None: it cannot be fixed.
    certain: the fix is in no doubt.
    """

    message: str
    fixed: dict[str, Any] | None = None
    certain: bool = False


def valid_annotations(annotations: Sequence[Entry], context: Context, issues: ImageIssues) -> list[dict[str, Any]]:
    """Checks an image's annotations.

    Args:
        annotations: entries of a COCO file, with a valid structure.
        context: values to check against.
        issues: receives the issues.

    Returns:
        The valid annotations: without those that policies drop, and with fixes applied.
    """
    kept: list[dict[str, Any]] = []
    repeats = _Repeats()
    # Some writers give crowds only the field; those that write 0 give it to all.
    needed = "iscrowd" if any(one.get("iscrowd", one.get("is_crowd")) == 0 for one in annotations) else None
    for annotation in annotations:
        valid = _check(dict(annotation), context, issues)
        if valid is None:
            continue
        unread = unread_fields(frozenset(annotation), needed=needed)
        if unread and issues.add("field_name", unread, annotation_id=valid["id"]) != "keep":
            continue
        first = repeats.earlier(valid)
        if first is not None:
            message = f"the same object as annotation {first}. Remove one of them."
            if issues.add("annotation_duplicate", message, annotation_id=valid["id"]) != "keep":
                continue
        kept.append(valid)
    return kept


def without_nan(annotations: Sequence[dict[str, Any]], issues: ImageIssues) -> list[dict[str, Any]]:
    """Drops annotations that cannot be written as JSON because they contain NaN or Infinity."""
    kept = []
    for annotation in annotations:
        try:
            serialize(annotation)
            kept.append(annotation)
        except ValueError:
            issues.add("entry", str(WRITABLE.issue(annotation)), annotation_id=annotation["id"])
    return kept


def _check(annotation: dict[str, Any], context: Context, issues: ImageIssues) -> dict[str, Any] | None:
    for kind, check in _CHECKS.items():
        issue = check(annotation, context)
        if issue is None:
            continue
        policy = issues.add(
            kind, issue.message, annotation_id=annotation["id"], fixable=issue.fixed is not None, certain=issue.certain
        )
        if policy == "fix" and issue.fixed is not None:
            annotation = issue.fixed
        elif policy != "keep":
            return None
    return annotation


def _entry(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    """Checks the type also of annotations that come from no file."""
    issue = entry_issue(annotation, AnnotationEntry)
    return None if issue is None else FixableIssue(str(issue))


def _ignored(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    """Finds regions to ignore; Source: the converters of CrowdHuman, VisDrone and PASCAL VOC, and MMDetection."""
    if is_crowd(annotation):
        return None
    marked = annotation.get("ignore") in (1, True, "1", "true", "True")
    if not marked and annotation["category_id"] not in context.ignored:
        return None
    what = "has `ignore`" if marked else "has a category for regions to ignore"
    return FixableIssue(f"{what}, so it is treated like a crowd. Write iscrowd 1.", annotation | {"iscrowd": 1})


def _box_fractions(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    x, y, width, height = annotation["bbox"]
    if min(x, y, width, height) < 0 or max(x + width, y + height) > 1 or min(context.width, context.height) < _SIDE:
        return None
    scale = (context.width, context.height) * 2
    return FixableIssue(
        f"bbox {annotation['bbox']} lies within 0 to 1: fractions of the image? COCO's boxes are x, y, width, height "
        "in pixels. Multiply by the image's width and height, or pass --set data.on_fault.box_fractions=fix.",
        annotation | {"bbox": [value * side for value, side in zip(annotation["bbox"], scale, strict=True)]},
    )


def _box_rotated(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    """Finds CVAT's rotated boxes: `bbox` is the box before the rotation around its centre, clockwise in degrees."""
    attributes = annotation.get("attributes")
    angle: Any = attributes.get("rotation") if isinstance(attributes, dict) else None
    if type(angle) not in (int, float) or not math.isfinite(angle) or angle % 180 == 0:
        return None
    x, y, width, height = annotation["bbox"]
    cosine, sine = abs(math.cos(math.radians(angle))), abs(math.sin(math.radians(angle)))
    sides = (width * cosine + height * sine, width * sine + height * cosine)
    left, top = (max(0.0, low + old / 2 - new / 2) for low, old, new in ((x, width, sides[0]), (y, height, sides[1])))
    right = min(context.width, x + width / 2 + sides[0] / 2)
    bottom = min(context.height, y + height / 2 + sides[1] / 2)
    return FixableIssue(
        f"bbox {annotation['bbox']} is rotated by {angle:g} degrees. Use the upright box around it.",
        annotation | {"bbox": [left, top, right - left, bottom - top]},
    )


def _area_wrong(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    """Finds areas that put an object into a wrong size range, and make keypoints' tolerance (OKS) too small."""
    area, (_, _, width, height) = annotation.get("area"), annotation["bbox"]
    if area is None or (1 < area <= _AREA * width * height) or width * height <= _AREA:
        return None
    segmentation = annotation.get("segmentation")
    right = mask_area(segmentation, height=context.height, width=context.width) if segmentation else width * height
    if area <= 1 and right <= 1:
        return None
    return FixableIssue(
        f"area is {area:g}, and that of the {'mask' if segmentation else 'box'} {right:g} square pixels. Correct it.",
        annotation | {"area": right},
    )


def _keypoints_count(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    points = annotation.get("keypoints") or []
    if "num_keypoints" not in annotation or not (points or annotation["num_keypoints"]):
        return None
    labelled, declared = sum(visibility > 0 for visibility in points[2::3]), annotation["num_keypoints"]
    if type(declared) is int and declared == labelled:
        return None
    return FixableIssue(
        f"num_keypoints is {str(declared)[:40]!r}, but {labelled} keypoints are labelled. Correct it.",
        annotation | {"num_keypoints": labelled},
    )


def _box_empty(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    _, _, width, height = annotation["bbox"]
    if width > 0 and height > 0:
        return None
    return FixableIssue(f"bbox {annotation['bbox']} has no area. Correct the box or remove the annotation.")


def lies_inside(box: Sequence[float], *, width: float, height: float) -> bool:
    """Returns whether a box (x, y, width, height) lies in an image of this size, up to `_MARGIN`; all in pixels."""
    x, y, box_width, box_height = box
    return min(x, y) >= -_MARGIN and x + box_width <= width + _MARGIN and y + box_height <= height + _MARGIN


def _box_outside(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    x, y, width, height = annotation["bbox"]
    beyond = (max(-x, x + width - context.width), max(-y, y + height - context.height))
    sizes = (context.width, context.height)
    left, top = max(x, 0), max(y, 0)
    clipped = [left, top, min(x + width, context.width) - left, min(y + height, context.height) - top]
    is_empty = clipped[2] <= 0 or clipped[3] <= 0
    if max(beyond) <= _MARGIN and not is_empty:
        return None
    return FixableIssue(
        f"bbox {annotation['bbox']} (x, y, width, height) is outside the {context.width}x{context.height} image. "
        "Correct the box, or remove the annotation.",
        None if is_empty else annotation | {"bbox": clipped},
        certain=all(over <= max(_CLIPPED, _CLIPPED_FRACTION * side) for side, over in zip(sizes, beyond, strict=True)),
    )


def _mask_broken(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    segmentation = annotation.get("segmentation")
    if not segmentation:
        return None
    reason = mask_issue(segmentation, height=context.height, width=context.width)
    if reason is not None:
        return FixableIssue(f"{reason}. Correct the mask or remove it.", annotation | {"segmentation": []})
    if not isinstance(segmentation, list) or without_degenerate_polygons(segmentation):
        return None
    if points_in_pairs(segmentation):
        joined = [value for pair in segmentation for value in pair]
        message = "each point of the polygon is a list x, y of its own. Write one list x, y, x, y, ..."
        return FixableIssue(message, annotation | {"segmentation": [joined]}, certain=True)
    message = "no polygon has three points, so there is no mask. Complete or remove them."
    return FixableIssue(message, annotation | {"segmentation": []}, certain=True)


def _mask_degenerate(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    segmentation = annotation.get("segmentation")
    if not segmentation or not has_degenerate_polygon(segmentation):
        return None
    return FixableIssue(
        "a polygon has fewer than three points, so it has no area. Complete or remove it.",
        annotation | {"segmentation": without_degenerate_polygons(segmentation)},
    )


def _mask_box(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    segmentation = annotation.get("segmentation")
    around = mask_box(segmentation) if segmentation else None
    if around is None:
        return None
    x, y, width, height = annotation["bbox"]
    sides = (around[0] - x, around[1] - y, around[0] + around[2] - x - width, around[1] + around[3] - y - height)
    allowed = [max(_MASK_MARGIN, _MASK_FRACTION * side) for side in (width, height)] * 2
    if all(abs(side) <= bound for side, bound in zip(sides, allowed, strict=True)):
        return None
    fixed = annotation | {"bbox": around}
    return FixableIssue(
        f"bbox {annotation['bbox']} is not the box around its mask, {around}. Correct the box or the mask.",
        fixed if _box_empty(fixed, context) is None and _box_outside(fixed, context) is None else None,
    )


def _without_keypoints(annotation: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in annotation.items() if key not in ("keypoints", "num_keypoints")}


def _keypoints_broken(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    points = annotation.get("keypoints")
    if points is None:
        return None
    count = context.keypoints.get(annotation["category_id"])
    valid = (
        isinstance(points, list)
        and all(type(value) in (int, float) and abs(value) <= LARGEST_FLOAT32 for value in points)
        and (len(points) % 3 == 0 if count is None else len(points) == 3 * count)
        and all(visibility in (0, 1, 2) for visibility in points[2::3])
    )
    if valid:
        return None  # a category without names of keypoints does not use them: see `_keypoints_unnamed`
    expected = "each keypoint" if count is None else f"each of the category's {count} keypoints"
    return FixableIssue(
        f"keypoints are not x, y and visibility (0, 1 or 2) of {expected}. Correct or remove them.",
        _without_keypoints(annotation),
    )


def _keypoints_unnamed(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    if annotation["category_id"] in context.keypoints or not any((annotation.get("keypoints") or ())[2::3]):
        return None
    return FixableIssue(
        "keypoints of a category that names none, so they are not used. Name them in `categories`, or remove them.",
        _without_keypoints(annotation),
    )


def _keypoints_box(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    points = annotation.get("keypoints") or ()
    x, y, width, height = annotation["bbox"]
    margins = [_KEYPOINT_MARGIN + _KEYPOINT_FRACTION * side for side in (width, height)]
    labelled = [point for point in zip(points[::3], points[1::3], points[2::3], strict=True) if point[2]]
    outside = [
        (left, top)
        for left, top, _ in labelled
        if not (x - margins[0] <= left <= x + width + margins[0] and y - margins[1] <= top <= y + height + margins[1])
    ]
    if 2 * len(outside) <= len(labelled):
        return None
    return FixableIssue(
        f"{len(outside)} of {len(labelled)} labelled keypoints are far outside of bbox {annotation['bbox']}, such as "
        f"{list(outside[0])}. Correct the keypoints or the box.",
        _without_keypoints(annotation),
    )


def _keypoints_outside(annotation: dict[str, Any], context: Context) -> FixableIssue | None:
    points = annotation.get("keypoints")
    if not points:
        return None
    outside = [
        number
        for number, (x, y, visibility) in enumerate(zip(points[::3], points[1::3], points[2::3], strict=True))
        if visibility and not (0 <= x <= context.width and 0 <= y <= context.height)
    ]
    if not outside:
        return None
    fixed = list(points)
    for number in outside:
        fixed[3 * number : 3 * number + 3] = [0, 0, 0]
    labelled = sum(visibility > 0 for visibility in fixed[2::3])
    return FixableIssue(
        f"keypoint {outside[0]} is outside the {context.width}x{context.height} image. Correct it.",
        annotation | {"keypoints": fixed, "num_keypoints": labelled},
    )


# In this order: a check may rely on the previous ones.
_CHECKS: Mapping[str, Callable[[dict[str, Any], Context], FixableIssue | None]] = {
    "entry": _entry,
    "ignored": _ignored,
    "box_fractions": _box_fractions,
    "box_rotated": _box_rotated,
    "box_empty": _box_empty,
    "box_outside": _box_outside,
    "mask_broken": _mask_broken,
    "mask_degenerate": _mask_degenerate,
    "mask_box": _mask_box,
    "area_wrong": _area_wrong,
    "keypoints_broken": _keypoints_broken,
    "keypoints_unnamed": _keypoints_unnamed,
    "keypoints_count": _keypoints_count,
    "keypoints_outside": _keypoints_outside,
    "keypoints_box": _keypoints_box,
}


class _Repeats:
    """Finds duplicate annotations of an image, in constant time each."""

    def __init__(self) -> None:
        self._first: dict[tuple[Any, ...], Entry | None] = {}  # by category and box; None: the content is in `_ids`
        self._ids: dict[tuple[Any, ...], int] = {}

    def earlier(self, annotation: Entry) -> int | None:
        """Returns the id of an earlier annotation with the same category, box, mask, crowd flag and keypoints."""
        place = (annotation["category_id"], *annotation["bbox"])
        if place not in self._first:
            self._first[place] = annotation  # most boxes are unique, so their masks need no comparison
            return None
        first, self._first[place] = self._first[place], None
        if first is not None:
            self._ids[*place, _content(first)] = first["id"]
        first_id = self._ids.setdefault((*place, _content(annotation)), annotation["id"])
        return None if first_id == annotation["id"] else first_id


def _content(annotation: Entry) -> str:
    """Returns a text that is equal for equal masks, crowd flags and keypoints; hashes of numbers could collide."""
    values = [_plain(annotation.get(key)) for key in ("segmentation", "iscrowd", "keypoints")]
    return json.dumps(values, sort_keys=True)


def _plain(value: Any) -> Any:
    """Converts equal numbers to the same text: 1, 1.0 and true, 0 and -0.0."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    try:
        number = float(value) + 0.0 if isinstance(value, int | float) else value
    except OverflowError:
        return value
    return number if number == value else value
