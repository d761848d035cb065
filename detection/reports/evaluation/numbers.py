"""Figures as the pages write them; a dash for what is undefined."""

import math

from detection.analysis.analysis_file import Interval
from detection.coco.metric_definitions import UNDEFINED
from detection.reports.html.table import DASH, Number

_MINUS = "\u2212"


def is_defined(value: float | None) -> bool:
    """Whether there is a figure: none is -1, and NaN is none."""
    return value is not None and math.isfinite(value) and value != UNDEFINED


def figure_text(value: float | None) -> str:
    """Such as "0.412"."""
    return DASH if value is None or not is_defined(value) else f"{value:.3f}"


def change_text(change: float | None) -> str:
    """Such as "+0.012", with a true minus sign below zero, and no sign where it rounds to nothing."""
    if change is None or not math.isfinite(change):
        return DASH
    text = f"{abs(change):.3f}"
    sign = "" if float(text) == 0 else "+" if change > 0 else _MINUS
    return sign + text


def share_text(share: float | None) -> str:
    """Such as "12.5 %"."""
    return DASH if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def figure_cell(value: float | None, *, bar: bool = False) -> Number:
    """A figure in 0..1, its bar as long as it is great."""
    if value is None or not is_defined(value):
        return Number(DASH, None)
    return Number(figure_text(value), value, min(max(value, 0.0), 1.0) if bar else None)


def difference(value: float | None, before: float | None) -> float | None:
    """How much greater a figure is than before; None where either is undefined."""
    if value is None or before is None or not (is_defined(value) and is_defined(before)):
        return None
    return value - before


def change_cell(change: float | None, *, significant: bool = False) -> Number:
    """A difference; where it is significant its colour says whether it is welcome."""
    if change is None:
        return Number(DASH, None)
    return Number(change_text(change), change, tone=("good" if change > 0 else "bad") if significant else "")


def count_change_cell(change: int) -> Number:
    """How many more: "+1,200"."""
    return Number(f"{'+' if change > 0 else _MINUS if change else ''}{abs(change):,}", change)


def interval_text(interval: Interval | None, *, signed: bool = False) -> str:
    """Such as "0.401 to 0.423", or with signs "+0.001 to +0.020"."""
    if interval is None or not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return DASH
    text = change_text if signed else figure_text
    return f"{text(interval.low)} to {text(interval.high)}"


def interval_cell(interval: Interval | None, *, signed: bool = False) -> Number:
    """An interval, sorted by its lower bound."""
    return Number(interval_text(interval, signed=signed), interval.low if interval else None)


def is_significant(interval: Interval | None) -> bool:
    """Whether all of a difference's interval lies on one side of zero."""
    return interval is not None and (interval.low > 0 or interval.high < 0)


def share_cell(part: int, of: int, *, bar: bool = False) -> Number:
    """A part of a whole."""
    share = part / of if of else None
    return Number(share_text(share), share, share if bar else None)
