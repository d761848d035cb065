"""Times at which cron triggers."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim


class Due(NamedTuple):
    """The first and the last of the cron times that have come, in UTC."""

    first: datetime
    last: datetime


class Schedule:
    """A cron expression in a time zone.

    Clock changes count as for Debian's cron: a time that is skipped comes right after the change,
    and one that comes twice counts once; hours or minutes given as `*` follow the clock.

    Args:
        cron: five fields.
        time_zone: name in the IANA database.
    """

    def __init__(self, cron: str, time_zone: str) -> None:
        self._cron = cron
        self._zone = ZoneInfo(time_zone)

    def next_after(self, moment: datetime) -> datetime:
        """Returns the first time after a moment, in UTC."""
        times = CronSim(self._cron, moment.astimezone(self._zone))
        # In an hour that comes twice, CronSim takes the second for the first.
        return next(time for time in (found.astimezone(UTC) for found in times) if time > moment)

    def due(self, after: datetime, until: datetime) -> Due | None:
        """Returns the times with after < time <= until; None: there are none."""
        first = self.next_after(after)
        if first > until:
            return None
        # Years of minutes may lie between them, under a clock that was wrong: the last is sought from the end.
        window = timedelta(minutes=1)
        while until - window > first and self.next_after(until - window) > until:
            window *= 2
        last = following = max(first, until - window)
        while following <= until:
            last, following = following, self.next_after(following)
        return Due(first, last)

    def local(self, moment: datetime) -> str:
        """Returns a moment as text, in the schedule's time zone."""
        return moment.astimezone(self._zone).strftime("%Y-%m-%d %H:%M %Z")
