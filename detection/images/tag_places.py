"""Where the tags of boxes go on a picture, so that the stronger ones stay readable."""

from collections.abc import Sequence
from typing import NamedTuple

_HIDDEN_SHARE = 0.25  # a tag that would cover more of others than this is left out


class Rectangle(NamedTuple):
    """Pixels; left and top inside, right and bottom just outside."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        """Square pixels."""
        return (self.right - self.left) * (self.bottom - self.top)

    def overlap(self, other: "Rectangle") -> float:
        """Area that both cover, square pixels."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(width, 0.0) * max(height, 0.0)


def frame_of(box_xywh: Sequence[float], width: float, height: float) -> Rectangle:
    """A box (x, y, width, height) cut to a picture of `width` by `height` pixels; at least one pixel stays."""
    x, y, w, h = box_xywh
    left, top = min(max(x, 0.0), width - 1), min(max(y, 0.0), height - 1)
    right, bottom = min(max(x + w, left + 1), width), min(max(y + h, top + 1), height)
    return Rectangle(left, top, right, bottom)


def place_tags(
    frames: Sequence[Rectangle], widths: Sequence[float], height: float, picture: tuple[float, float]
) -> list[Rectangle | None]:
    """Places a tag at each frame.

    Args:
        frames: the boxes, the strongest first: it chooses its place first.
        widths: of the tags, pixels; 0: the frame has none.
        height: of every tag, pixels.
        picture: its width and height, pixels.

    Returns:
        A place a frame; None where there is no tag, or it would hide too much of
        those before it.
    """
    taken: list[Rectangle] = []
    places: list[Rectangle | None] = []
    for frame, width in zip(frames, widths, strict=True):
        place = _place(frame, width, height, picture, taken) if width else None
        if place and sum(place.overlap(other) for other in taken) > _HIDDEN_SHARE * place.area:
            place = None
        places.append(place)
        if place:
            taken.append(place)
    return places


def _place(
    frame: Rectangle, width: float, height: float, picture: tuple[float, float], taken: Sequence[Rectangle]
) -> Rectangle:
    """Above the frame, inside it, or below: where it fits and hides the least of other tags."""
    places = []
    for top in (frame.top - height, frame.top, frame.bottom, frame.bottom - height):
        for left in (frame.left, frame.right - width):
            x = min(max(left, 0.0), max(picture[0] - width, 0.0))
            y = min(max(top, 0.0), max(picture[1] - height, 0.0))
            places.append(Rectangle(x, y, x + width, y + height))
    return min(places, key=lambda place: sum(place.overlap(other) for other in taken))
