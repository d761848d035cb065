"""Charts of the report: curves, bars and the confusion matrix, as coordinates and fractions for the page."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detection.analysis.analysis_file import Analysis, Calibration, Category, Confusion
from detection.reports.box_styles import category_name
from detection.reports.evaluation.metric_tables import fraction_cell, is_defined, ordered_categories
from detection.reports.html.plot import HEIGHT, WIDTH, Bar, bar_between
from detection.reports.html.table import Cell, Table, shown_name

MOST_CATEGORIES = 20  # max categories of the heat map
MOST_PAIRS = 30

NO_OBJECT, NOT_FOUND = "background (FP)", "missed (FN)"


class Curve(NamedTuple):
    """A curve: name and `points` of an SVG polyline."""

    name: str
    points: str


def mean_curves(analysis: Analysis) -> list[Curve]:
    """Returns precision over recall, as mean over categories, one curve per name of IoU thresholds."""
    return [Curve(f"IoU {name}", polyline(analysis.recall, values)) for name, values in _defined(analysis).items()]


def curves_text(analysis: Analysis) -> str:
    """Describes the mean curves: the area below each."""
    means = [
        f"IoU {name}: mean precision {sum(values) / len(values):.3f}" for name, values in _defined(analysis).items()
    ]
    return f"{'; '.join(means)}."


def category_curves(analysis: Analysis) -> list[tuple[str, list[int]]]:
    """Returns (name, precision in thousandths at each recall) of the categories with a curve, by name."""
    curves = [
        (_choice(category), [round(1000 * value) for value in category.precision])
        for category in ordered_categories(analysis)
        if category.precision and all(map(is_defined, category.precision))
    ]
    return sorted(curves, key=lambda curve: curve[0].casefold())


def reliability_bars(calibration: Calibration) -> list[Bar]:
    """Returns the precision of each bin with detections."""
    return [bar_between(part.low, part.high, part.precision) for part in calibration.bins if part.count]


def count_bars(calibration: Calibration) -> list[Bar]:
    """Returns the number of detections of each bin; the max has the height of the chart."""
    most = max((part.count for part in calibration.bins), default=0)
    return [bar_between(part.low, part.high, part.count / most) for part in calibration.bins if part.count]


def _defined(analysis: Analysis) -> dict[str, list[float]]:
    return {name: values for name, values in analysis.curves.items() if values and all(map(is_defined, values))}


def polyline(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Returns the points of an SVG polyline; `xs` and `ys` are fractions of the axes."""
    return " ".join(f"{WIDTH * x:.1f},{HEIGHT * (1 - y):.1f}" for x, y in zip(xs, ys, strict=True))


def _choice(category: Category) -> str:
    return f"{shown_name(category.name)} ({category.ground_truth:,} instances)"


class HeatCell(NamedTuple):
    """A cell: count, fraction of its row, and whether it is on the diagonal."""

    times: int
    fraction: float
    diagonal: bool


class HeatMap(NamedTuple):
    """The confusion matrix of some categories.

    columns: names; the last is NOT_FOUND.
    rows: (name, one cell per column); the last is NO_OBJECT.
    left_out: number of categories not shown.
    """

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[HeatCell]]]
    left_out: int


def heat_map(confusion: Confusion, names: Mapping[int, str]) -> HeatMap:
    """Returns the categories with the most confusions, in their original order; fractions are of complete rows."""
    matrix = np.asarray(confusion.matrix, np.int64)
    categories = len(confusion.category_ids)
    shown = [*_most_confused(matrix, categories), categories]
    labels = [_label(confusion, index, names) for index in shown[:-1]]
    rows = [
        (label, [_cell(matrix, row, column, categories) for column in shown])
        for label, row in zip([*labels, NO_OBJECT], shown, strict=True)
    ]
    return HeatMap([*labels, NOT_FOUND], rows, categories - len(labels))


class Pair(NamedTuple):
    """A pair of categories: ground truth of one, detected as the other `times` times, out of `of` instances."""

    ground_truth: str
    detected: str
    times: int
    of: int

    @property
    def fraction(self) -> float:
        """Fraction of the ground truth, 0..1."""
        return self.times / self.of


def most_confused_pair(confusion: Confusion, names: Mapping[int, str]) -> Pair | None:
    """Returns the most frequently confused pair; None without confusion of categories."""
    return next(iter(_pairs(confusion, names, most=1)), None)


def pair_table(confusion: Confusion, names: Mapping[int, str]) -> Table:
    """Returns pairs of categories by how often the first is detected as the second, then by the fraction."""
    rows: list[list[Cell]] = [
        [pair.ground_truth, pair.detected, pair.times, fraction_cell(pair.times, pair.of, bar=True)]
        for pair in _pairs(confusion, names, most=MOST_PAIRS)
    ]
    return Table("", ("ground truth", "detected as", "count", "fraction of its ground truth"), rows)


def _pairs(confusion: Confusion, names: Mapping[int, str], *, most: int) -> list[Pair]:
    matrix = np.asarray(confusion.matrix, np.int64)
    categories = len(confusion.category_ids)
    between = _off_diagonal(matrix, categories)
    fractions = between / np.maximum(matrix[:categories].sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-fractions.ravel(), -between.ravel()))[:most]
    return [
        Pair(
            _label(confusion, row, names),
            _label(confusion, column, names),
            int(matrix[row, column]),
            int(matrix[row].sum()),
        )
        for row, column in (divmod(int(index), categories) for index in order if between.flat[index])
    ]


def _most_confused(matrix: npt.NDArray[np.int64], categories: int) -> list[int]:
    between = _off_diagonal(matrix, categories)
    confused = between.sum(axis=0) + between.sum(axis=1)
    objects = matrix[:categories].sum(axis=1)
    order = np.lexsort((np.arange(categories), -objects, -confused))
    return sorted(order[:MOST_CATEGORIES].tolist())


def _off_diagonal(matrix: npt.NDArray[np.int64], categories: int) -> npt.NDArray[np.int64]:
    between = matrix[:categories, :categories].copy()
    np.fill_diagonal(between, 0)
    return between


def _cell(matrix: npt.NDArray[np.int64], row: int, column: int, categories: int) -> HeatCell:
    count, together = int(matrix[row, column]), int(matrix[row].sum())
    return HeatCell(count, count / together if together else 0.0, row == column and row < categories)


def _label(confusion: Confusion, index: int, names: Mapping[int, str]) -> str:
    return category_name(confusion.category_ids[index], names)
