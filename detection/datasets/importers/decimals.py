"""Normalised float32 coordinates back to the decimals they were written from."""

import numpy as np

MAX_PLACES = 6
_LARGEST_SHARE = 1e9  # no drawn object is that far outside; float32 ends later


def is_drawable(*shares: float) -> bool:
    """Whether normalised coordinates can be of something in or near an image: finite, not absurdly far."""
    return all(abs(share) < _LARGEST_SHARE for share in shares)  # false for NaN


def pixels_of_share(share: float, size: int) -> tuple[float, int]:
    """The shortest decimal number of pixels that gives a normalised coordinate.

    A decimal of two places comes back exactly wherever float32 tells such decimals
    apart: in images of up to 80,000 pixels.

    Args:
        share: float32 value, pixels / size; drawable.
        size: of the image along the axis, pixels; > 0.

    Returns:
        The number with the fewest places, up to 6, whose quotient by `size` is the
        same float32 (6 places where there is none), and its places.
    """
    goal = np.float32(share)
    exact = share * size
    for places in range(MAX_PLACES + 1):
        pixels = round(exact, places)
        if np.float32(pixels / size) == goal:
            return pixels, places
    return round(exact, MAX_PLACES), MAX_PLACES


def coco_box(xmin: float, ymin: float, xmax: float, ymax: float, *, height: int, width: int) -> list[float] | None:
    """A COCO box (x, y, width, height) in pixels, of float32 corners that are normalised.

    Args:
        xmin: left side / `width`.
        ymin: upper side / `height`.
        xmax: right side / `width`.
        ymax: lower side / `height`.
        height: of the image, pixels; > 0.
        width: of the image, pixels; > 0.

    Returns:
        The box; None where a corner is not drawable.
    """
    if not is_drawable(xmin, ymin, xmax, ymax):
        return None
    x, box_width = _span(xmin, xmax, width)
    y, box_height = _span(ymin, ymax, height)
    return [x, y, box_width, box_height]


def _span(low: float, high: float, size: int) -> tuple[float, float]:
    start, start_places = pixels_of_share(low, size)
    end, end_places = pixels_of_share(high, size)
    return start, round(end - start, max(start_places, end_places))
