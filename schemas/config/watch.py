"""The section `watch`: when the command `watch` trains again."""

from datetime import UTC, datetime
from typing import Annotated, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from schemas.config.section import Section

_FIELDS = "minute, hour, day of month, month and day of week"


def _cron(expression: str) -> str:
    if len(expression.split()) != 5:
        raise ValueError(f"a cron expression has five fields, {_FIELDS}, as '0 3 * * *' for every day at 03:00")
    try:
        next(CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(f"not a cron expression: {error}; its fields are {_FIELDS}") from None
    except StopIteration:
        raise ValueError("no day of the calendar has this date") from None
    return expression


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # a folder of the database, a path, an unknown name
        raise ValueError("not a time zone of the IANA database, such as UTC or Europe/Berlin") from None
    return name


class DriftConfig(Section):
    """Drift of new data against the data of the last training, by TensorFlow Data Validation."""

    enabled: bool = Field(False, description="skip new data whose statistics drifted less than every threshold")
    infinity_norm: float = Field(
        0.1, gt=0.0, le=1.0, description="threshold of the largest change of a category's share of the objects"
    )
    jensen_shannon_divergence: float = Field(
        0.1,
        gt=0.0,
        le=1.0,
        description="threshold for numbers: relative area and aspect ratio of boxes, objects per image, image size",
    )

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if not self.enabled:
            self.refuse(["infinity_norm", "jensen_shannon_divergence"], "while enabled = False")
        return self


class WatchConfig(Section):
    """Triggers of the command `watch`, and what it does about failed runs."""

    cron: Annotated[str, AfterValidator(_cron)] | None = Field(
        None, description=f"times of training, as a cron expression: {_FIELDS}; none: no times"
    )
    time_zone: Annotated[str, AfterValidator(_time_zone)] = Field(
        "UTC", description="time zone of cron, such as Europe/Berlin; clock changes count as for Debian's cron"
    )
    catch_up: bool = Field(
        True, description="cron times that passed while `watch` was down: one run for all of them; false: none"
    )
    new_span: bool = Field(
        False, description="train when a span or version appears that is newer than the last one; needs data with spans"
    )
    poll_seconds: PositiveFloat = Field(
        60.0, description="pause between looks at the data; data that changes from one look to the next is waited for"
    )
    max_failures: PositiveInt = Field(3, description="number of failures after which a run is given up")
    retry_seconds: PositiveFloat = Field(
        60.0, description="pause after a run's first failure; it doubles with each, up to a day"
    )
    drift: DriftConfig = DriftConfig()

    @property
    def enabled(self) -> bool:
        """True if there is a trigger."""
        return self.cron is not None or self.new_span

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if not self.enabled:
            keys = ["poll_seconds", "max_failures", "retry_seconds", "drift"]
            self.refuse(keys, "without a trigger; set cron or new_span")
        if self.cron is None:
            self.refuse(["time_zone", "catch_up"], "without cron")
        if self.max_failures == 1:
            self.refuse(["retry_seconds"], "while max_failures = 1")
        return self
