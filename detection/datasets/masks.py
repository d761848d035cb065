"""Validates, encodes and decodes COCO segmentations.

pycocotools decodes in C without checks: sizes and run lengths are checked here first.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.quoting import quoted

MIN_POLYGON = 6  # numbers: three points
_REACH = 1  # image sides that a polygon may exceed the image: pycocotools needs memory for its outline
_CHARACTERS = 13  # max characters of a run of 63 bits


def mask_issue(segmentation: Any, *, height: int, width: int) -> str | None:
    """Explains why `segmentation` is not a valid mask of an image; None if it is valid or empty.

    Polygons of fewer than three points are valid here: `has_degenerate_polygon` finds them.

    Args:
        segmentation: polygons, a list of lists x, y, x, y, ... in pixels; or an RLE, an
            object with `size` (height, width) and `counts`, compressed or not.
        height: height of the image in pixels.
        width: width of the image in pixels.
    """
    if isinstance(segmentation, Mapping):
        return _rle_issue(segmentation, height, width)
    if not isinstance(segmentation, list):
        return f"segmentation is a {type(segmentation).__name__}, neither polygons nor an RLE"
    for number, polygon in enumerate(segmentation):
        if not isinstance(polygon, list) or len(polygon) % 2:
            return f"polygon {number} is not a list of pairs x, y"
        if not set(map(type, polygon)) <= {int, float}:
            return f"polygon {number} has a value that is not a number"
        low, high = -_REACH * max(height, width), (1 + _REACH) * max(height, width)
        # NaN may be ignored by min and max, but not by the sum.
        if polygon and not (low <= min(polygon) and max(polygon) <= high and math.isfinite(sum(polygon))):
            return f"polygon {number} has NaN, or is far outside of the {width}x{height} image"
    return None


def has_degenerate_polygon(segmentation: Any) -> bool:
    """Returns whether a polygon of a valid segmentation has fewer than three points."""
    return isinstance(segmentation, list) and any(len(polygon) < MIN_POLYGON for polygon in segmentation)


def without_degenerate_polygons(segmentation: list[list[float]]) -> list[list[float]]:
    """Removes the polygons of fewer than three points."""
    return [polygon for polygon in segmentation if len(polygon) >= MIN_POLYGON]


def points_in_pairs(segmentation: list[list[float]]) -> bool:
    """Returns whether a valid segmentation is one polygon whose points are lists of their own."""
    return len(segmentation) >= MIN_POLYGON // 2 and all(len(point) == 2 for point in segmentation)


def mask_area(segmentation: Any, *, height: int, width: int) -> float:
    """Computes the number of pixels of a valid segmentation; 0: it has none."""
    from pycocotools import mask

    rle = compressed_rle(segmentation, height=height, width=width)
    return float(mask.area(rle)) if rle else 0.0


def mask_box(segmentation: Any) -> list[float] | None:
    """Computes the bounding box of a valid segmentation.

    Returns:
        [x, y, width, height] in pixels; None if the mask is empty.
    """
    if isinstance(segmentation, Mapping):
        height = segmentation["size"][0]
        counts = segmentation["counts"]
        return _runs_box(counts if isinstance(counts, list) else decode_counts(counts), height)
    points = [polygon for polygon in segmentation if polygon]
    if not points:
        return None
    left, right = min(min(p[::2]) for p in points), max(max(p[::2]) for p in points)
    top, bottom = min(min(p[1::2]) for p in points), max(max(p[1::2]) for p in points)
    return [left, top, right - left, bottom - top]


def decode_counts(text: str) -> list[int]:
    """Decodes run lengths of a compressed RLE, background first, in column-major order.

    Source: pycocotools' rleFrString: 6 bits per character from "0" on, low bits first; bit 5 marks
    that more characters follow, and from the third run on the difference to the run two before is
    stored.

    Raises:
        ValueError: the text is not a compressed RLE.
    """
    counts: list[int] = []
    position = 0
    while position < len(text):
        value = shift = 0
        more = True
        while more:
            if position == len(text) or shift > 60:
                raise ValueError("the last run is truncated" if position == len(text) else "a run is too long")
            character = ord(text[position]) - 48
            if not 0 <= character < 64:
                raise ValueError(f"invalid character {text[position]!r}")
            value |= (character & 0x1F) << shift
            more = bool(character & 0x20)
            position += 1
            shift += 5
            if not more and character & 0x10:
                value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
    return counts


def compressed_rle(segmentation: Any, *, height: int, width: int) -> dict[str, Any] | None:
    """Converts a valid segmentation to a compressed RLE, `size` and `counts` as text; None if missing or empty.

    Args:
        segmentation: polygons or an RLE; polygons of fewer than three points are dropped.
        height: height of the image in pixels.
        width: width of the image in pixels.
    """
    from pycocotools import mask

    if not segmentation:
        return None
    if isinstance(segmentation, Mapping):
        rle = segmentation
        if isinstance(rle["counts"], list):
            rle = mask.frPyObjects(rle, height, width)
    else:
        # pycocotools takes two points for a box.
        polygons = without_degenerate_polygons(segmentation)
        if not polygons:
            return None
        rle = mask.merge(mask.frPyObjects(polygons, height, width))
    return _with_text(rle)


def encode_mask(pixels: npt.ArrayLike) -> dict[str, Any]:
    """Encodes a mask [H, W], 0 or False outside, as a compressed RLE, `size` and `counts` as text."""
    from pycocotools import mask

    return _with_text(mask.encode(np.asfortranarray(pixels, np.uint8)))


def _with_text(rle: Mapping[str, Any]) -> dict[str, Any]:
    counts = rle["counts"]
    return {
        "size": list(map(int, rle["size"])),
        "counts": counts if isinstance(counts, str) else counts.decode("ascii"),
    }


def _rle_issue(rle: Mapping[str, Any], height: int, width: int) -> str | None:
    size, counts = rle.get("size"), rle.get("counts")
    if size != [height, width] or not set(map(type, size)) <= {int}:
        return f"the RLE's size (height, width) is {quoted(size)}, the image's [{height}, {width}]"
    if isinstance(counts, str):
        if len(counts) > _CHARACTERS * (height * width + 1):
            return "the RLE is longer than any mask of the image"
        try:
            counts = decode_counts(counts)
        except ValueError as error:
            return f"the RLE cannot be read: {error}"
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        return "the RLE's counts are not run lengths: integers from 0 on, or a compressed text"
    if sum(counts) != height * width:
        return f"the RLE covers {quoted(sum(counts))} pixels, the image has {height * width}"
    return None


def _runs_box(counts: Sequence[int], height: int) -> list[float] | None:
    """Computes the box as pycocotools' toBbox does, in integer pixels."""
    left, top, right, bottom = math.inf, math.inf, -math.inf, -math.inf
    start = 0
    for number, count in enumerate(counts):
        if number % 2 and count:
            last = start + count - 1
            left, right = min(left, start // height), max(right, last // height)
            one_column = start // height == last // height
            top = min(top, start % height if one_column else 0)
            bottom = max(bottom, last % height if one_column else height - 1)
        start += count
    if left == math.inf:
        return None
    return [float(left), float(top), float(right - left + 1), float(bottom - top + 1)]
