"""Types of valid COCO entries, and messages for invalid ones.

msgspec converts entries to these types and refuses wrong types, values out of range and
missing keys, naming the key. The same types are used for the entries of an annotation file,
entries packed into a record, and the categories of a label map; the stricter types of
entries for evaluation extend them (`detection.coco.validation.entry_types`).
"""

import json
import re
import sys
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.limits import MAX_CATEGORIES
from schemas.quoting import quoted_json

Entry = Mapping[str, Any]  # an object in a list of a COCO file, as parsed from JSON
Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float64]  # detections [N, 7]: image_id, x, y, width, height (pixels), score, category_id

LARGEST_ID = 2**53  # float64 represents all integers up to here
_JSON: Mapping[type, str] = {dict: "object", list: "list"}

Id = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]
Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]  # finite
Side = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
Flag = Annotated[float, msgspec.Meta(ge=0, le=1, multiple_of=1)] | bool
Size = Annotated[float, msgspec.Meta(gt=0, lt=2**63, multiple_of=1)]  # pixels; `data.max_pixels` decides later


class ImageEntry(TypedDict):
    """An entry of `images`."""

    id: Id
    file_name: str
    width: NotRequired[Size]
    height: NotRequired[Size]


class AnnotationEntry(TypedDict):
    """An entry of `annotations`; policies decide on the valid values of a box."""

    id: Id
    image_id: Id
    category_id: Id
    bbox: tuple[float, float, float, float]


class IdentifiedEntry(TypedDict):
    """Any entry with an id."""

    id: Id


class KeypointCategoryEntry(IdentifiedEntry):
    """An entry of `categories` in a keypoints file, with an optional name."""

    keypoints: NotRequired[list[str] | None]
    skeleton: NotRequired[list[list[int]] | None]


class CategoryEntry(KeypointCategoryEntry):
    """An entry of `categories`."""

    name: str


_REMEDIES = {
    "id": "Write an integer from 0 to 2^53",
    "image_id": "Write an integer from 0 to 2^53",
    "category_id": "Write an integer from 0 to 2^53",
    "file_name": "Write a text",
    "name": "Write a text",
    "width": "Write the size in whole pixels",
    "height": "Write the size in whole pixels",
    "bbox": "Write four numbers: x, y, width, height",
    "keypoints": "Write a list of names",
    "skeleton": "Write a list of pairs of numbers of keypoints",
}
_MISSING = re.compile(r"missing required field `(\w+)`")
_PLACE = re.compile(r"at `\$\.(\w+)")


class InvalidField(NamedTuple):
    """The first key of an entry with an invalid type.

    name: the key; None: the entry is not an object.
    missing: the key is missing.
    """

    name: str | None
    missing: bool


def invalid_field(error: msgspec.ValidationError) -> InvalidField:
    """Returns the key that msgspec found invalid in an entry."""
    missing = _MISSING.search(str(error))
    place = missing or _PLACE.search(str(error))
    return InvalidField(place[1] if place else None, missing is not None)


def image_issue(entry: Any) -> str | None:
    """Explains why an entry of `images` is invalid; None if it is valid."""
    return _issue(entry, ImageEntry) or unwritable(entry["file_name"])


def annotation_issue(entry: Any) -> str | None:
    """Explains why an entry of `annotations` is invalid; None if it is valid."""
    return _issue(entry, AnnotationEntry)


def category_issue(entry: Any) -> str | None:
    """Explains why an entry of `categories` is invalid; None if it is valid."""
    return _issue(entry, CategoryEntry) or unwritable(entry)


def keypoint_category_issue(entry: Any) -> str | None:
    """Explains why a category of a keypoints file, with an optional name, is invalid; None if it is valid."""
    return _issue(entry, KeypointCategoryEntry) or unwritable(entry)


def id_issue(entry: Any) -> str | None:
    """Explains why an entry has no valid `id`; None if it has a valid one."""
    return _issue(entry, IdentifiedEntry)


def _issue(entry: Any, kind: Any) -> str | None:
    try:
        msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        name, missing = invalid_field(error)
        if name is None:
            keys = [key for key in kind.__annotations__ if key in kind.__required_keys__]
            return f"{quoted_json(entry)} is not an object. Write one with {', '.join(keys)}"
        return f"{name} is {'missing' if missing else quoted_json(entry[name])}. {_REMEDIES[name]}"
    except UnicodeEncodeError:  # raised by msgspec while it formats its message
        return unwritable(entry)
    return None


def plain(value: Any) -> Any:
    """Converts NumPy numbers and arrays, tuples and mappings to the types of parsed JSON."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def too_many_categories(count: int) -> str | None:
    """Returns a message if there are too many categories for a data set; else None."""
    if count <= MAX_CATEGORIES:
        return None
    return f"more than {MAX_CATEGORIES} categories. Merge some, or remove those without annotations"


def is_id(value: Any) -> bool:
    """Returns whether `value` is an integer in the range of ids."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(0 <= value <= LARGEST_ID)


def head_issue(value: Any, kind: type) -> str | None:
    """Explains why `info` (an object) or `licenses` (a list) of a file is invalid; None if it is valid."""
    return f"not an {_JSON[kind]}. Write one" if type(value) is not kind else unwritable(value)


def comparable_name(name: str) -> str:
    """Returns a category's name without what differs among tools: capitals, spaces, the form of accents.

    >>> comparable_name(" Stop  Sign") == comparable_name("stop sign")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def unwritable(value: Any) -> str | None:
    """Explains why a value parsed by Python cannot be written as JSON in UTF-8; None if it can."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "contains half a character (one surrogate of a pair). Write UTF-8"
    except ValueError:
        return "contains NaN or Infinity, which JSON does not support. Write a number"
    return None


def skeleton_of(category: Entry) -> list[tuple[int, int]]:
    """Returns the edges between a category's keypoints, numbered from 1; [] if its skeleton is missing or invalid."""
    try:
        return msgspec.convert(category.get("skeleton") or [], list[tuple[int, int]])
    except (msgspec.ValidationError, UnicodeEncodeError):
        return []


def id_of(entry: Any) -> int | None:
    """Returns the `id` of an entry, valid or not, if it is an integer."""
    identity = entry.get("id") if type(entry) is dict else None
    return identity if type(identity) is int else None
