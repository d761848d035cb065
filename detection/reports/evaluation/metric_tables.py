"""Tables of metrics, overall and per category, and the formats of numbers; a dash for undefined values."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from detection.analysis.analysis_file import ERROR_TYPES, Analysis, Category, Interval, OperatingPoint
from detection.coco.metrics import UNDEFINED
from detection.reports.html.table import DASH, Cell, Number, Table, shown_name
from schemas.metrics import main_metrics, metrics_by_name

FIRST = "AP"  # the main metric, shown first

UNCLEAR = "not significant"

_MINUS = "\u2212"


def is_defined(value: float | None) -> TypeGuard[float]:
    """Returns whether a metric is defined: not None, -1 or NaN."""
    return value is not None and math.isfinite(value) and value != UNDEFINED


def metric_text(value: float | None) -> str:
    """Formats a metric, such as "0.412"."""
    return f"{value:.3f}" if is_defined(value) else DASH


def change_text(change: float | None) -> str:
    """Formats a change, such as "+0.012", with a true minus sign, and no sign if it rounds to zero."""
    if change is None or not math.isfinite(change):
        return DASH
    text = f"{abs(change):.3f}"
    sign = "" if float(text) == 0 else "+" if change > 0 else _MINUS
    return sign + text


def fraction_text(fraction: float | None) -> str:
    """Formats a fraction, such as "12.5 %"."""
    return DASH if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.1f} %"


def metric_cell(value: float | None, *, bar: bool = False) -> Number:
    """Returns a cell for a metric in 0..1, optionally with a bar of its length."""
    if is_defined(value):
        return Number(metric_text(value), value, min(max(value, 0.0), 1.0) if bar else None)
    return Number(DASH, None)


def difference(value: float | None, before: float | None) -> float | None:
    """Returns the change of a metric; None if either is undefined."""
    return value - before if is_defined(value) and is_defined(before) else None


def change_cell(change: float | None, *, significant: bool = False) -> Number:
    """Returns a cell for a change; if significant, its colour marks a gain or a loss."""
    if change is None:
        return Number(DASH, None)
    return Number(change_text(change), change, tone=("good" if change > 0 else "bad") if significant else "")


def count_change_cell(change: int) -> Number:
    """Returns a cell for a change of a count, such as "+1,200"."""
    return Number(f"{'+' if change > 0 else _MINUS if change else ''}{abs(change):,}", change)


def interval_text(interval: Interval | None, *, signed: bool = False) -> str:
    """Formats an interval, such as "0.401 to 0.423", or signed "+0.001 to +0.020"."""
    if interval is None or not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return DASH
    text = change_text if signed else metric_text
    return f"{text(interval.low)} to {text(interval.high)}"


def interval_cell(interval: Interval | None, *, signed: bool = False) -> Number:
    """Returns a cell for an interval, sorted by its lower bound."""
    return Number(interval_text(interval, signed=signed), interval.low if interval else None)


def is_significant(interval: Interval | None) -> bool:
    """Returns whether the interval of a change does not contain zero."""
    return interval is not None and (interval.low > 0 or interval.high < 0)


def fraction_cell(part: int, of: int, *, bar: bool = False) -> Number:
    """Returns a cell for the fraction `part` / `of`."""
    fraction = part / of if of else None
    return Number(fraction_text(fraction), fraction, fraction if bar else None)


def judgement(change: Interval | None) -> str:
    """Returns "better", "worse" or UNCLEAR from the interval of a change; "" without one."""
    if change is None:
        return ""
    if not is_significant(change):
        return UNCLEAR
    return "better" if change.low > 0 else "worse"


def metric_table(analysis: Analysis) -> Table:
    """Returns one row per metric: value, interval and, with a baseline, the difference and its significance."""
    percent = f"{100 * analysis.confidence:g} %"
    header = ["metric", "value", f"{percent} interval"]
    if analysis.baseline_metrics:
        header += ["baseline", "difference", f"its {percent} interval", "judgement"]
    return Table("", header, [_metric_row(analysis, name) for name in analysis.metrics])


def _metric_row(analysis: Analysis, name: str) -> list[Cell]:
    value = analysis.metrics[name]
    row: list[Cell] = [name, metric_cell(value, bar=True), interval_cell(analysis.intervals.get(name))]
    if analysis.baseline_metrics:
        before, interval = analysis.baseline_metrics.get(name), analysis.differences.get(name)
        change = change_cell(difference(value, before), significant=is_significant(interval))
        row += [metric_cell(before), change, interval_cell(interval, signed=True), judgement(interval)]
    return row


def slice_table(slices: Sequence[Mapping[str, Any]]) -> Table:
    """Returns one row per slice: number of images, and the main metrics.

    Args:
        slices: entries `slice`, `images` and `metrics` of a metrics file, at least one.
    """
    named = [metrics_by_name(one["metrics"]) for one in slices]
    names = main_metrics(named[0])
    rows: list[list[Cell]] = [
        [shown_name(one["slice"]), one["images"], *(metric_cell(metrics[name], bar=True) for name in names)]
        for one, metrics in zip(slices, named, strict=True)
    ]
    return Table("", ["slice", "images", *names], rows)


def category_table(analysis: Analysis) -> Table:
    """Returns one row per category, the lowest AP first, categories without ground truth last.

    The other metrics and counts come last, on the right, where a narrow window hides them.
    """
    metrics = list(dict.fromkeys(name for category in analysis.categories for name in category.metrics))
    compared = any(category.baseline_metrics for category in analysis.categories)
    header = [
        "category",
        "id",
        *metrics[:1],
        *([f"{FIRST} difference"] if compared else []),
        "ground truth",
        "main error",
        "best F1",
        "at score",
        "precision",
        "recall",
        "calibration error",
        *metrics[1:],
        "images",
        "detections",
    ]
    return Table("", header, [_category_row(category, metrics, compared) for category in ordered_categories(analysis)])


def ordered_categories(analysis: Analysis) -> list[Category]:
    """Returns the categories, the lowest AP first, undefined ones last."""

    def rank(category: Category) -> tuple[float, int]:
        value = category.metrics.get(FIRST)
        return (value if is_defined(value) else 2.0, category.id)

    return sorted(analysis.categories, key=rank)


def main_error(category: Category) -> tuple[str, int] | None:
    """Returns the most frequent error type of a category and its count, the first in a tie; None without errors."""
    name = max(ERROR_TYPES, key=lambda name: category.errors.get(name, 0))
    count = category.errors.get(name, 0)
    return (name, count) if count else None


def main_error_text(category: Category) -> str | None:
    """Describes the main error, such as "missed ground truth (5 of 8)"; None without errors."""
    error = main_error(category)
    return f"{ERROR_TYPES[error[0]]} ({error[1]:,} of {sum(category.errors.values()):,})" if error else None


def _category_row(category: Category, metrics: list[str], compared: bool) -> list[Cell]:
    change = difference(category.metrics.get(FIRST), category.baseline_metrics.get(FIRST))
    values = [metric_cell(category.metrics.get(name), bar=name == FIRST) for name in metrics]
    return [
        shown_name(category.name),
        Number(str(category.id), category.id),
        *values[:1],
        *([change_cell(change)] if compared else []),
        category.ground_truth,
        main_error_text(category),
        *_operating_point(category.best),
        metric_cell(category.calibration_error),
        *values[1:],
        category.images,
        category.detections,
    ]


def _operating_point(best: OperatingPoint | None) -> list[Cell]:
    if best is None:
        return [None] * 4
    return [metric_cell(value) for value in (best.f1, best.score, best.precision, best.recall)]
