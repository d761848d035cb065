"""Invalid entries of COCO files: the reason of each, their names in errors, and the errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from detection.coco.validation.entry_types import REMEDIES
from detection.datasets.entries import Entry, InvalidField, invalid_field, is_id, plain
from schemas.errors import DataError
from schemas.quoting import quoted

Naming = Callable[[int, Any], str]  # (position, entry) -> name of the entry in errors

_SHOWN = 5


class Reason(NamedTuple):
    """The first rule that an entry breaks; fields as of `InvalidEntry`."""

    what: str
    detail: str
    remedy: str


_DUPLICATE = Reason("duplicate id", "", "Give each entry a unique id.")


class InvalidEntry(NamedTuple):
    """An entry of a COCO file, and why it is invalid.

    source: the file, or the name of the argument.
    position: index in its list, from 0.
    record: name of the entry in errors: "annotation 7", "detection 3 (image 42)".
    what: kind of issue.
    detail: the value in question; may be empty.
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
        """Name of the entry, with the value in question."""
        return f"{self.record}: {self.detail}" if self.detail else self.record


Skipped = list[InvalidEntry] | None  # receives invalid entries, which are skipped; None: they are refused


def convert_each(entries: Sequence[Any], kind: Any, *, unique: bool) -> tuple[list[Any], dict[int, Reason]]:
    """Converts entries to their type one by one; drops invalid ones, and returns their reasons by position.

    Args:
        entries: parsed JSON.
        kind: type of an entry.
        unique: whether ids must be unique.
    """
    valid: list[Any] = []
    issues: dict[int, Reason] = {}
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


def _convert_one(entry: Any, kind: Any) -> Any:
    """Converts an entry to its type.

    Raises:
        msgspec.ValidationError: the entry is invalid.
    """
    try:
        return msgspec.convert(entry, kind)
    except UnicodeEncodeError:  # raised by msgspec while it formats its message
        return msgspec.convert(_without_surrogates(entry), kind)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(each) for each in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def by_id(what: str, position: int, entry: Any) -> str:
    """Returns the name of an entry by its `id`: "annotation 7"."""
    known = isinstance(entry, Mapping) and "id" in entry
    return f"{what} {quoted(entry['id'])}" if known else f"{what} at position {position}"


def by_image(what: str, position: int, entry: Any) -> str:
    """Returns the name of an entry by position and image, as detections have no id: "detection 3 (image 42)"."""
    known = isinstance(entry, Mapping) and "image_id" in entry
    return f"{what} {position}" + (f" (image {quoted(entry['image_id'])})" if known else "")


def refuse(invalid: Sequence[InvalidEntry]) -> NoReturn:
    """Raises an error for entries; the message names those with the same kind of issue as the first.

    Raises:
        DataError: always.
    """
    first = invalid[0]
    alike = [entry.named for entry in invalid if entry.what == first.what]
    rest = len(alike) - _SHOWN
    named = ", ".join(alike[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
    others = len(invalid) - len(alike)
    more = f" Other issues there: {others}." if others else ""
    raise DataError(f"{first.source}: {first.what}: {named}. {first.remedy}{more}")


def _explain(entry: Any, field: InvalidField) -> Reason:
    if field.name is None:
        return Reason("not an object", "", "Every entry of the list is an object with keys and values.")
    if field.name == "bbox" and not field.missing and _has_negative_side(entry["bbox"]):
        return Reason("negative width or height in bbox", "", "COCO boxes are x, y, width, height; is it two corners?")
    return Reason(f"{'missing' if field.missing else 'invalid'} {field.name}", "", REMEDIES[field.name])


def _has_negative_side(box: Any) -> bool:
    try:
        return min(msgspec.convert(box, tuple[float, float, float, float])[2:]) < 0
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False


def entry_of(row: Sequence[float]) -> Entry:
    """Returns a row as a COCO result."""
    image_id, *box, score, category_id = row
    ids = {"image_id": image_id, "category_id": category_id}
    return {
        **{key: int(value) if value.is_integer() else value for key, value in ids.items()},
        "bbox": box,
        "score": score,
    }
