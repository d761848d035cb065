"""Tags of boxes, such as "raccoon: 0.87": their positions, and drawing them."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
_Corners = npt.NDArray[np.float64]

_HIDDEN_FRACTION = 0.25  # tags that would cover a larger fraction of others are dropped
_KEPT_END = 5  # letters of a shortened text, such as " 0.87"
_TAG_WEIGHT = 4.0  # cost of covering another tag, relative to covering a box


class Rectangle(NamedTuple):
    """A rectangle in pixels; left and top are inclusive, right and bottom exclusive."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        """Area in square pixels."""
        return (self.right - self.left) * (self.bottom - self.top)

    def overlap(self, other: "Rectangle") -> float:
        """Returns the area of the intersection in square pixels."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(width, 0.0) * max(height, 0.0)


def frame_of(box_xywh: Sequence[float], width: float, height: float) -> Rectangle:
    """Clips a box (x, y, width, height) to a picture of `width` by `height` pixels; keeps at least one pixel."""
    x, y, w, h = box_xywh
    left, top = min(max(x, 0.0), width - 1), min(max(y, 0.0), height - 1)
    right, bottom = min(max(x + w, left + 1), width), min(max(y + h, top + 1), height)
    return Rectangle(left, top, right, bottom)


def text_color(color: Color) -> Color:
    """Returns black or white, whichever is more readable on a colour (luma of ITU-R BT.601)."""
    red, green, blue = color
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)


def draw_tags(picture: Image.Image, frames: Sequence[Rectangle], colors: Sequence[Color], texts: Sequence[str]) -> None:
    """Draws tags on a picture.

    Args:
        picture: RGB; modified.
        frames: the boxes, the strongest first.
        colors: background of each tag.
        texts: text of each tag; "": no tag.
    """
    font = load_font(min(picture.size))
    draw = ImageDraw.Draw(picture)
    edge = max(3, line_height(font) // 5)  # pixels left and right of the text
    texts = [shorten(text, picture.width - 2 * edge, font.getlength) for text in texts]
    widths = [font.getlength(text) + 2 * edge if text else 0.0 for text in texts]
    places = place_tags(frames, widths, line_height(font) + 2, picture.size)
    for place, color, text in zip(places, colors, texts, strict=True):
        if place:
            draw.rectangle((place.left, place.top, place.right - 1, place.bottom - 1), fill=color)
            draw.text((place.left + edge, (place.top + place.bottom) / 2), text, text_color(color), font, anchor="lm")


def shorten(text: str, width: float, width_of: Callable[[str], float]) -> str:
    """Removes letters before the end of a text, which may be a score, until it fits into a width."""
    head, end = text[:-_KEPT_END], text[-_KEPT_END:]
    if not head or width_of(text) <= width:
        return text
    fitting = bisect_right(range(len(head)), width, key=lambda letters: width_of(f"{head[:letters]}…{end}")) - 1
    return f"{head[: max(fitting, 0)]}…{end}"


def load_font(shorter_side: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Loads the font for a picture with a shorter side of this many pixels; at least 11 pixels high."""
    return ImageFont.load_default(float(max(shorter_side // 40, 11)))


def line_height(font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> int:
    """Returns the height of a line of text, pixels."""
    _, top, _, bottom = font.getbbox("Ag")
    return math.ceil(bottom - top) + 2


def place_tags(
    frames: Sequence[Rectangle], widths: Sequence[float], height: float, picture: tuple[float, float]
) -> list[Rectangle | None]:
    """Places a tag at each frame.

    Each tag gets the position that hides the least: parts of other tags, and fractions of boxes, so it
    is beside a box if there is space, and on a large box rather than on a small one.

    Args:
        frames: the boxes, the strongest first: it chooses its position first.
        widths: widths of the tags in pixels; 0: no tag.
        height: height of every tag in pixels.
        picture: width and height of the picture in pixels.

    Returns:
        A position per frame; None if there is no tag, or it would hide too much of the
        previous ones.
    """
    taken = np.empty((0, 4))
    boxes = np.array(frames, np.float64).reshape(-1, 4)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    places: list[Rectangle | None] = []
    for frame, width in zip(frames, widths, strict=True):
        place = None
        if width:
            candidates = _candidates(frame, width, height, picture)
            hidden = _overlaps(candidates, taken).sum(axis=1) / (width * height)
            best = int(np.argmin(_TAG_WEIGHT * hidden + (_overlaps(candidates, boxes) / areas).sum(axis=1)))
            if hidden[best] <= _HIDDEN_FRACTION:
                place = Rectangle(*candidates[best].tolist())
                taken = np.vstack([taken, candidates[best]])
        places.append(place)
    return places


def _candidates(frame: Rectangle, width: float, height: float, picture: tuple[float, float]) -> _Corners:
    """Returns positions [P, 4] (left, top, right, bottom): above a frame, below, beside and inside it."""
    lefts, tops = (frame.left, frame.right - width), (frame.top, frame.bottom - height)
    corners = [(left, top) for top in (frame.top - height, frame.bottom) for left in lefts]
    corners += [(left, top) for left in (frame.right, frame.left - width) for top in tops]
    corners += [(left, top) for top in tops for left in lefts]
    limit = np.maximum([picture[0] - width, picture[1] - height], 0.0)
    places = np.clip(np.array(corners), 0.0, limit)
    return np.hstack([places, np.add(places, [width, height])])


def _overlaps(places: _Corners, others: _Corners) -> _Corners:
    """Returns the intersection areas [P, N] of rectangles [P, 4] and [N, 4] in square pixels."""
    low = np.maximum(places[:, None, :2], others[None, :, :2])
    high = np.minimum(places[:, None, 2:], others[None, :, 2:])
    return np.prod(np.maximum(high - low, 0.0), axis=2)
