"""What an entry of a COCO file must be before anything else is asked of it.

The same rules hold for the entries of an annotation file, for those packed into a
record, and for the categories of a label map.  Each function says why an entry is
invalid and what to do, or returns None for a valid one.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.limits import MAX_CATEGORIES

Entry = Mapping[str, Any]  # an object of a list of a COCO file, as JSON is parsed
Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float64]  # detections [N, 7]: image_id, x, y, width, height (pixels), score, category_id

LARGEST_ID = 2**53  # float64 holds all integers up to here
_MAX_SIDE = 2**63  # pixels; `data.max_pixels` decides later
_SHOWN = 80  # characters of a value in a message
_JSON: Mapping[type, str] = {dict: "object", list: "list"}
_KINDS: Mapping[type, str] = {str: "a text", list: "a list"}


def image_fault(entry: Any) -> str | None:
    """Why an entry of `images` is invalid: id, file_name, width and height."""
    return _lacks(entry, ids=("id",), fields={"file_name": str}) or unwritable(entry["file_name"]) or _bad_size(entry)


def annotation_fault(entry: Any) -> str | None:
    """Why an entry of `annotations` is invalid: ids and bbox."""
    return _lacks(entry, ids=("id", "image_id", "category_id"), fields={"bbox": list}) or _bad_box(entry)


def category_fault(entry: Any) -> str | None:
    """Why an entry of `categories` is invalid: id, name, names of keypoints and skeleton."""
    return _lacks(entry, ids=("id",), fields={"name": str}) or keypoint_category_fault(entry)


def too_many_categories(count: int) -> str | None:
    """Why a data set cannot have this many categories."""
    if count <= MAX_CATEGORIES:
        return None
    return f"more than {MAX_CATEGORIES} categories. Join some, or remove those without annotations"


def keypoint_category_fault(entry: Any) -> str | None:
    """Why a category of a keypoints file, where names may be missing, is invalid."""
    return id_fault(entry) or _bad_skeleton(entry) or unwritable(entry)


def is_id(value: Any) -> bool:
    """Whether `value` is an integer that can be an id."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(0 <= value <= LARGEST_ID)


def id_fault(entry: Any) -> str | None:
    """Why an entry has no valid `id`."""
    return _lacks(entry, ids=("id",), fields={})


def head_fault(value: Any, kind: type) -> str | None:
    """Why `info` (an object) or `licenses` (a list) of a file is invalid."""
    return f"no {_JSON[kind]}. Write one" if type(value) is not kind else unwritable(value)


def unwritable(value: Any) -> str | None:
    """Why a value cannot be written as JSON in UTF-8, though Python read it."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "holds half a character (one surrogate of a pair). Write UTF-8"
    except ValueError:
        return "holds NaN or Infinity, which JSON does not have. Write a number"
    return None


def id_of(entry: Any) -> int | None:
    """The `id` of an entry, valid or not, as far as it is an integer."""
    identity = entry.get("id") if type(entry) is dict else None
    return identity if type(identity) is int else None


def short(value: Any) -> str:
    """A value as JSON for a message, cut after some characters."""
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # an integer of thousands of digits
        text = f"a {type(value).__name__} that is too long to be shown"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _lacks(entry: Any, *, ids: Sequence[str], fields: Mapping[str, type]) -> str | None:
    """Why `entry` is no object with these ids, such as an evaluation can tell apart, and fields."""
    if type(entry) is not dict:
        return f"{short(entry)} is no object. Write one with {', '.join([*ids, *fields])}"
    for field in ids:
        if not is_id(entry.get(field)):
            return f"{_found(entry, field)}. Write an integer from 0 to 2^53"
    for field, kind in fields.items():
        if type(entry.get(field)) is not kind:
            return f"{_found(entry, field)}. Write {_KINDS[kind]}"
    return None


def _found(entry: Entry, field: str) -> str:
    return f"{field} is {short(entry[field])}" if field in entry else f"{field} is missing"


def _bad_size(entry: Entry) -> str | None:
    for field in ("width", "height"):
        value = entry.get(field, 1)
        if type(value) not in (int, float) or not 0 < value < _MAX_SIDE or math.trunc(value) != value:
            return f"{field} is {short(value)}. Write the size in whole pixels"
    return None


def _bad_box(entry: Entry) -> str | None:
    box = entry["bbox"]
    if len(box) == 4 and all(type(value) in (int, float) for value in box):
        return None
    return f"bbox is {short(box)}. Write four numbers: x, y, width, height"


def _bad_skeleton(category: Entry) -> str | None:
    names, bones = category.get("keypoints") or [], category.get("skeleton") or []
    if type(names) is not list or not all(type(name) is str for name in names):
        return f"keypoints is {short(names)}. Write a list of names"
    if type(bones) is not list or not all(type(bone) is list and set(map(type, bone)) <= {int} for bone in bones):
        return f"skeleton is {short(bones)}. Write a list of pairs of numbers of keypoints"
    return None
