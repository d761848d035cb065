"""The section `watch`: triggers of the command `watch`."""

from pydantic import Field, PositiveFloat, PositiveInt

from schemas.config.recurrence import CronExpression, TimeZone
from schemas.config.section import Section


class DriftConfig(Section):
    """Drift of new data against the data of the last training."""

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

    def _check_keys(self) -> None:
        self.refuse(["infinity_norm", "jensen_shannon_divergence"], "while enabled = False", when=not self.enabled)


class WatchConfig(Section):
    """Triggers of the command `watch`, and retries of failed runs."""

    cron: CronExpression | None = Field(
        None,
        description="times of training, as a cron expression: minute, hour, day of month, month and day of week; none: "
        "no times",
    )
    time_zone: TimeZone = Field(
        "UTC", description="time zone of cron, such as Europe/Berlin; clock changes count as for Debian's cron"
    )
    catch_up: bool = Field(
        True, description="cron times that passed while `watch` was down: one run for all of them; false: none"
    )
    new_span: bool = Field(
        False, description="train when a span or version appears that is newer than the last one; needs data with spans"
    )
    poll_seconds: PositiveFloat = Field(
        60.0, description="pause between checks of the data; data that is still changing is checked again"
    )
    max_failures: PositiveInt = Field(3, description="number of failures after which a run is abandoned")
    retry_seconds: PositiveFloat = Field(
        60.0, description="pause after a run's first failure; it doubles with each, up to a day"
    )
    drift: DriftConfig = DriftConfig()

    @property
    def enabled(self) -> bool:
        """True if a trigger is set."""
        return self.cron is not None or self.new_span

    def _check_keys(self) -> None:
        if not self.enabled:
            keys = ["poll_seconds", "max_failures", "retry_seconds", "drift"]
            self.refuse(keys, "without a trigger; set cron or new_span")
        self.refuse(["time_zone", "catch_up"], "without cron", when=self.cron is None)
        self.refuse(["retry_seconds"], "while max_failures = 1", when=self.max_failures == 1)
