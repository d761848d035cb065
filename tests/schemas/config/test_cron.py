"""Cron expressions and time zones."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from schemas.config.config_io import load_config
from schemas.config.cron import FIELDS, CronExpression, TimeZone, cron_values
from schemas.errors import ConfigError

LIMITS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]


@given(st.data())
def test_a_field_has_the_values_that_it_lists(data: st.DataObject) -> None:
    """Against the definition of each form, written out number by number."""
    texts, wanted = [], []
    for low, high in LIMITS:
        values: set[int] = set()
        parts = []
        for _ in range(data.draw(st.integers(1, 3))):
            first = data.draw(st.integers(low, high))
            last = data.draw(st.integers(first, high))
            step = data.draw(st.integers(1, 9))
            form = data.draw(st.sampled_from(["{0}", "{0}-{1}", "{0}-{1}/{2}"]))
            parts.append(form.format(first, last, step))
            end = first if form == "{0}" else last
            values |= {value for value in range(first, end + 1) if "/" not in form or (value - first) % step == 0}
        texts.append(",".join(parts))
        wanted.append(values)
    wanted[4] = {0 if day == 7 else day for day in wanted[4]}
    assert [set(values) for values in cron_values(" ".join(texts))] == wanted


def test_stars_steps_and_names() -> None:
    everything = [set(range(low, high + 1)) for low, high in LIMITS]
    everything[4].remove(7)
    assert [set(values) for values in cron_values("* * * * *")] == everything
    minutes, hours, _, months, days = cron_values("*/15 20/2 * feb-APR Mon-fri,SUN")
    assert (minutes, hours) == ({0, 15, 30, 45}, {20, 22})
    assert (months, days) == ({2, 3, 4}, {0, 1, 2, 3, 4, 5})
    assert [field.name for field in FIELDS] == ["minute", "hour", "day of month", "month", "day of week"]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("0 3 * *", "has 4 fields; a cron expression has five"),
        ("@daily", "has 1 fields"),
        ("0 3 * * * *", "has 6 fields"),
        ("60 * * * *", "minute '60' is not within 0 to 59"),
        ("0 24 * * *", "hour '24' is not within 0 to 23"),
        ("0 0 0 * *", "day of month '0' is not within 1 to 31"),
        ("0 0 * 13 *", "month '13' is not within 1 to 12"),
        ("0 0 * * 8", "day of week '8' is not within 0 to 7"),
        ("0 0 * mon *", "month 'mon' is not within 1 to 12"),
        ("5-1 * * * *", "minute '5-1' ends before it begins"),
        ("*/0 * * * *", "minute '*/0' is none of"),
        ("*-5 * * * *", "minute '*-5' is none of"),
        ("1, * * * *", "minute '' is none of"),
        ("0 0 L * *", "day of month 'L' is not within"),
    ],
)
def test_an_invalid_expression_is_told(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        cron_values(expression)


def test_the_configurations_types() -> None:
    assert TypeAdapter(CronExpression).validate_python(" 0  3 * * 1-5 ") == "0 3 * * 1-5"
    assert TypeAdapter(TimeZone).validate_python("Europe/Berlin") == "Europe/Berlin"
    for name in ("Mars/Olympus", "Europe", "../UTC", ""):
        with pytest.raises(ValidationError, match="is not a time zone; write one of the IANA database"):
            TypeAdapter(TimeZone).validate_python(name)


def test_moments_are_those_of_the_time_zone() -> None:
    times = ["run.schedule.start=2027-07-01T03:00", "run.schedule.end=2027-07-01T04:30:00+02:00"]
    schedule = load_config(
        None, ["run.schedule.cron=0 3 * * *", "run.schedule.time_zone=Asia/Tokyo", *times]
    ).run.schedule
    assert schedule.start_time == datetime(2027, 6, 30, 18, tzinfo=UTC)
    assert schedule.end_time == datetime(2027, 7, 1, 4, 30, tzinfo=timezone(timedelta(hours=2)))
    assert load_config(None).run.schedule.start_time is None


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["max_runs=3"], "run.schedule: max_runs = 3 does nothing without cron"),
        (["cron=0 3 * * *", "start=tomorrow"], "start = 'tomorrow' is not a time; write it as 2027-01-31T03:00"),
        (["cron=0 3 * * *", "start=2027-01-02", "end=2027-01-01"], "end = 2027-01-01 is not after start = 2027-01-02"),
        (["cron=0 3 * * *", "max_concurrent_runs=0"], "Input should be greater than 0"),
    ],
)
def test_what_does_not_fit_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, [f"run.schedule.{one}" for one in assignments])
