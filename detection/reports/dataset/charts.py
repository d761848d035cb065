"""The report's histograms, as coordinates for the page's charts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detection.datasets.statistics import Counts
from detection.reports.html.plot import Bar, Tick, bar_between

_LEAST_BINS = 10  # shown of a histogram, so that a single bar is not a wall
_TICK_SPACE = 0.099  # of the axis: room for a label on a phone
_PERCENT_STEPS = (0.5, 1, 2, 5, 10, 20)  # between ticks
_BETWEEN = 0.05  # of a bin: space on either side of its bars


class Histogram(NamedTuple):
    """A histogram of several splits.

    counts: name of the split -> int64 [N + 1].
    edges: the N inner edges of the bins, ascending.
    ticks: value -> its label on the axis.
    xlabel: what is counted, with its unit.
    fraction_of: what the counts add up to, such as "images".
    marks: value -> label of a line that is drawn there.
    single: each bin is a whole number, not a range: bin i holds i, the last all from
        there on, and there are no ticks to name.
    """

    counts: Mapping[str, Counts]
    edges: Sequence[float]
    ticks: Mapping[float, str]
    xlabel: str
    fraction_of: str
    marks: Mapping[float, str] = {}
    single: bool = False


class Plot(NamedTuple):
    """A histogram as the page draws it: the bars of each split side by side; the y axis is in percent of the split."""

    bars: Mapping[str, Sequence[Bar]]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    marks: Sequence[Tick]
    xlabel: str
    ylabel: str


def plot_of(histogram: Histogram) -> Plot:
    """Lays out the fractions of each split, for the bins between the first and the last that are not empty."""
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
        _spaced(shown(numbers if histogram.single else positions(histogram.ticks))),
        [Tick(tick / steps, f"{step * tick:g}") for tick in range(steps + 1)],
        shown(positions(histogram.marks)),
        histogram.xlabel,
        f"% of {histogram.fraction_of}",
    )


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


def _spaced(ticks: Sequence[Tick]) -> list[Tick]:
    """Drops ticks whose labels would touch the one before."""
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick.at - kept[-1].at >= _TICK_SPACE:
            kept.append(tick)
    return kept
