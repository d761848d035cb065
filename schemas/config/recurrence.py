"""The section `run.schedule`: when `schedule create` lets the platform run the pipeline."""

import zoneinfo
from datetime import datetime
from typing import Self

from pydantic import Field, PositiveInt, model_validator

from schemas.config.cron import CommonCronExpression, TimeZone
from schemas.config.section import Section


class ScheduleConfig(Section):
    """Recurring runs of `schedule create`."""

    cron: CommonCronExpression | None = Field(
        None, description="minute, hour, day of month, month, day of week: `0 3 * * 1-5`; none: no schedule"
    )
    time_zone: TimeZone = Field(
        "UTC", description="IANA time zone of cron, start and end; Kubeflow has UTC or its server's own only"
    )
    start: str | None = Field(None, description="first moment, ISO 8601: 2027-01-31T03:00; none: at once")
    end: str | None = Field(None, description="last moment; none: without end")
    max_concurrent_runs: PositiveInt = Field(1, description="max runs at the same time; Kubeflow: at most 10")
    allow_queueing: bool = Field(False, description="runs beyond that wait instead of being left out; Vertex only")
    max_runs: PositiveInt | None = Field(
        None, description="runs after which the schedule ends; Vertex only; none: no end"
    )

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if self.cron is None:
            keys = set(type(self).model_fields) - {"cron"}
            self.refuse(sorted(keys), "without cron")
        if self.start_time and self.end_time and self.start_time >= self.end_time:
            raise ValueError(f"end = {self.end} is not after start = {self.start}")
        return self

    @property
    def start_time(self) -> datetime | None:
        """First moment, with its time zone."""
        return self._moment("start", self.start)

    @property
    def end_time(self) -> datetime | None:
        """Last moment, with its time zone."""
        return self._moment("end", self.end)

    def _moment(self, key: str, text: str | None) -> datetime | None:
        if text is None:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{key} = {text!r} is not a time; write it as 2027-01-31T03:00") from None
        return moment if moment.tzinfo else moment.replace(tzinfo=zoneinfo.ZoneInfo(self.time_zone))
