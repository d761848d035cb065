"""Cron expressions and time zones."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from schemas.config.config_io import load_config
from schemas.config.recurrence import CommonCronExpression, TimeZone, weekdays
from schemas.errors import ConfigError


def cron(expression: str) -> str:
    return TypeAdapter(CommonCronExpression).validate_python(expression)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)).map(sorted), min_size=1, max_size=3))
def test_weekdays_are_those_listed_with_sunday_as_0(ranges: list[list[int]]) -> None:
    expression = "0 3 * * " + ",".join(f"{first}-{last}" for first, last in ranges)
    assert weekdays(expression) == sorted({day % 7 for first, last in ranges for day in range(first, last + 1)})


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("0 3 * *", "has 4 fields; a cron expression has five, minute, hour"),
        ("@daily", "has 1 fields"),
        ("0 3 * * * *", "has 6 fields"),
        ("60 * * * *", "is not a cron expression: Bad minute; its fields are minute"),
        ("0 24 * * *", "Bad hour"),
        ("0 0 0 * *", "Bad day-of-month"),
        ("0 0 * mon *", "Bad month"),
        ("0 0 * * 8", "Bad day-of-week"),
        ("5-1 * * * *", "Bad minute"),
        ("*/0 * * * *", "Bad minute"),
        ("1, * * * *", "Bad minute"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("0 0 L * *", "not every platform supports L and #"),
        ("0 0 * * 5L", "not every platform supports L and #"),
        ("0 0 * * 1#2", "not every platform supports L and #"),
    ],
)
def test_an_invalid_expression_is_told(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        cron(expression)


@pytest.mark.parametrize("expression", ["*/20 20/2 1,15 JAN-jul wed,5-7", "0 0 29 2 *", "0 3 * 7 1-5/2"])
def test_a_common_expression_is_taken(expression: str) -> None:
    assert cron(expression) == expression


def test_the_configurations_types() -> None:
    assert cron(" 0  3 * * 1-5 ") == "0 3 * * 1-5"
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
