"""Times at which cron triggers."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

MAX_COUNTED = 10_000  # a week of minutes; under a clock that was wrong by years, counting took minutes


class Due(NamedTuple):
    """Cron times that have come, in UTC: the first and the last of them, and their number, at most `MAX_COUNTED`."""

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
        while following <= until and count < MAX_COUNTED:
            last, count = following, count + 1
            following = self.next_after(last)
        return Due(first, self._last_until(until, last) if following <= until else last, count)

    def _last_until(self, until: datetime, known: datetime) -> datetime:
        """Returns the last time up to `until`, without a walk through all after `known`, an earlier one."""
        window = timedelta(minutes=1)
        while until - window > known and self.next_after(until - window) > until:
            window *= 2
        last = following = max(known, until - window)
        while following <= until:
            last, following = following, self.next_after(following)
        return last

    def local(self, moment: datetime) -> str:
        """Returns a moment as text, in the schedule's time zone."""
        return moment.astimezone(self._zone).strftime("%Y-%m-%d %H:%M %Z")
