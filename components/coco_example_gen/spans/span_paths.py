"""Spans and versions: data that arrives in new folders with time, as TFX's file-based ExampleGen knows it.

A path holds `{SPAN}` (`{SPAN:3}`: three digits, zeros in front) or a date's `{YYYY}`,
`{MM}` and `{DD}`, and perhaps `{VERSION}`.  A date is the span of its number of days
since 1970-01-01.  The newest span counts and its newest version, unless one is named.
The rules are those of `tfx.components.example_gen.utils`; TFX takes half a minute to
import, which programs without a pipeline need not wait for, and does not tell what it
has found.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from detection.datasets.layouts import find_splits, given_splits
from detection.datasets.splits import WHOLE, Division, SplitFiles
from detection.storage import files, paths
from detection.web.archives import is_packed, unpacked
from schemas.errors import ConfigError, DataError

_PLACEHOLDER = re.compile(r"\{(?P<name>SPAN|VERSION|YYYY|MM|DD)(?::(?P<width>[^}]*))?\}")
_DATE = {"YYYY": 4, "MM": 2, "DD": 2}  # digits
_EPOCH = date(1970, 1, 1)
_LISTED = 10  # max numbers in an error message
# TFX looks for files, too: a folder that is empty, or has pictures only so far, is no span yet.
_ANNOTATED = tuple(
    f"{place}{name}"
    for name in ("*.json", "*record*", "*.yaml", "*.csv", "*.xml", "classes.txt")
    for place in ("/", "/*/")
)


class SpanVersion(NamedTuple):
    """A span's number, and that of its version, if the data has versions."""

    span: int
    version: int | None

    def name_in(self, paths: str) -> str:
        """Returns its name as the paths of the data have it: `2026-11-21, version 2` or `span 7`.

        Args:
            paths: paths of the data set, with the placeholders.
        """
        name = f"span {self.span}"
        if "{YYYY}" in paths:
            with contextlib.suppress(OverflowError):  # the number is not a date
                name = str(_EPOCH + timedelta(days=self.span))
        return name + ("" if self.version is None else f", version {self.version}")


NO_SPAN = SpanVersion(0, None)  # for data without placeholders, as in TFX


def placeholders(path: str) -> frozenset[str]:
    """The names of the placeholders in a path: SPAN, VERSION, YYYY, MM, DD.

    Raises:
        ConfigError: a combination that names no span.
    """
    matches = list(_PLACEHOLDER.finditer(path))
    names = frozenset(match["name"] for match in matches)
    if len(matches) > len(names):
        raise ConfigError(f"{path}: a duplicate placeholder. Write each once.")
    if names & _DATE.keys() and (not names >= _DATE.keys() or "SPAN" in names):
        raise ConfigError(f"{path}: write all of {{YYYY}}, {{MM}} and {{DD}}, or {{SPAN}} in their place.")
    if names == {"VERSION"}:
        raise ConfigError(
            f"{path}: a {{VERSION}} is one of a span. Write {{SPAN}}, or {{YYYY}}, {{MM}} and {{DD}}, too."
        )
    for match in matches:
        if match["width"] is not None and (match["name"] in _DATE or not re.fullmatch("[1-9][0-9]?", match["width"])):
            raise ConfigError(f"{path}: {match[0]}: write a number of digits, as in {{SPAN:3}}; dates take none.")
    return names


def find_span(
    patterns: Iterable[str], *, span: int | None = None, version: int | None = None, below: Sequence[str] = ("",)
) -> SpanVersion:
    """The newest span, and of it the newest version, that all patterns have.

    Args:
        patterns: paths with the same placeholders; no other character is special.
        span: this one instead of the newest.
        version: this one instead of the newest.
        below: glob patterns to append: only what has a match for one of them is there.

    Raises:
        ConfigError: patterns whose placeholders differ, or without the one that
            `span` or `version` needs; a number with zeros in front but no width.
        DataError: no such span or version; patterns whose newest differ; a path that
            has something else than a number in place of a placeholder.
    """
    first, *others = sorted(set(patterns))
    names = placeholders(first)
    if span is not None and not names:
        raise ConfigError(f"data.span = {span}, but {first} has no {{SPAN}} and no date. Remove one of them.")
    if version is not None and "VERSION" not in names:
        raise ConfigError(f"data.version = {version}, but {first} has no {{VERSION}}. Remove one of them.")
    for pattern in others:
        if placeholders(pattern) != names:
            raise ConfigError(f"{first} and {pattern}: write the same placeholders for all splits.")
    if not names:
        return NO_SPAN
    chosen = _choose(first, span, version, below)
    for pattern in others:
        other = _choose(pattern, span, version, below)
        if other != chosen:
            raise DataError(
                f"the newest of {first} is {chosen.name_in(first)}, of {pattern} it is {other.name_in(pattern)}: all "
                "splits need the same. "
                "Add what is missing, or name a complete one with --set data.span=N."
            )
    return chosen


def spans_there(source: str) -> set[int]:
    """Returns the spans that the paths of a data set have.

    Args:
        source: as `source_of` names it: the root, or a JSON object of the splits' annotation files.
    """
    if not source.startswith("{"):
        return {at.span for at in _search(source, _ANNOTATED, strict=False)}
    patterns = json.loads(source).values()
    return set.intersection(*({at.span for at in _search(one, ("",), strict=False)} for one in patterns))


def fill(path: str, at: SpanVersion) -> str:
    """A path with its placeholders replaced; `{VERSION}` stays where `at` has none.

    Raises:
        ConfigError: a number has more digits than its placeholder.
    """

    def value(match: re.Match[str]) -> str:
        name = match["name"]
        if name == "VERSION" and at.version is None:
            return match[0]
        if name in _DATE:
            day = _EPOCH + timedelta(days=at.span)
            return str({"YYYY": day.year, "MM": day.month, "DD": day.day}[name]).zfill(_DATE[name])
        number = str(at.span if name == "SPAN" else at.version)
        width = int(match["width"] or len(number))
        if len(number) > width:
            raise ConfigError(f"{path}: {match[0]} has no room for {number}.")
        return number.zfill(width)

    return _PLACEHOLDER.sub(value, path)


def _choose(pattern: str, span: int | None, version: int | None, below: Sequence[str]) -> SpanVersion:
    """The newest of one pattern, or the one that is asked for."""
    candidates = _search(pattern, below, strict=span is None)
    spans = {at.span for at in candidates}
    if not spans:
        raise DataError(f"{pattern}: no span found. Check data.root or data.splits.")
    if span is not None and span not in spans:
        there = _listed(spans, dates="SPAN" not in placeholders(pattern))
        name = SpanVersion(span, None).name_in(pattern)
        raise DataError(f"{pattern}: no {name} found, only {there}. Check data.span.")
    newest = max(spans) if span is None else span
    versions = {at.version for at in candidates if at.span == newest and at.version is not None}
    if version is not None and version not in versions:
        raise DataError(
            f"{pattern}: {SpanVersion(newest, None).name_in(pattern)} has no version {version}, only "
            f"{_listed(versions)}. Check data.version."
        )
    return SpanVersion(newest, version if version is not None else max(versions, default=None))


def _search(pattern: str, below: Sequence[str], *, strict: bool) -> list[SpanVersion]:
    """Lists existing spans and versions, if the pattern has any; `strict` refuses paths without a valid span."""
    if not placeholders(pattern):
        return []
    parts = _PLACEHOLDER.split(pattern)  # literal, name, width, literal, ..., literal
    wildcards = "*".join(map(paths.escape, parts[::3]))
    expression = re.escape(parts[0])
    for name, width, literal in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        expression += f"(?P<{name}>[0-9]{_repeated(_DATE.get(name) or width)}){re.escape(literal)}"
    spans = []
    for path in _matches(wildcards, below):
        match = re.match(expression + "(?=/|$)", path)
        at = _numbers(match) if match else None
        if at is not None:
            _check_zeros(pattern, path, at)
            spans.append(at)
        elif strict:
            raise DataError(
                f"{path}: is found for {pattern}, but has no such number or date in place of a placeholder. "
                "Move it away, or correct the pattern."
            )
    return spans


def _matches(wildcards: str, below: Sequence[str]) -> list[str]:
    """The paths that match, in their order, where something is `below`."""
    if tuple(below) == ("",):
        return files.glob(wildcards)
    # The likeliest place first: listing a folder of images takes a request for every thousand.
    suffixes = ("/annotations/*.json", *below)
    folders = files.glob(wildcards)
    return [folder for folder in folders if any(files.glob(paths.escape(folder) + suffix) for suffix in suffixes)]


def _repeated(width: int | str | None) -> str:
    return f"{{{width}}}" if width else "+"


def _numbers(match: re.Match[str]) -> SpanVersion | None:
    """Reads span and version from a path's match; None: not a calendar day."""
    numbers = {name: int(digits) for name, digits in match.groupdict().items()}
    if "SPAN" in numbers:
        return SpanVersion(numbers["SPAN"], numbers.get("VERSION"))
    try:
        day = date(numbers["YYYY"], numbers["MM"], numbers["DD"])
    except ValueError:
        return None
    return SpanVersion((day - _EPOCH).days, numbers.get("VERSION"))


def _check_zeros(pattern: str, path: str, at: SpanVersion) -> None:
    if not path.startswith(fill(pattern, at)):
        raise ConfigError(f"{path}: zero-padded number; give its width, as in {{SPAN:3}}: {pattern}.")


def _listed(numbers: Iterable[int], *, dates: bool = False) -> str:
    ordered = sorted(numbers)
    listed = [str(_EPOCH + timedelta(days=number)) if dates else str(number) for number in ordered[-_LISTED:]]
    return ("..., " if len(ordered) > _LISTED else "") + ", ".join(listed)


class SpanSplits(NamedTuple):
    """The files of a data set at one span.

    files: of each split.
    newest: span and version found, or asked for; `NO_SPAN` of data without placeholders.
    """

    files: dict[str, SplitFiles]
    newest: SpanVersion


def locate_root(
    root: str, *, division: Division = WHOLE, span: int | None = None, version: int | None = None, corners: str = "auto"
) -> SpanSplits:
    """Finds the splits in a folder in one of the recognised layouts.

    Args:
        root: the folder, with placeholders or without; the layout is the newest span's.
        division: as for `find_splits`.
        span: this one instead of the newest.
        version: this one instead of the newest.
        corners: `data.voc_corners`.

    Raises:
        ConfigError, DataError: see `find_span` and `find_splits`.
    """
    if is_packed(root):
        root = unpacked(root)
    paths.require_supported(root, "data.root")
    root = paths.absolute(root)
    newest = find_span([root], span=span, version=version, below=_ANNOTATED)
    return SpanSplits(find_splits(fill(root, newest), division, corners=corners), newest)


def locate_given(
    sources: Mapping[str, tuple[str, str | None]],
    *,
    division: Division = WHOLE,
    span: int | None = None,
    version: int | None = None,
) -> SpanSplits:
    """Finds the splits that a user specifies.

    Args:
        sources: as for `given_splits`, with placeholders or without; an image folder
            may lack those that it does not depend on.
        division: as for `given_splits`.
        span: this one instead of the newest.
        version: this one instead of the newest.

    Raises:
        ConfigError: an image folder has a placeholder that its annotations lack; see
            also `find_span`.
        DataError: see `find_span` and `given_splits`.
    """
    absolute: dict[str, tuple[str, str | None]] = {}
    for name, (annotations, images) in sources.items():
        paths.require_supported(annotations, f"data.splits.{name}.{'annotations' if images else 'records'}")
        paths.require_supported(images or "", f"data.splits.{name}.images")
        file, folder = absolute[name] = paths.absolute(annotations), images and paths.absolute(images)
        if folder and not placeholders(folder) <= placeholders(file):
            raise ConfigError(
                f"data.splits.{name}.images = {folder} has a placeholder that the annotations {file} lack. "
                "Write it there, too."
            )
    newest = find_span((_searched(*files) for files in absolute.values()), span=span, version=version)
    filled = {
        name: (fill(annotations, newest), images and fill(images, newest))
        for name, (annotations, images) in absolute.items()
    }
    return SpanSplits(given_splits(filled, division), newest)


def _searched(annotations: str, images: str | None) -> str:
    """Returns the path that a split needs: its annotation file, or the folder of its TFRecords."""
    return paths.parent(annotations) if images is None and "*" in annotations else annotations
