"""The report's charts, drawn by matplotlib without its global state (pyplot)."""

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from detection.datasets.statistics import Counts

MOST_NAMES = 120  # categories that a chart can name

# Okabe and Ito's colours, told apart by colour-blind readers as well.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f")
_INK = "#333333"
_FAINT = "#cccccc"
_WIDTH = 6.5  # inches, the 39rem of style.css
_ROW = 0.19  # inches for a category
_ROWS = 40  # categories below each other
_LONGEST_NAME = 24  # characters
_LEAST_BINS = 10  # shown of a histogram, so that a single bar is not a wall
_MOST_TICKS = 12
_WIDE_RANGE = 50  # times as many in the largest as in the median category: a logarithmic scale


class Histogram(NamedTuple):
    """A histogram of several splits.

    counts: name of the split -> int64 [N + 1].
    edges: the N inner edges of the bins, ascending.
    ticks: value -> its label on the axis.
    xlabel: what is counted, with its unit.
    fraction_of: what the counts add up to, such as "images".
    marks: value -> label of a line that is drawn there.
    single: each bin is a whole number, not a range: bin i holds i, the last what is
        beyond, and there are no ticks to name.
    """

    counts: Mapping[str, Counts]
    edges: Sequence[float]
    ticks: Mapping[float, str]
    xlabel: str
    fraction_of: str
    marks: Mapping[float, str] = {}
    single: bool = False


def histogram_figure(histogram: Histogram) -> Figure:
    """Fractions of each split, side by side, for the bins that are not empty."""
    figure, (axes,) = _figure(height=2.9)
    first, last = _shown_bins(histogram)
    bins = np.arange(first, last)
    width = 0.9 / len(histogram.counts)
    for index, (split, counts) in enumerate(histogram.counts.items()):
        fractions = counts[first:last] / max(int(counts.sum()), 1)
        axes.bar(bins + 0.05 + index * width, fractions, width, align="edge", color=_color(index), label=split)
    for value, label in histogram.marks.items():
        at = _bin_position(value, histogram.edges)
        if first <= at <= last:
            axes.axvline(at, color=_INK, linewidth=1, linestyle="--")
            axes.annotate(
                label, (at, 1), (3, 0), ("data", "axes fraction"), "offset points", va="top", color=_INK, fontsize=8
            )
    ticks = _number_ticks(first, last, len(histogram.edges)) if histogram.single else _value_ticks(histogram)
    shown = {at: label for at, label in ticks.items() if first <= at <= last}
    axes.set_xticks(list(shown), list(shown.values()))
    axes.set_xlim(first, last)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.08)
    axes.grid(axis="y", color=_FAINT, linewidth=0.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{100 * fraction:.3g} %"))
    _name_axes(axes, histogram.xlabel, f"fraction of {histogram.fraction_of}")
    _legend(figure, len(histogram.counts))
    return figure


def category_figure(counts: Mapping[str, Sequence[int]], names: Sequence[str], *, what: str) -> Figure:
    """Counts by category: bars with names, or, of more than MOST_NAMES, a curve without.

    Args:
        counts: name of the split -> one count for each category.
        names: of the categories, in the order of the chart.
        what: is counted, such as "annotations".
    """
    if len(names) > MOST_NAMES:
        return _rank_figure(counts, what)
    columns = max(1, math.ceil(len(names) / _ROWS))
    rows = math.ceil(len(names) / columns)
    figure, panels = _figure(height=0.9 + _ROW * max(rows, 3), columns=columns)
    everything = [count for column in counts.values() for count in column]
    for column, axes in enumerate(panels):
        part = slice(column * rows, (column + 1) * rows)
        _name_bars(axes, {split: values[part] for split, values in counts.items()}, names[part], rows)
        _count_scale(axes, everything, axis="x")
        _name_axes(axes, what, "")
    _legend(figure, len(counts))
    return figure


def svg_of(figure: Figure) -> bytes:
    """A figure as SVG; equal figures give equal bytes.  The reader's fonts show the text, in any script."""
    stream = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "data report", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return stream.getvalue()


def _figure(*, height: float, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=_INK)
        axes.set_axisbelow(True)
    return figure, list(panels)


def _color(index: int) -> str:
    return _COLORS[index % len(_COLORS)]


def _name_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9, color=_INK)
    axes.set_ylabel(y, fontsize=9, color=_INK)


def _legend(figure: Figure, splits: int) -> None:
    if splits > 1:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        names = [_shortened(label) for label in labels]
        legend = figure.legend(handles, names, loc="outside upper left", ncols=6, fontsize=8, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)


def _bin_position(value: float, edges: Sequence[float]) -> float:
    """Maps a value to an axis on which bin i reaches from i to i + 1; between edges by its logarithm."""
    return float(np.interp(np.log2(value), np.log2(edges), np.arange(1, len(edges) + 1)))


def _shown_bins(histogram: Histogram) -> tuple[int, int]:
    """First bin that is shown, and the one after the last."""
    bins = len(histogram.edges) + 1
    used = np.flatnonzero(np.sum(list(histogram.counts.values()), axis=0))
    first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 1)
    missing = max(0, _LEAST_BINS - (last - first))
    first = max(0, min(first - missing // 2, bins - _LEAST_BINS))
    return first, min(bins, max(last, first + _LEAST_BINS))


def _value_ticks(histogram: Histogram) -> dict[float, str]:
    return {_bin_position(value, histogram.edges): label for value, label in histogram.ticks.items()}


def _number_ticks(first: int, last: int, beyond: int) -> dict[float, str]:
    """In the middle of bins: multiples of the smallest round number that leaves room for labels."""
    step = next(step for step in (1, 2, 5, 10) if last - first <= step * _MOST_TICKS)
    return {number + 0.5: f"{number}+" if number == beyond else str(number) for number in range(0, last, step)}


def _name_bars(axes: Axes, counts: Mapping[str, Sequence[int]], names: Sequence[str], rows: int) -> None:
    height = 0.8 / len(counts)
    for index, (split, values) in enumerate(counts.items()):
        places = np.arange(len(values)) - 0.4 + index * height
        axes.barh(places, values, height, align="edge", color=_color(index), label=split)
    axes.set_yticks(range(len(names)), [_shortened(name) for name in names], parse_math=False)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=_FAINT, linewidth=0.5)


def _rank_figure(counts: Mapping[str, Sequence[int]], what: str) -> Figure:
    figure, (axes,) = _figure(height=3.2)
    everything = [count for column in counts.values() for count in column]
    for index, (split, values) in enumerate(counts.items()):
        ranked = sorted(values, reverse=True)
        axes.stairs(ranked, np.arange(len(ranked) + 1), color=_color(index), label=split, fill=len(counts) == 1)
    _count_scale(axes, everything, axis="y")
    axes.set_xlim(0, len(next(iter(counts.values()), ())))
    _name_axes(axes, "categories, the most frequent of each split first", what)
    axes.grid(axis="y", color=_FAINT, linewidth=0.5)
    _legend(figure, len(counts))
    return figure


def _count_scale(axes: Axes, counts: Sequence[int], *, axis: str) -> None:
    """The same scale from zero on for every panel; logarithmic above one where counts differ much."""
    most = max(counts, default=0)
    present = sorted(count for count in counts if count)
    wide = bool(present) and most > _WIDE_RANGE * present[len(present) // 2]
    set_scale, set_limits = (axes.set_xscale, axes.set_xlim) if axis == "x" else (axes.set_yscale, axes.set_ylim)
    if wide:
        set_scale("symlog", linthresh=1, linscale=0.4)
    set_limits(0, max(most, 1) * (1.6 if wide else 1.04))
    numbers = axes.xaxis if axis == "x" else axes.yaxis
    numbers.set_major_formatter(FuncFormatter(lambda value, _: _short_count(value)))


def _short_count(value: float) -> str:
    """12, 1.5k, 20M; nothing for what is no whole number."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:.0f}" if value == round(value) else ""


def _shortened(name: str) -> str:
    # XML has no control characters.
    name = "".join(character if character.isprintable() else "\ufffd" for character in name)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
