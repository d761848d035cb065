"""Masks as small transparent pictures on top of an image: filled, or outlines."""

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from detection.images.drawing import outline
from detection.images.tags import Color, Rectangle

_OPACITY = 120  # 0 to 255
_OUTLINE: Color = (255, 255, 255)


class Overlay(NamedTuple):
    """A PNG, and its rectangle in pixels of the image."""

    png: bytes
    frame: Rectangle


def mask_overlay(rle: Mapping[str, Any], color: Color, *, scale: float) -> Overlay | None:
    """Returns a mask filled with a colour; None if it is empty.

    Args:
        rle: compressed RLE of the image's size.
        color: (red, green, blue), 0..255.
        scale: size of the picture's pixels on the screen, as a fraction of the image's.
    """
    return _overlay(_decode(rle), color, _OPACITY, scale)


def outline_overlay(rle: Mapping[str, Any], *, scale: float) -> Overlay | None:
    """Returns the pixels of a mask at its boundary, in white; None if it is empty."""
    return _overlay(outline(_decode(rle), 1), _OUTLINE, 255, scale)


def _decode(rle: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    from pycocotools import mask

    return np.asarray(mask.decode(rle), bool)


def _overlay(shown: npt.NDArray[np.bool_], color: Color, opacity: int, scale: float) -> Overlay | None:
    rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
    if not len(rows):
        return None
    top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    picture = Image.fromarray(shown[top:bottom, left:right].astype(np.uint8) * 255)
    if scale < 1.0:
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.BOX)
    picture = picture.point(lambda value: int(value >= 128)).convert("P")
    picture.putpalette([0, 0, 0, *color])
    stream = io.BytesIO()
    picture.save(stream, "PNG", bits=1, transparency=bytes([0, opacity]), optimize=True)
    return Overlay(stream.getvalue(), Rectangle(left, top, right, bottom))
