"""Cron expressions and time zones of the configuration."""

import re
import zoneinfo
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(r"(?P<first>\*|\w+)(-(?P<last>\w+))?(/(?P<step>\d+))?")


class _Field(NamedTuple):
    """One of the five fields; `names` are those of its first values."""

    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()


FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


def cron_values(expression: str) -> tuple[frozenset[int], ...]:
    """Returns the values of each field of a cron expression; Sunday is 0, never 7.

    >>> [sorted(values) for values in cron_values("*/20 3 1,15 jan-mar sun")]
    [[0, 20, 40], [3], [1, 15], [1, 2, 3], [0]]

    Args:
        expression: minute, hour, day of month, month, day of week.

    Raises:
        ValueError: not five fields, or a value that its field does not take.
    """
    texts = expression.split()
    if len(texts) != len(FIELDS):
        raise ValueError(
            f"{expression!r} has {len(texts)} fields; a cron expression has five: minute, hour, day of month, month, "
            "day of week, such as 0 3 * * 1-5"
        )
    *others, days = (_values(field, text) for field, text in zip(FIELDS, texts, strict=True))
    return (*others, frozenset(day % 7 for day in days))


def _values(field: _Field, text: str) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        step = int(match["step"] or 1) if match else 0
        if match is None or not step or (match["first"] == "*" and match["last"]):
            raise ValueError(f"{field.name} {part!r} is none of *, a value, a range such as 1-5, or these with /STEP")
        first, last = _bounds(field, match["first"], match["last"], stepped=match["step"] is not None)
        if first > last:
            raise ValueError(f"{field.name} {part!r} ends before it begins")
        values.update(range(first, last + 1, step))
    return frozenset(values)


def _bounds(field: _Field, first: str, last: str | None, *, stepped: bool) -> tuple[int, int]:
    if first == "*":
        return field.lowest, field.highest - (field.names == _DAYS)
    begin = _number(field, first)
    if last is not None:
        return begin, _number(field, last)
    return begin, field.highest - (field.names == _DAYS) if stepped else begin


def _number(field: _Field, text: str) -> int:
    if text.lower() in field.names:
        return field.lowest + field.names.index(text.lower())
    if not text.isdecimal() or not field.lowest <= int(text) <= field.highest:
        raise ValueError(f"{field.name} {text!r} is not within {field.lowest} to {field.highest}")
    return int(text)


def _cron(expression: str) -> str:
    cron_values(expression)
    return " ".join(expression.split())


def _time_zone(name: str) -> str:
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # not found; the name of a folder; not a relative path
        raise ValueError(
            f"{name!r} is not a time zone; write one of the IANA database, such as Europe/Berlin"
        ) from None
    return name


CronExpression = Annotated[str, AfterValidator(_cron)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
