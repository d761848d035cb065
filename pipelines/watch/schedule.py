"""Times at which cron triggers."""

from datetime import UTC, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim


class Due(NamedTuple):
    """Cron times that have come, in UTC: the first and the last of them, and their number."""

    first: datetime
    last: datetime
    number: int


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
        first = last = self.next_after(after)
        if first > until:
            return None
        count, following = 1, self.next_after(last)
        while following <= until:
            last, count = following, count + 1
            following = self.next_after(last)
        return Due(first, last, count)

    def local(self, moment: datetime) -> str:
        """Returns a moment as text, in the schedule's time zone."""
        return moment.astimezone(self._zone).strftime("%Y-%m-%d %H:%M %Z")
