"""Example pictures of issues: small, with the box drawn."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from detection.datasets.issues import Issue
from detection.images.drawing import draw_detections, eight_bit_rgb

LONGEST_SIDE = 320  # pixels

_COLOR_ID = 0  # red, of drawing's colours
_MARGIN = 0.5  # of the image's sides: how far beyond the image a box is shown
_GROUND = (128, 128, 128)  # beyond the image
_COLORS = 256  # of the palette: a quarter of the bytes of full colour


@dataclass(frozen=True)
class IssuePicture:
    """An image with an issue, as a small PNG.

    issue: of the image.
    png: the encoded picture, neither side longer than LONGEST_SIDE.
    """

    issue: Issue
    png: bytes


def picture_of(encoded: bytes, issue: Issue, bbox: Sequence[float] | None, *, max_pixels: int) -> IssuePicture | None:
    """Renders an image with an issue.  Never raises, whatever the bytes are.

    Args:
        encoded: the image file's content.
        issue: of the image.
        bbox: box to draw, (x, y, width, height) in pixels of the image as stored; a
            box that reaches beyond the image is shown on grey around it.
        max_pixels: images with more, by their header, are not decoded.

    Returns:
        None if the image cannot be decoded or is too large.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            width, height = image.size
            if not 0 < width * height <= max_pixels:
                return None
            return IssuePicture(issue, _png(image, _usable(bbox)))
    except Exception:  # Pillow raises whatever its format plugins raise
        return None


Rectangle = tuple[float, float, float, float]  # x, y, width, height


def _usable(bbox: Sequence[float] | None) -> Rectangle | None:
    try:
        x, y, width, height = (float(value) for value in bbox or ())
    except (TypeError, ValueError, OverflowError):
        return None
    return (x, y, width, height) if all(map(math.isfinite, (x, y, width, height))) else None


def _png(image: Image.Image, bbox: Rectangle | None) -> bytes:
    width, height = image.size
    left, right = _reach(bbox and (bbox[0], bbox[2]), width)
    top, bottom = _reach(bbox and (bbox[1], bbox[3]), height)
    scale = min(1.0, LONGEST_SIDE / max(right - left, bottom - top))

    # JPEGs decode at a fraction of the size where that is enough.
    image.draft("RGB", (math.ceil(width * scale), math.ceil(height * scale)))
    small = eight_bit_rgb(image).resize((_scaled(width, scale), _scaled(height, scale)), Image.Resampling.LANCZOS)
    canvas = Image.new("RGB", (_scaled(right - left, scale), _scaled(bottom - top, scale)), _GROUND)
    canvas.paste(small, (round(-left * scale), round(-top * scale)))
    if bbox is not None:
        x, y, w, h = bbox
        shown = [(x - left) * scale, (y - top) * scale, w * scale, h * scale]
        canvas = Image.fromarray(draw_detections(np.asarray(canvas), [shown], [""], category_ids=[_COLOR_ID]))
    stream = io.BytesIO()
    canvas.quantize(_COLORS, Image.Quantize.FASTOCTREE).save(stream, "PNG")
    return stream.getvalue()


def _reach(interval: tuple[float, float] | None, side: int) -> tuple[float, float]:
    """What is shown along one side: the image and, within the margin, an interval (start, length)."""
    start, length = interval or (0.0, 0.0)
    low, high = -_MARGIN * side, (1 + _MARGIN) * side
    return min(0.0, max(start, low)), max(float(side), min(start + length, high))


def _scaled(side: float, scale: float) -> int:
    return max(1, round(side * scale))
