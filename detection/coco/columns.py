"""Columns of COCO entries as arrays, each value checked.

The good case is vectorised; entries are looked at one by one only to name the
faulty ones in the `DataError`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import DataError

Entry = Mapping[str, Any]
Naming = Callable[[int, Entry], str]  # (position, entry) -> how an error names it
Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float64]

_SHOWN = 5
_LARGEST_ID = 2**53  # float64 holds all integers up to here


def by_id(what: str) -> Naming:
    """Names entries by their `id`: "annotation 7"."""

    def name(position: int, entry: Entry) -> str:
        known = isinstance(entry, Mapping) and "id" in entry
        return f"{what} {entry['id']!r}" if known else f"{what} at position {position}"

    return name


def by_image(what: str) -> Naming:
    """Names entries by position and image, as detections have no id: "detection 3 (image 42)"."""

    def name(position: int, entry: Entry) -> str:
        known = isinstance(entry, Mapping) and "image_id" in entry
        return f"{what} {position}" + (f" (image {entry['image_id']!r})" if known else "")

    return name


def refuse(faulty: Sequence[str], *, where: str, what: str, remedy: str) -> None:
    """Raises a `DataError` that lists the first of `faulty`, if there is any."""
    if faulty:
        rest = len(faulty) - _SHOWN
        listed = ", ".join(faulty[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
        raise DataError(f"{where}: {what}: {listed}. {remedy}")


def refuse_unless(
    accept: Callable[[Entry], bool], entries: Sequence[Entry], name: Naming, *, where: str, what: str, remedy: str
) -> None:
    """`refuse` of the entries that are no mapping or that `accept` rejects."""
    faulty = [
        name(position, entry)
        for position, entry in enumerate(entries)
        if not (isinstance(entry, Mapping) and accept(entry))
    ]
    refuse(faulty, where=where, what=what, remedy=remedy)


def identifiers(entries: Sequence[Entry], key: str, name: Naming, *, where: str) -> Ids:
    """The ids under `key`, int64 [N], 0 <= id <= 2^53.

    Raises:
        DataError: one is missing or no such integer.
    """
    array = _as_array(_values(entries, key), "iu", (len(entries),))
    if array is None or (array < 0).any() or (array > _LARGEST_ID).any():
        remedy = f"Each needs `{key}`: an integer from 0 to 2^53."
        refuse_unless(lambda entry: is_id(entry.get(key)), entries, name, where=where, what=f"bad {key}", remedy=remedy)
        array = np.array([entry[key] for entry in entries])
    return array.astype(np.int64)


def numbers(entries: Sequence[Entry], key: str, name: Naming, *, where: str) -> Rows:
    """The finite numbers under `key`, float64 [N].

    Raises:
        DataError: one is missing, no number, NaN or infinite.
    """
    array = _as_array(_values(entries, key), "iuf", (len(entries),))
    if array is None or not np.isfinite(array).all():
        remedy = f"Each needs `{key}`: a finite number."
        refuse_unless(
            lambda entry: is_number(entry.get(key)), entries, name, where=where, what=f"bad {key}", remedy=remedy
        )
        array = np.array([entry[key] for entry in entries])
    return array.astype(np.float64)


def boxes_xywh(entries: Sequence[Entry], name: Naming, *, where: str) -> Rows:
    """The values of `bbox`, float64 [N, 4]: x, y, width, height; sides are not negative.

    Raises:
        DataError: one is missing, not four finite numbers, or has a negative side.
    """
    array = _as_array(_values(entries, "bbox"), "iuf", (len(entries), 4))
    if array is None or not np.isfinite(array).all():
        remedy = "Each needs `bbox`: four finite numbers, x, y, width, height in pixels."
        refuse_unless(
            lambda entry: are_numbers(entry.get("bbox"), 4), entries, name, where=where, what="bad bbox", remedy=remedy
        )
        array = np.array([entry["bbox"] for entry in entries])
    negative = np.flatnonzero((array[:, 2:] < 0).any(axis=1)).tolist()
    refuse(
        [name(position, entries[position]) for position in negative],
        where=where,
        what="negative width or height in bbox",
        remedy="COCO boxes are x, y, width, height: were two corners written?",
    )
    return array.astype(np.float64)


def is_id(value: Any) -> bool:
    """Whether `value` is an integer that can be an id."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(0 <= value <= _LARGEST_ID)


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number."""
    kinds = (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool) and bool(np.isfinite(float(value)))


def are_numbers(value: Any, count: int) -> bool:
    """Whether `value` is a sequence of `count` finite numbers."""
    return isinstance(value, Sequence | np.ndarray) and len(value) == count and all(map(is_number, value))


def _values(entries: Sequence[Entry], key: str) -> list[Any] | None:
    """The values under `key`, or None where an entry is no mapping or lacks it."""
    try:
        return [entry[key] for entry in entries]
    except (KeyError, TypeError, IndexError):
        return None


def _as_array(values: list[Any] | None, kinds: str, shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """`values` as an array of numbers, or None where one of them is something else."""
    if values is None:
        return None
    if not values:
        return np.zeros(shape)
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    return array if array.dtype.kind in kinds and array.shape == shape else None
