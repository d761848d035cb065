"""Divides entries into valid ones, converted to their types, and invalid ones, each with the reason.

All are converted together, and each rule is checked for all at once. Only if a type does not fit or an id is a
duplicate, they are converted one by one, to name the invalid ones or to leave them out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np

from detection.coco.validation.entry_types import REMEDIES
from detection.coco.validation.rules import Rule
from detection.datasets.entries import Ids, InvalidField, column, invalid_field, is_id, plain
from schemas.errors import DataError
from schemas.quoting import quoted

Naming = Callable[[int, Any], str]  # (position, entry) -> how an error names it

_SHOWN = 5


class _Reason(NamedTuple):
    """The first rule that an entry breaks, see `InvalidEntry`."""

    what: str
    detail: str
    remedy: str


_DUPLICATE = _Reason("duplicate id", "", "Give each entry an id of its own.")


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


Skipped = list[InvalidEntry] | None  # receives invalid entries, which are then left out; None: they are refused


class Typed(list[Any]):
    """Entries that a reader has decoded as this type, so that they need no conversion.

    kind: the type.
    """

    def __init__(self, entries: Iterable[Any], kind: Any) -> None:
        super().__init__(entries)
        self.kind = kind


def valid_entries(
    entries: Sequence[Any],
    kind: Any,
    rules: Sequence[Rule],
    name: Naming,
    *,
    where: str,
    unique: bool = False,
    positions: Ids | None = None,
    skipped: Skipped = None,
) -> list[Any]:
    """Returns the valid entries, converted to their type.

    Args:
        entries: parsed JSON.
        kind: type of an entry, which it is converted to.
        rules: further conditions.
        name: names an entry in errors.
        where: names the source in errors.
        unique: whether each `id` may appear only once.
        positions: positions of the entries in the source, int64 [N]; default 0, 1, 2, ...
        skipped: see `Skipped`.

    Raises:
        DataError: there are invalid entries and none may be skipped; it names those
            that share the first one's kind of issue.
    """
    typed, issues = _convert(entries, kind, unique=unique)
    kept = np.delete(np.arange(len(entries)), list(issues))
    for rule in rules:
        holds = np.asarray(rule.holds(typed), bool)
        if not holds.all():
            typed = plain(typed)  # numpy's values may be the reason, where a type allows anything
            holds = np.asarray(rule.holds(typed), bool)
            for index in np.flatnonzero(~holds).tolist():
                issues[int(kept[index])] = _Reason(rule.what, rule.detail(typed[index]), rule.remedy)
            typed, kept = [typed[index] for index in np.flatnonzero(holds)], kept[holds]
    invalid = []
    for index in sorted(issues):
        position = index if positions is None else int(positions[index])
        invalid.append(InvalidEntry(where, position, name(position, plain(entries[index])), *issues[index]))
    if skipped is not None:
        skipped.extend(invalid)
    elif invalid:
        _refuse(invalid)
    return typed


def _convert(entries: Sequence[Any], kind: Any, *, unique: bool) -> tuple[list[Any], dict[int, _Reason]]:
    """Converts entries to their type; those that cannot be are left out, each with the reason by position."""
    typed = convert_all(entries, kind)
    if typed is not None and not (unique and len(np.unique(column(typed, "id"))) < len(typed)):
        return typed, {}
    valid: list[Any] = []
    issues: dict[int, _Reason] = {}
    ids: set[int] = set()
    for position, entry in enumerate(map(plain, entries)):
        own: Any = entry.get("id") if isinstance(entry, dict) else None
        if unique and is_id(own):
            if own in ids:
                issues[position] = _DUPLICATE
                continue
            ids.add(own)
        try:
            valid.append(_convert_one(entry, kind))
        except msgspec.ValidationError as error:
            issues[position] = _explain(entry, invalid_field(error))
    return valid, issues


def convert_all(entries: Sequence[Any], kind: Any) -> list[Any] | None:
    """Converts entries to their type; None if one of them is invalid."""
    if isinstance(entries, Typed) and entries.kind is kind:
        return entries
    try:
        return msgspec.convert(list(entries), list[kind])
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter of a lone surrogate
        pass
    try:
        return msgspec.convert(plain(list(entries)), list[kind])  # of numpy's numbers, or other mappings than dict
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter of a lone surrogate
        return None


def _convert_one(entry: Any, kind: Any) -> Any:
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


def by_id(what: str) -> Naming:
    """Names entries by their `id`: "annotation 7"."""

    def name(position: int, entry: Any) -> str:
        known = isinstance(entry, Mapping) and "id" in entry
        return f"{what} {quoted(entry['id'])}" if known else f"{what} at position {position}"

    return name


def by_image(what: str) -> Naming:
    """Names entries by position and image, as detections have no id: "detection 3 (image 42)"."""

    def name(position: int, entry: Any) -> str:
        known = isinstance(entry, Mapping) and "image_id" in entry
        return f"{what} {position}" + (f" (image {quoted(entry['image_id'])})" if known else "")

    return name


def _refuse(invalid: Sequence[InvalidEntry]) -> NoReturn:
    first = invalid[0]
    alike = [entry.named for entry in invalid if entry.what == first.what]
    rest = len(alike) - _SHOWN
    named = ", ".join(alike[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
    others = len(invalid) - len(alike)
    more = f" Other issues there: {others}." if others else ""
    raise DataError(f"{first.source}: {first.what}: {named}. {first.remedy}{more}")


def _explain(entry: Any, field: InvalidField) -> _Reason:
    if field.name is None:
        return _Reason("not an object", "", "Each entry of the list is an object with keys and values.")
    if field.name == "bbox" and not field.missing and _has_negative_side(entry["bbox"]):
        return _Reason(
            "negative width or height in bbox", "", "COCO boxes are x, y, width, height: were two corners written?"
        )
    return _Reason(f"{'missing' if field.missing else 'invalid'} {field.name}", "", REMEDIES[field.name])


def _has_negative_side(box: Any) -> bool:
    try:
        return min(msgspec.convert(box, tuple[float, float, float, float])[2:]) < 0
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
