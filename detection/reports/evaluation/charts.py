"""Curves and bars in the unit square, as coordinates for the page's SVG.

They are drawn by the page itself, not by matplotlib as the data report's charts are:
they take the page's colours in the dark and on paper, and a reader can add a curve.
"""

from collections.abc import Sequence
from typing import NamedTuple

from detection.analysis.analysis_file import Analysis, Calibration, Category
from detection.reports.evaluation.category_table import ordered_categories
from detection.reports.evaluation.numbers import is_defined
from detection.reports.html.names import shown_name

# Of the unit square, in the SVG's units.
WIDTH, HEIGHT = 440, 320


class Curve(NamedTuple):
    """A curve: its name and the `points` of an SVG polyline."""

    name: str
    points: str


class Bar(NamedTuple):
    """An upright bar from the lower edge, in the SVG's units."""

    x: float
    y: float
    width: float
    height: float


def mean_curves(analysis: Analysis) -> list[Curve]:
    """Precision over recall, mean over categories, one curve a name of IoU thresholds."""
    return [Curve(f"IoU {name}", _points(analysis.recall, values)) for name, values in _defined(analysis).items()]


def curves_text(analysis: Analysis) -> str:
    """The mean curves in words: the area below each."""
    means = [
        f"IoU {name}: mean precision {sum(values) / len(values):.3f}" for name, values in _defined(analysis).items()
    ]
    return f"{'; '.join(means)}."


def category_curves(analysis: Analysis) -> list[tuple[str, list[int]]]:
    """(name, precision in thousandths at each recall) of the categories that have a curve, by name."""
    curves = [
        (_choice(category), [round(1000 * value) for value in category.precision])
        for category in ordered_categories(analysis)
        if category.precision and all(map(is_defined, category.precision))
    ]
    return sorted(curves, key=lambda curve: curve[0].casefold())


def reliability_bars(calibration: Calibration) -> list[Bar]:
    """The precision of each bin that has detections."""
    return [_bar(part.low, part.high, part.right) for part in calibration.bins if part.count]


def count_bars(calibration: Calibration) -> list[Bar]:
    """The number of detections of each bin, the greatest as high as the chart."""
    most = max((part.count for part in calibration.bins), default=0)
    return [_bar(part.low, part.high, part.count / most) for part in calibration.bins if part.count]


def _defined(analysis: Analysis) -> dict[str, list[float]]:
    return {name: values for name, values in analysis.curves.items() if values and all(map(is_defined, values))}


def _points(xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{WIDTH * x:.1f},{HEIGHT * (1 - y):.1f}" for x, y in zip(xs, ys, strict=True))


def _bar(low: float, high: float, value: float) -> Bar:
    x, height = WIDTH * low, HEIGHT * min(max(value, 0.0), 1.0)
    return Bar(round(x, 1), round(HEIGHT - height, 1), round(WIDTH * (high - low), 1), round(height, 1))


def _choice(category: Category) -> str:
    return f"{shown_name(category.name)} ({category.objects:,} instances)"
