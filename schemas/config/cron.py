"""Cron expressions and time zones of the configuration."""

import re
from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator

_FIELDS = "minute, hour, day of month, month and day of week"
_DEBIANS_OWN = re.compile(r"(\S+ ){2}\S*L.*|(\S+ ){4}\S*(#|\dL).*", re.IGNORECASE)


def _cron(expression: str) -> str:
    fields = expression.split()
    if len(fields) != 5:
        raise ValueError(
            f"{expression!r} has {len(fields)} fields; a cron expression has five, {_FIELDS}, as in 0 3 * * 1-5"
        )
    try:
        next(CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(f"{expression!r} is not a cron expression: {error}; its fields are {_FIELDS}") from None
    except StopIteration:
        raise ValueError(f"{expression!r} never comes: no day of the calendar has this date") from None
    return " ".join(fields)


def _common(expression: str) -> str:
    if _DEBIANS_OWN.fullmatch(expression):
        raise ValueError(
            f"{expression!r}: L and # are not understood by every platform; write numbers, names, *, ranges and steps"
        )
    return expression


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # not found; the name of a folder; not a relative path
        raise ValueError(
            f"{name!r} is not a time zone; write one of the IANA database, such as Europe/Berlin"
        ) from None
    return name


def weekdays(expression: str) -> list[int]:
    """Returns the days of the week of a common cron expression in ascending order; Sunday is 0, never 7.

    >>> weekdays("0 3 * * mon-wed,7")
    [0, 1, 2, 3]
    """
    days = CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC)).weekdays
    return sorted({day % 7 for day in days if isinstance(day, int)})  # others are L and #


CronExpression = Annotated[str, AfterValidator(_cron)]
# Without the forms of Debian's cron that Vertex AI and Kubeflow do not have.
CommonCronExpression = Annotated[str, AfterValidator(_cron), AfterValidator(_common)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
