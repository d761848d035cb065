"""Columns of COCO entries as arrays, all values of a column checked at once."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.coco.validation.invalid_entries import listed
from detection.datasets.entries import LARGEST_ID, Entry, Ids, Rows, is_id
from schemas.errors import DataError
from schemas.quoting import quoted

Naming = Callable[[int, Entry], str]  # (position, entry) -> how an error names it

_NUMBERS = (int, float, np.integer, np.floating)


def by_id(what: str) -> Naming:
    """Names entries by their `id`: "annotation 7"."""

    def name(position: int, entry: Entry) -> str:
        known = isinstance(entry, Mapping) and "id" in entry
        return f"{what} {quoted(entry['id'])}" if known else f"{what} at position {position}"

    return name


def by_image(what: str, positions: Sequence[int] | None = None) -> Naming:
    """Names entries by position and image, as detections have no id: "detection 3 (image 42)".

    Args:
        what: the kind of entry.
        positions: in their list, where the entries are some of it.
    """

    def name(position: int, entry: Entry) -> str:
        known = isinstance(entry, Mapping) and "image_id" in entry
        place = positions[position] if positions else position
        return f"{what} {place}" + (f" (image {quoted(entry['image_id'])})" if known else "")

    return name


def refuse(faulty: Sequence[str], *, where: str, what: str, remedy: str) -> None:
    """Raises a `DataError` that lists the first of `faulty`, if there is any."""
    if faulty:
        raise DataError(f"{where}: {what}: {listed(faulty)}. {remedy}")


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
    ids = id_column(entries, key)
    if ids is None:
        remedy = f"Each needs `{key}`: an integer from 0 to 2^53."
        refuse_unless(lambda entry: is_id(entry.get(key)), entries, name, where=where, what=f"bad {key}", remedy=remedy)
        ids = np.array([entry[key] for entry in entries], np.int64)
    return ids


def id_column(entries: Sequence[Entry], key: str) -> Ids | None:
    """The ids under `key`, int64 [N]; None where one of them is none."""
    array = _as_array(_values(entries, key), "iu", (len(entries),))
    if array is None or (array < 0).any() or (array > LARGEST_ID).any():
        return None
    return array.astype(np.int64)


def number_column(entries: Sequence[Entry], key: str) -> Rows | None:
    """The finite numbers under `key`, float64 [N]; None where one of them is none."""
    return _finite(_as_array(_values(entries, key), "iuf", (len(entries),)))


def list_column(entries: Sequence[Entry], key: str, length: int) -> Rows | None:
    """The lists of `length` finite numbers under `key`, float64 [N, length]; None where one of them is none."""
    values = _values(entries, key)
    if not values or set(map(type, values)) != {list} or set(map(len, values)) != {length}:
        return _finite(_as_array(values, "iuf", (len(entries), length)))
    if not set(map(type, itertools.chain.from_iterable(values))) <= {int, float}:
        return _finite(_as_array(values, "iuf", (len(entries), length)))
    try:
        flat = np.fromiter(itertools.chain.from_iterable(values), np.float64, length * len(values))
    except OverflowError:
        return None
    return _finite(flat.reshape(-1, length))


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number."""
    if not isinstance(value, _NUMBERS) or isinstance(value, bool):
        return False
    try:
        return bool(np.isfinite(float(value)))
    except OverflowError:
        return False


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
    """`values` as an array of numbers, or None if one of them is something else.

    The types are checked first: numpy would make all values texts as wide as the longest,
    and takes true and false among numbers for 1 and 0.
    """
    if values is None:
        return None
    if not values:
        return np.zeros(shape)
    if len(shape) == 2 and not all(_is_row(value, shape[1]) for value in values):
        return None
    if not _are_all_numbers(values if len(shape) == 1 else itertools.chain.from_iterable(values)):
        return None
    array = np.asarray(values)
    return array if array.dtype.kind in kinds and array.shape == shape else None


def _is_row(value: Any, length: int) -> bool:
    flat = isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return flat and len(value) == length


def _are_all_numbers(values: Iterable[Any]) -> bool:
    types = set(map(type, values))
    return bool not in types and all(issubclass(kind, _NUMBERS) for kind in types)


def _finite(array: npt.NDArray[Any] | None) -> Rows | None:
    return array.astype(np.float64, copy=False) if array is not None and np.isfinite(array).all() else None
