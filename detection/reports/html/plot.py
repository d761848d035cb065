"""Charts of pages, as coordinates for the SVG of `charts.html.j2`.

The page draws its charts itself, so they follow its dark and print colours, their text is readable on
phones, and scripts can add a curve.
"""

from typing import NamedTuple

# Size of the plotting area in the SVG's units.
WIDTH, HEIGHT = 440, 320

SERIES = 5  # number of fill colours in style.css


class Tick(NamedTuple):
    """A labelled position on an axis; `at` is a fraction of the axis, 0..1."""

    at: float
    label: str


# Ticks of an axis from zero to one.
UNIT_TICKS = [Tick(tick / 5, f"{tick / 5:.1f}") for tick in range(6)]


class Bar(NamedTuple):
    """An upright bar from the lower edge, in the SVG's units."""

    x: float
    y: float
    width: float
    height: float


def bar_between(low: float, high: float, value: float) -> Bar:
    """Returns the bar from `low` to `high` of height `value`, all fractions of the axes; `value` is clipped to 0..1."""
    x, height = WIDTH * low, HEIGHT * min(max(value, 0.0), 1.0)
    return Bar(round(x, 1), round(HEIGHT - height, 1), round(WIDTH * (high - low), 1), round(height, 1))
