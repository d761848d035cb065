"""How metrics are written."""

import math

import pytest

from detection.analysis.analysis_file import Interval
from detection.reports.evaluation.metric_tables import (
    change_text,
    count_change_cell,
    difference,
    fraction_cell,
    interval_text,
    judgement,
    metric_cell,
    metric_text,
)
from detection.reports.html.table import DASH


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (0.12345, "0.123"), (1.0, "1.000"), (-1.0, DASH), (None, DASH), (math.nan, DASH)],
)
def test_metrics(value: float | None, text: str) -> None:
    assert metric_text(value) == text
    assert metric_cell(value).text == text
    assert (metric_cell(value).value is None) is (text == DASH)


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.0124, "+0.012"), (-0.0126, "\u22120.013"), (0.0001, "0.000"), (-0.0001, "0.000"), (None, DASH)],
)
def test_changes_have_a_sign(change: float | None, text: str) -> None:
    assert change_text(change) == text


def test_changes_of_counts() -> None:
    assert [count_change_cell(change).text for change in (1200, 0, -3)] == ["+1,200", "0", "\u22123"]


def test_an_undefined_metric_has_no_difference() -> None:
    assert difference(0.5, 0.25) == 0.25
    assert difference(0.5, -1.0) is None
    assert difference(-1.0, 0.5) is None
    assert difference(None, 0.5) is None


def test_intervals() -> None:
    interval = Interval(0.1, -0.05, 0.25, 0.9)
    assert interval_text(interval, signed=True) == "\u22120.050 to +0.250"
    assert interval_text(Interval(0.4, 0.3, 0.5, 1.0)) == "0.300 to 0.500"
    assert interval_text(None) == DASH


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.001, 0.2, "better"), (-0.2, -0.001, "worse"), (-0.1, 0.1, "not significant"), (0.0, 0.1, "not significant")],
)
def test_zero_must_lie_outside_of_the_interval(low: float, high: float, text: str) -> None:
    assert judgement(Interval((low + high) / 2, low, high, 0.5)) == text


def test_fractions() -> None:
    assert fraction_cell(1, 8) == ("12.5 %", 0.125, None, "")
    assert fraction_cell(0, 0) == (DASH, None, None, "")
    assert metric_cell(0.25, bar=True).bar == 0.25
