"""Bootstrap intervals of figures and of differences of figures."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from detection.analysis.findings import Interval
from detection.coco.metrics import UNDEFINED
from detection.coco.params import FloatArray

Key = TypeVar("Key")  # a figure's name, or a category's id


def interval(value: float, replicates: FloatArray, confidence: float, *, least: float) -> Interval | None:
    """The interval that the replicates span, moved so that their median lies on the value.

    Resampling raises AP: of images drawn twice the best precision at each recall is
    taken among fewer. With many categories this bias is more than the spread, so the
    plain percentiles would leave the value itself out.

    Args:
        value: a figure, or the difference of two.
        replicates: float64 [B], the same of each replicate, NaN where undefined.
        confidence: the share of the defined replicates that lie inside.
        least: of what the figure can be; the greatest is 1.

    Returns:
        None where no replicate is defined.
    """
    defined = replicates[~np.isnan(replicates)]
    if not defined.size:
        return None
    outside = (1.0 - confidence) / 2.0
    moved = defined - np.median(defined) + value
    low, high = np.clip(np.quantile(moved, [outside, 1.0 - outside]), least, 1.0)
    return Interval(value, float(low), float(high), float((moved > 0.0).mean()))


def figure_intervals(
    figures: Mapping[Key, float], replicates: Mapping[Key, FloatArray], confidence: float
) -> dict[Key, Interval]:
    """Intervals of figures; those that are undefined are left out."""
    found = {
        name: interval(value, replicates[name], confidence, least=0.0)
        for name, value in figures.items()
        if value != UNDEFINED
    }
    return {name: bounds for name, bounds in found.items() if bounds}


def difference_intervals(
    figures: Mapping[Key, float],
    before: Mapping[Key, float],
    replicates: Mapping[Key, FloatArray],
    replicates_before: Mapping[Key, FloatArray],
    confidence: float,
) -> dict[Key, Interval]:
    """Intervals of `figures` minus `before`, from replicates of the same images; undefined figures are left out."""
    found = {
        name: interval(figures[name] - before[name], replicates[name] - replicates_before[name], confidence, least=-1.0)
        for name in figures
        if UNDEFINED not in (figures[name], before[name])
    }
    return {name: bounds for name, bounds in found.items() if bounds}
