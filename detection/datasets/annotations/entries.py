"""Types of COCO entries, and helpers for their ids and names.

A type is the definition of a valid entry: msgspec converts entries to it and refuses missing keys, wrong types and
values out of range.  The `description` of a field is the remedy, for messages. `entry_rules` checks entries by these
types; the entries of an evaluation extend them (`detection.coco.validation.entry_types`).
"""

import sys
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from schemas.limits import MAX_CATEGORIES

Entry = Mapping[str, Any]  # an object in a list of a COCO file, as parsed from JSON
Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float64]  # detections [N, 7]: image_id, x, y, width, height (pixels), score, category_id

LARGEST_ID = 2**53  # float64 represents all integers up to here
LARGEST_FLOAT32 = 3.4e38  # the type of boxes and areas in records
_LARGEST = sys.float_info.max
AREA_REMEDY = "Write a number of square pixels, at least 0, or omit it."
BOX_REMEDY = "Write four finite numbers: x, y, width, height in pixels."

Id = Annotated[int, Meta(ge=0, le=LARGEST_ID, description="Write an integer from 0 to 2^53.")]
Text = Annotated[str, Meta(description="Write a text.")]
Number = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST, description="Write a finite number.")]
Side = Annotated[float, Meta(ge=0, le=_LARGEST)]
Float32 = Annotated[float, Meta(ge=-LARGEST_FLOAT32, le=LARGEST_FLOAT32)]
Flag = Annotated[
    Annotated[float, Meta(ge=0, le=1, multiple_of=1)] | bool,
    Meta(description="Write 1 for a crowd, 0 for a single object."),
]
# `data.max_pixels` decides later on the largest image.
Size = Annotated[float, Meta(gt=0, lt=2**63, multiple_of=1, description="Write the size in whole pixels.")]


class IdentifiedEntry(TypedDict):
    """Any entry with an id."""

    id: Id


class ImageEntry(IdentifiedEntry):
    """An entry of `images`."""

    file_name: Text
    width: NotRequired[Size]
    height: NotRequired[Size]


class ObjectEntry(IdentifiedEntry):
    """An entry of `annotations` without box and area; some tools write `is_crowd` for `iscrowd`."""

    image_id: Id
    category_id: Id
    iscrowd: NotRequired[Flag]
    is_crowd: NotRequired[Flag]


class AnnotationEntry(ObjectEntry):
    """An entry of `annotations`, whose numbers a record can hold; policies decide on boxes without area."""

    bbox: Annotated[tuple[Float32, Float32, Float32, Float32], Meta(description=BOX_REMEDY)]
    area: NotRequired[Annotated[float, Meta(ge=0, le=LARGEST_FLOAT32, description=AREA_REMEDY)]]


class KeypointCategoryEntry(IdentifiedEntry):
    """An entry of `categories` in a keypoints file, with an optional name."""

    keypoints: NotRequired[Annotated[list[str] | None, Meta(description="Write a list of names.")]]
    skeleton: NotRequired[
        Annotated[list[list[int]] | None, Meta(description="Write a list of pairs of numbers of keypoints.")]
    ]


class CategoryEntry(KeypointCategoryEntry):
    """An entry of `categories`."""

    name: Text


def too_many_categories(count: int) -> str | None:
    """Returns a message if there are too many categories for a data set; else None."""
    if count <= MAX_CATEGORIES:
        return None
    return f"more than {MAX_CATEGORIES} categories. Merge some, or remove those without annotations."


def is_id(value: Any) -> bool:
    """Returns whether `value` is an integer in the range of ids."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(0 <= value <= LARGEST_ID)


def id_of(entry: Any) -> int | None:
    """Returns the `id` of an entry, valid or not, if it is an integer."""
    identity = entry.get("id") if type(entry) is dict else None
    return identity if type(identity) is int else None


def comparable_name(name: str) -> str:
    """Returns a category's name without what differs among tools: capitals, spaces, the form of accents.

    >>> comparable_name(" Stop  Sign") == comparable_name("stop sign")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def skeleton_of(category: Entry) -> list[tuple[int, int]]:
    """Returns the edges between a category's keypoints, numbered from 1; [] if its skeleton is missing or invalid."""
    try:
        return msgspec.convert(category.get("skeleton") or [], list[tuple[int, int]])
    except (msgspec.ValidationError, UnicodeEncodeError):
        return []
