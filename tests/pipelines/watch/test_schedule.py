"""Cron times against a walk minute by minute, over the clock changes of several time zones."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.watch.decisions import times_in_words
from pipelines.watch.schedule import Due, Schedule

MINUTE = timedelta(minutes=1)
# Clocks change there by an hour on the day after these; or never.
CHANGES = {
    "Europe/Berlin": ("2026-03-28", "2026-10-24"),
    "America/New_York": ("2026-03-07", "2026-10-31"),
    "Australia/Sydney": ("2026-04-03", "2026-10-02"),
    "Asia/Kolkata": ("2026-03-28",),
    "UTC": ("2026-12-31",),
}


def _numbers(field: str, low: int, high: int) -> set[int]:
    """A cron field of `*`, `*/n`, `a-b` and lists of numbers."""
    numbers: set[int] = set()
    for part in field.split(","):
        values, _, step = part.partition("/")
        first, last = (low, high) if values == "*" else (int(end) for end in (values.split("-") * 2)[:2])
        numbers |= set(range(first, last + 1, int(step or 1)))
    return numbers


def _walk(cron: str, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """Times with start < time <= end, as the manual page of Debian's cron words it, in whole minutes of UTC."""
    minutes, hours, days, months, weekdays = (
        _numbers(field, low, high)
        for field, low, high in zip(cron.split(), (0, 0, 1, 1, 0), (59, 23, 31, 12, 7), strict=True)
    )
    minute, hour, day, _, weekday = cron.split()
    every_day = day.startswith("*") or weekday.startswith("*")

    def matches(local: datetime) -> bool:
        if local.minute not in minutes or local.hour not in hours or local.month not in months:
            return False
        in_week = bool({local.isoweekday(), local.isoweekday() % 7} & weekdays)
        return (local.day in days and in_week) if every_day else (local.day in days or in_week)

    fixed = not (minute.startswith("*") or hour.startswith("*"))
    moment = start - timedelta(hours=3)  # from before a change on, to know which clock times have been
    wall = moment.astimezone(zone).replace(tzinfo=None)
    while moment < end:
        moment += MINUTE
        now = moment.astimezone(zone).replace(tzinfo=None)
        if not fixed:
            hit = matches(now)
        else:  # every clock time once: the skipped ones now, those that come again not
            hit = False
            while wall < now:
                wall += MINUTE
                hit |= matches(wall)
        if hit and moment > start:
            yield moment


@st.composite
def crons(draw: st.DrawFn) -> str:
    minute = draw(st.sampled_from(["*", "*/20", "0", "30", "5,35", "0-10/5"]))
    hour = draw(st.sampled_from(["*", "*/3", "0", "1", "2", "3", "1-3", "2,14"]))
    day = draw(st.sampled_from(["*", "*/2", "29", "1,8"]))
    weekday = draw(st.sampled_from(["*", "0", "7", "1-5"]))
    return f"{minute} {hour} {day} {draw(st.sampled_from(['*', '3,4,10', '3-11']))} {weekday}"


@st.composite
def places(draw: st.DrawFn) -> tuple[str, datetime]:
    zone = draw(st.sampled_from(sorted(CHANGES)))
    day = datetime.fromisoformat(draw(st.sampled_from(CHANGES[zone]))).replace(tzinfo=UTC)
    return zone, day + MINUTE * draw(st.integers(-600, 1800))


@settings(max_examples=60)
@given(crons(), places())
@example("30 2 * * *", ("Europe/Berlin", datetime(2026, 10, 25, 0, 45, tzinfo=UTC)))  # in the hour that comes twice
@example("30 2 * * *", ("Europe/Berlin", datetime(2026, 3, 29, 0, 10, tzinfo=UTC)))  # before the one that is skipped
def test_times_are_those_of_a_walk_minute_by_minute(cron: str, place: tuple[str, datetime]) -> None:
    zone, start = place
    schedule, end = Schedule(cron, zone), start + timedelta(hours=30)
    times = list(_walk(cron, ZoneInfo(zone), start, end))
    assert schedule.due(start, end) == (Due(times[0], times[-1]) if times else None)
    if times:
        assert schedule.next_after(start) == times[0]


def test_a_time_at_the_end_is_due_and_one_at_the_start_is_not() -> None:
    schedule = Schedule("0 3 * * *", "UTC")
    three = datetime(2026, 11, 23, 3, tzinfo=UTC)
    assert schedule.due(three, three) is None
    assert schedule.due(three - MINUTE, three) == Due(three, three)
    days = timedelta(days=1), timedelta(days=5)
    assert schedule.due(three, three + days[1]) == Due(three + days[0], three + days[1])


@pytest.mark.parametrize("cron", ["* * * * *", "*/7 3 * * 1-5", "15 3 29 2 *"])
def test_the_last_of_many_times_is_that_of_a_walk_from_time_to_time(cron: str) -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 20, 5, 3, tzinfo=UTC)
    schedule = Schedule(cron, "Europe/Berlin")
    times, time = [], schedule.next_after(start)
    while time <= end:
        times.append(time)
        time = schedule.next_after(time)
    assert schedule.due(start, end) == (Due(times[0], times[-1]) if times else None)


def test_a_start_under_a_wrong_clock_does_not_walk_through_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    following = Schedule.next_after

    def counted(schedule: Schedule, moment: datetime) -> datetime:
        calls.append(moment)
        return following(schedule, moment)

    monkeypatch.setattr(Schedule, "next_after", counted)
    start, now = datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 11, 23, 3, 0, 30, tzinfo=UTC)
    due = Schedule("* * * * *", "UTC").due(start, now)
    assert due == Due(start + MINUTE, now.replace(second=0))
    assert len(calls) < 10
    assert times_in_words(due) == "the cron times from 1970-01-01 00:01 to 2026-11-23 03:00 UTC"


@pytest.mark.parametrize(
    ("zone", "told"), [("UTC", "2026-07-01 12:00 UTC"), ("Europe/Berlin", "2026-07-01 14:00 CEST")]
)
def test_times_are_told_in_their_zone(zone: str, told: str) -> None:
    assert Schedule("0 3 * * *", zone).local(datetime(2026, 7, 1, 12, tzinfo=UTC)) == told
