"""The rules of valid COCO entries, for the check of a data set and for an evaluation, which adds its own.

An entry is valid if it has its type (`entries`) and meets each `Rule`.  Both are checked for all entries of a list at
once; only lists with invalid entries are checked one by one.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from detection.datasets.annotations.entries import AnnotationEntry, CategoryEntry, Entry, Ids, ImageEntry, Rows, id_of
from schemas.errors import DataError
from schemas.quoting import quoted, quoted_json

Flags = Sequence[bool] | npt.NDArray[np.bool_]

ROW_COLUMNS = {"image_id": 0, "score": 5, "category_id": 6}  # columns of `Rows`
_ANNOTATION_FIELDS = frozenset(
    (*get_type_hints(AnnotationEntry), "segmentation", "keypoints", "num_keypoints", "ignore")
)
_LISTED_IDS = 100  # max ids in a message
_MISSING = re.compile(r"missing required field `(\w+)`")
_INVALID = re.compile(r"at `\$\.(\w+)")


class EntryIssue(NamedTuple):
    """Why an entry is invalid.

    what: kind of issue, the same for all such entries: "invalid bbox".
    remedy: what to do.
    detail: the value in question; may be "".
    """

    what: str
    remedy: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what}{self.detail and ': '}{self.detail}. {self.remedy}"


class Rule(NamedTuple):
    """A condition on entries that have the right type and meet the previous rules.

    what: kind of issue if the condition is not met.
    remedy: what to do.
    holds: `column` of `key`, or entries -> whether each meets the condition.
    key: field whose values `holds` and `detail` receive; "": they receive entries.
    detail: invalid value or entry -> the value in question; may be "".
    """

    what: str
    remedy: str
    holds: Callable[[Any], Flags]
    key: str = ""
    detail: Callable[[Any], str] = lambda value: ""

    def issue(self, value: Any) -> EntryIssue:
        """Returns the issue of an invalid value or entry."""
        return EntryIssue(self.what, self.remedy, self.detail(value))


def plain(value: Any) -> Any:
    """Converts NumPy numbers and arrays, tuples and mappings to the types of parsed JSON."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def unwritable(value: Any) -> str | None:
    """Returns what prevents a value parsed by Python from being JSON in UTF-8; None if nothing does."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "half a character (one surrogate of a pair)"
    except ValueError:
        return "NaN or Infinity"
    return None


def is_crowd(annotation: Entry) -> bool:
    """Returns whether an annotation is a crowd; some tools write `is_crowd` for `iscrowd`."""
    return bool(annotation.get("iscrowd", annotation.get("is_crowd", 0)))


def are_first(ids: Ids) -> npt.NDArray[np.bool_]:
    """Returns for each id whether it is the first of its value."""
    first = np.zeros(len(ids), bool)
    first[np.unique(ids, return_index=True)[1]] = True
    return first


def are_writable(entries: Sequence[Any]) -> Flags:
    """Returns for each entry whether it is JSON in UTF-8."""
    if not unwritable(plain(entries)):
        return [True] * len(entries)
    return [unwritable(plain(entry)) is None for entry in entries]


UNIQUE_ID = Rule("duplicate id", "Give each entry a unique id.", are_first, "id")
WRITABLE = Rule(
    "cannot be written as JSON in UTF-8", "Correct it.", are_writable, detail=lambda entry: unwritable(entry) or ""
)


def known_image(ids: Ids, remedy: str = "Correct it, add the image to `images`, or remove the annotation.") -> Rule:
    """Returns the rule that `image_id` is one of the ids of images, int64 [N]."""
    return Rule("unknown image_id", remedy, lambda values: are_among(values, ids), "image_id", quoted_json)


def known_category(ids: Ids, remedy: str = "Correct it, or add the category to `categories`.") -> Rule:
    """Returns the rule that `category_id` is one of the ids of categories, int64 [K]."""
    listed = f"The known ids are {quoted_json(np.sort(ids)[:_LISTED_IDS].tolist())}."
    return Rule(
        "unknown category_id", f"{listed} {remedy}", lambda values: are_among(values, ids), "category_id", quoted_json
    )


def are_among(values: npt.NDArray[np.generic], ids: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Returns for each value whether it is one of the ids; faster than `np.isin` for repeated values.

    Args:
        values: integers or floats [N].
        ids: integers or floats [K].
    """
    if not ids.size:
        return np.zeros(len(values), bool)
    ordered = np.sort(ids)
    nearest = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.equal(ordered[nearest], values)


def column(entries: Sequence[Any] | Rows, key: str) -> npt.NDArray[Any]:
    """Returns the ids or scores under `key`, [N]: int64 ids and float64 scores of valid entries, float64 of rows."""
    if isinstance(entries, np.ndarray):
        return entries[:, ROW_COLUMNS[key]]
    value = attrgetter(key) if entries and isinstance(entries[0], msgspec.Struct) else itemgetter(key)
    return np.fromiter(map(value, entries), np.float64 if key == "score" else np.int64, len(entries))


class Typed(list[Any]):
    """Entries that were decoded as this type, so they need no conversion.

    kind: the type.
    """

    def __init__(self, entries: Iterable[Any], kind: Any) -> None:
        super().__init__(entries)
        self.kind = kind


def check_entries(
    entries: Sequence[Any], kind: Any, rules: Iterable[Rule] = ()
) -> tuple[list[Any], dict[int, EntryIssue]]:
    """Finds the invalid entries of a list.

    Args:
        entries: parsed JSON.
        kind: type of an entry.
        rules: further conditions, each for the entries that meet the previous ones.

    Returns:
        The valid entries, converted to the type; and the issues of the others by position.
    """
    issues: dict[int, EntryIssue] = {}
    typed = convert_all(entries, kind)
    if typed is None:
        typed, issues = _convert_each(entries, kind)
    kept = np.delete(np.arange(len(entries)), list(issues))
    for rule in rules:
        values, holds = _apply(rule, typed)
        if not holds.all():
            typed = plain(typed)  # NumPy values may be the reason, for a type that allows anything
            values, holds = _apply(rule, typed)
            for index in np.flatnonzero(~holds).tolist():
                issues[int(kept[index])] = rule.issue(plain(values[index]))
            typed, kept = [typed[index] for index in np.flatnonzero(holds)], kept[holds]
    return typed, dict(sorted(issues.items()))


def _apply(rule: Rule, typed: Sequence[Any]) -> tuple[Any, npt.NDArray[np.bool_]]:
    values = column(typed, rule.key) if rule.key else typed
    return values, np.asarray(rule.holds(values), bool)


def convert_all(entries: Sequence[Any], kind: Any) -> list[Any] | None:
    """Converts entries to their type; None if any is invalid."""
    if isinstance(entries, Typed) and entries.kind is kind:
        return entries
    for convert in (list, plain):  # plain: NumPy numbers, or mappings other than dict
        try:
            return msgspec.convert(convert(entries), list[kind])
        except (msgspec.ValidationError, UnicodeEncodeError):  # UnicodeEncodeError: a lone surrogate
            pass
    return None


def _convert_each(entries: Sequence[Any], kind: Any) -> tuple[list[Any], dict[int, EntryIssue]]:
    valid: list[Any] = []
    issues: dict[int, EntryIssue] = {}
    for position, entry in enumerate(map(plain, entries)):
        issue = entry_issue(entry, kind)
        if issue is None:
            valid.append(msgspec.convert(entry, kind))
        else:
            issues[position] = issue
    return valid, issues


def entry_issue(entry: Any, kind: Any) -> EntryIssue | None:
    """Explains why an entry does not have the type `kind`; None if it has."""
    try:
        msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        return _explain(entry, kind, str(error))
    except UnicodeEncodeError:  # raised by msgspec while it formats its message
        return entry_issue(_without_surrogates(entry), kind)
    return None


def image_issue(entry: Any) -> EntryIssue | None:
    """Explains why an entry of `images` is invalid; None if it is valid."""
    issue = entry_issue(entry, ImageEntry)
    return WRITABLE.issue(entry["file_name"]) if issue is None and unwritable(entry["file_name"]) else issue


def category_issues(categories: Sequence[Any], kind: Any = CategoryEntry) -> dict[int, EntryIssue]:
    """Explains which entries of `categories` are invalid, by position; all their keys have to be writable."""
    return check_entries(categories, kind, [UNIQUE_ID])[1] or check_entries(categories, dict, [WRITABLE])[1]


def require_valid_categories(categories: Sequence[Any], name: Callable[[int], str]) -> None:
    """Requires valid categories, because annotations depend on them.

    Args:
        categories: `categories` entries.
        name: position -> where the entry is, for messages.

    Raises:
        DataError: a category is invalid.
    """
    for position, issue in category_issues(categories).items():
        raise DataError(f"{name(position)}{named_id(categories[position])}: {issue}")


def named_id(entry: Any) -> str:
    """Returns the id of an entry for a message: " (id 7)"; "" without a valid id."""
    identity = id_of(entry)
    return "" if identity is None else f" (id {identity})"


@functools.lru_cache(maxsize=256)
def unread_fields(
    names: frozenset[str], *, known: frozenset[str] = _ANNOTATION_FIELDS, needed: str | None = None
) -> str | None:
    """Explains which field of an entry has another name than COCO's, or is missing; None if there is none.

    Args:
        names: names of the entry's fields.
        known: names that are read.
        needed: a field that other entries have.
    """
    by_letters = {name.replace("_", ""): name for name in known}
    for name in sorted(names - known):
        meant = by_letters.get(name.replace("_", "").lower())
        if meant is not None and meant not in names:
            return f"field {quoted(name)} is not read: it is {meant} in COCO. Rename it."
    if needed is not None and needed not in names and f"is_{needed.removeprefix('is')}" not in names:
        return f"{needed} is missing, which other annotations of the image have: it counts as 0. Write it."
    return None


def head_issue(value: Any, kind: type) -> EntryIssue | None:
    """Explains why `info` (an object) or `licenses` (a list) of a file is invalid; None if it is valid."""
    remedy = "Write one, or remove it."
    if type(value) is not kind:
        return EntryIssue("not an object" if kind is dict else "not a list", remedy, quoted_json(value))
    return WRITABLE.issue(value) if unwritable(value) else None


def _explain(entry: Any, kind: Any, message: str) -> EntryIssue:
    """Turns a message of msgspec, which names the first invalid field, into an issue."""
    missing, invalid = _MISSING.search(message), _INVALID.search(message)
    hints = _hints(kind)
    if missing is not None:
        return EntryIssue(f"missing {missing[1]}", _remedy(hints[missing[1]]))
    if invalid is None:
        keys = ", ".join(key for key in hints if key in getattr(kind, "__required_keys__", hints))
        return EntryIssue("not an object", f"Write one with {keys}.", quoted_json(entry))
    name, value = invalid[1], entry[invalid[1]]
    if name == "bbox" and _has_negative_side(value):
        remedy = "COCO boxes are x, y, width, height; is it two corners?"
        return EntryIssue("negative width or height in bbox", remedy, quoted_json(value))
    return EntryIssue(f"invalid {name}", _remedy(hints[name]), quoted_json(value))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(each) for each in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _remedy(hint: Any) -> str:
    """Returns the description of a field; `hint`: its type, which may be `NotRequired`."""
    for part in getattr(hint, "__metadata__", ()):
        if part.description:
            return str(part.description)
    return _remedy(get_args(hint)[0])


def _has_negative_side(box: Any) -> bool:
    try:
        return min(msgspec.convert(box, tuple[float, float, float, float])[2:]) < 0
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
