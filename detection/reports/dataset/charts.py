"""The report's histograms, as coordinates for the page's charts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detection.datasets.statistics import Counts
from detection.reports.html.plot import Bar, Tick, bar_between

_LEAST_BINS = 10  # min bins shown, so that a single bar does not fill the chart
_TICK_SPACE = 0.099  # fraction of the axis: space for a label on a phone
_PERCENT_STEPS = (0.5, 1, 2, 5, 10, 20)  # between ticks
_BETWEEN = 0.05  # fraction of a bin: space on either side of its bars


class Histogram(NamedTuple):
    """A histogram of several splits.

    counts: name of the split -> int64 [N + 1].
    edges: the N inner edges of the bins, ascending.
    ticks: value -> label on the axis.
    xlabel: the counted quantity, with its unit.
    fraction_of: the total of the counts, such as "images".
    marks: value -> label of a vertical line.
    single: each bin is an integer, not a range: bin i counts i, the last one also all larger
        numbers, and `ticks` is empty.
    """

    counts: Mapping[str, Counts]
    edges: Sequence[float]
    ticks: Mapping[float, str]
    xlabel: str
    fraction_of: str
    marks: Mapping[float, str] = {}
    single: bool = False


class Plot(NamedTuple):
    """A histogram for the page: bars of each split side by side; the y axis is in percent of the split."""

    bars: Mapping[str, Sequence[Bar]]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    marks: Sequence[Tick]
    xlabel: str
    ylabel: str


def plot_of(histogram: Histogram) -> Plot:
    """Computes the fractions of each split, for the bins from the first to the last that is not empty."""
    first, last = _shown_bins(histogram)
    percents = {split: 100 * counts / max(int(counts.sum()), 1) for split, counts in histogram.counts.items()}
    most = max(float(column.max()) for column in percents.values())
    step = next(step for step in _PERCENT_STEPS if most <= 5 * step)
    steps = max(1, math.ceil(most / step))
    width = (1 - 2 * _BETWEEN) / len(percents)

    def bar(index: int, position: int, percent: float) -> Bar:
        left = position + _BETWEEN + index * width
        low, high = ((at - first) / (last - first) for at in (left, left + width))
        return bar_between(low, high, percent / (step * steps))

    def shown(ticks: Iterable[tuple[float, str]]) -> list[Tick]:
        return [Tick((at - first) / (last - first), label) for at, label in ticks if first <= at <= last]

    def positions(labels: Mapping[float, str]) -> list[tuple[float, str]]:
        return [(_bin_position(value, histogram.edges), label) for value, label in labels.items()]

    beyond = len(histogram.edges)
    numbers = [(at + 0.5, f"{at}{'+' * (at == beyond)}") for at in range(beyond + 1)]
    return Plot(
        {
            split: [bar(index, at, column[at]) for at in range(first, last) if column[at]]
            for index, (split, column) in enumerate(percents.items())
        },
        _space_evenly(shown(numbers if histogram.single else positions(histogram.ticks))),
        [Tick(tick / steps, f"{step * tick:g}") for tick in range(steps + 1)],
        shown(positions(histogram.marks)),
        histogram.xlabel,
        f"% of {histogram.fraction_of}",
    )


def _bin_position(value: float, edges: Sequence[float]) -> float:
    """Maps a value to an axis with bin i from i to i + 1; logarithmic between edges."""
    return float(np.interp(np.log2(value), np.log2(edges), np.arange(1, len(edges) + 1)))


def _shown_bins(histogram: Histogram) -> tuple[int, int]:
    """Returns the first bin to show, and one past the last."""
    bins = len(histogram.edges) + 1
    used = np.flatnonzero(np.sum(list(histogram.counts.values()), axis=0))
    first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 1)
    missing = max(0, _LEAST_BINS - (last - first))
    first = max(0, min(first - missing // 2, bins - _LEAST_BINS))
    return first, min(bins, max(last, first + _LEAST_BINS))


def _space_evenly(ticks: Sequence[Tick]) -> list[Tick]:
    """Drops ticks whose labels would touch the previous one."""
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick.at - kept[-1].at >= _TICK_SPACE:
            kept.append(tick)
    return kept
