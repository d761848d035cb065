"""Recurring runs: cron expressions, time zones, and the section `run.schedule`."""

import re
from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, PositiveInt

from schemas.config.section import Section

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
        raise ValueError(f"{expression!r} never occurs: this date does not exist") from None
    return " ".join(fields)


def _common(expression: str) -> str:
    if _DEBIANS_OWN.fullmatch(expression):
        raise ValueError(
            f"{expression!r}: not every platform supports L and #; write numbers, names, *, ranges and steps"
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
    return sorted({day % 7 for day in days if isinstance(day, int)})  # the others are L and #


# Without Debian's extensions, which Vertex AI and Kubeflow do not support.
CommonCronExpression = Annotated[str, AfterValidator(_cron), AfterValidator(_common)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]


class ScheduleConfig(Section):
    """Recurring runs of `schedule create`."""

    cron: CommonCronExpression | None = Field(
        None, description="minute, hour, day of month, month, day of week: `0 3 * * 1-5`; none: no schedule"
    )
    time_zone: TimeZone = Field(
        "UTC", description="IANA time zone of cron, start and end; Kubeflow has UTC or its server's own only"
    )
    start: str | None = Field(None, description="start time, ISO 8601: 2027-01-31T03:00; none: now")
    end: str | None = Field(None, description="end time; none: no end")
    max_concurrent_runs: PositiveInt = Field(1, description="max runs at the same time; Kubeflow: at most 10")
    allow_queueing: bool = Field(False, description="runs beyond that wait instead of being skipped; Vertex only")
    max_runs: PositiveInt | None = Field(
        None, description="runs after which the schedule ends; Vertex only; none: no end"
    )

    def _check_keys(self) -> None:
        if self.cron is None:
            keys = set(type(self).model_fields) - {"cron"}
            self.refuse(sorted(keys), "without cron")
        if self.start_time and self.end_time and self.start_time >= self.end_time:
            raise ValueError(f"end = {self.end} is not after start = {self.start}")

    @property
    def start_time(self) -> datetime | None:
        """Start time, with its time zone."""
        return self._moment("start", self.start)

    @property
    def end_time(self) -> datetime | None:
        """End time, with its time zone."""
        return self._moment("end", self.end)

    def _moment(self, key: str, text: str | None) -> datetime | None:
        if text is None:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{key} = {text!r} is not a time; write it as 2027-01-31T03:00") from None
        return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(self.time_zone))
