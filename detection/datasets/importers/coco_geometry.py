"""Converts boxes, keypoints and masks of records to COCO's format."""

import io
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from detection.datasets.importers.source_format import (
    KEYPOINT_NUM,
    KEYPOINT_TEXT,
    KEYPOINT_VISIBILITY,
    KEYPOINT_X,
    KEYPOINT_Y,
    MASK,
    POLYGON,
    Record,
    as_text,
    short_float,
)
from detection.datasets.masks import encode_mask

MAX_PLACES = 6
_LARGEST_FRACTION = 1e9  # limit for coordinates of drawn objects, far below the max float32
# Compressed RLE or polygons; None: the object has no mask.
Segmentation: TypeAlias = dict[str, Any] | list[list[float]] | None

_POLYGON_ENDS, _OBJECT_ENDS, _PADDING = -1.0, -2.0, -3.0


def is_drawable(*coordinates: float) -> bool:
    """Returns whether normalised coordinates can be in or near an image: finite and not extremely large."""
    return all(abs(coordinate) < _LARGEST_FRACTION for coordinate in coordinates)  # false for NaN


def pixels_of_fraction(fraction: float, size: int) -> tuple[float, int]:
    """Finds the shortest decimal number of pixels that rounds to a normalised coordinate.

    Decimals with two places are recovered exactly in images of up to 80,000 pixels, where float32
    distinguishes them.

    Args:
        fraction: float32 value, pixels / size; drawable.
        size: size of the image along the axis in pixels, > 0.

    Returns:
        The number with the fewest places, up to 6, whose quotient by `size` is the same float32
        (6 places if there is none), and its number of places.
    """
    stored = np.float32(fraction)
    exact = fraction * size
    for places in range(MAX_PLACES + 1):
        pixels = round(exact, places)
        if np.float32(pixels / size) == stored:
            return pixels, places
    return round(exact, MAX_PLACES), MAX_PLACES


def coco_box(xmin: float, ymin: float, xmax: float, ymax: float, *, height: int, width: int) -> list[float] | None:
    """Computes the COCO box (x, y, width, height) in pixels from normalised float32 corners.

    Args:
        xmin: left side / `width`.
        ymin: upper side / `height`.
        xmax: right side / `width`.
        ymax: lower side / `height`.
        height: height of the image in pixels, > 0.
        width: width of the image in pixels, > 0.

    Returns:
        The box; None if a corner is not drawable.
    """
    if not is_drawable(xmin, ymin, xmax, ymax):
        return None
    x, box_width = _span(xmin, xmax, width)
    y, box_height = _span(ymin, ymax, height)
    return [x, y, box_width, box_height]


def _span(low: float, high: float, size: int) -> tuple[float, float]:
    start, start_places = pixels_of_fraction(low, size)
    end, end_places = pixels_of_fraction(high, size)
    return start, round(end - start, max(start_places, end_places))


class Keypoints(NamedTuple):
    """An object's points.

    fractions: K times (x, y), normalised.
    visibility: K times COCO's 0 (not labelled), 1 (hidden) or 2.
    names: K names; () if the record has no names.
    """

    fractions: list[tuple[float, float]]
    visibility: list[int]
    names: tuple[str, ...]


def object_keypoints(record: Record, count: int) -> list[Keypoints] | None:
    """Returns the keypoints of a record's objects.

    Args:
        record: the record.
        count: number of objects.

    Returns:
        One entry per object; [] if the record has no keypoints; None if the number of keypoints
        does not match the objects.
    """
    xs, ys = record.get(KEYPOINT_X, []), record.get(KEYPOINT_Y, [])
    if not xs and not ys:
        return []
    sizes = _sizes(record, len(xs), count)
    if len(xs) != len(ys) or sizes is None:
        return None
    visibility = record.get(KEYPOINT_VISIBILITY) or list(map(_assumed_visibility, xs, ys))
    names = list(map(as_text, record.get(KEYPOINT_TEXT, [])))
    if len(visibility) != len(xs):
        return None
    keypoints, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        keypoints.append(
            Keypoints(
                list(zip(xs[rows], ys[rows], strict=True)),
                list(map(int, visibility[rows])),
                tuple(names[rows]) if len(names) == len(xs) else (),
            )
        )
        start += size
    return keypoints


def coco_keypoints(points: Keypoints, *, height: int, width: int) -> list[Any]:
    """Converts keypoints to COCO's list of K times x, y (pixels), visibility; 0, 0, 0 if not labelled."""
    values: list[Any] = []
    for (x, y), visible in zip(points.fractions, points.visibility, strict=True):
        if visible <= 0 or not is_drawable(x, y):
            values += [0, 0, 0]
        else:
            values += [_shortest_pixels(x, width), _shortest_pixels(y, height), visible]
    return values


def _sizes(record: Record, total: int, count: int) -> list[int] | None:
    if count and total % count == 0:
        return [total // count] * count
    # Writers of objects with different numbers of points store the numbers; others store the labelled ones.
    sizes = [int(size) for size in record.get(KEYPOINT_NUM, [])]
    return sizes if len(sizes) == count and sum(sizes) == total and min(sizes, default=0) >= 0 else None


def _assumed_visibility(x: float, y: float) -> int:
    return 2 if is_drawable(x, y) and (x, y) != (0.0, 0.0) else 0


def _shortest_pixels(fraction: float, size: int) -> float:
    pixels, places = pixels_of_fraction(fraction, size)
    return int(pixels) if places == 0 else pixels


class MaskError(Exception):
    """A mask that cannot be used."""


def object_masks(record: Record, count: int) -> list[Any]:
    """Returns the stored masks of a record's objects, one per object; [] if there are none.

    `segmentation_of` decodes them.

    Raises:
        MaskError: the number of masks does not match the objects.
    """
    masks, flat = record.get(MASK, []), record.get(POLYGON, [])
    stored: list[Any] = []
    if masks and isinstance(masks[0], bytes):
        stored = masks
    elif masks:
        stored = np.split(np.asarray(masks, np.float32), count) if count and len(masks) % count == 0 else [None]
    elif flat:
        stored = _split([value for value in flat if value != _PADDING], _OBJECT_ENDS)
        if len(stored) == count + 1 and not stored[-1]:
            stored.pop()
    if stored and len(stored) != count:
        raise MaskError(f"{len(stored)} masks for {count} objects")
    return stored


def segmentation_of(stored: Any, *, height: int, width: int) -> Segmentation:
    """Converts a stored mask to COCO's format: RLE for a PNG or pixels, polygons unchanged.

    Args:
        stored: an entry of `object_masks`.
        height: height of the image in pixels.
        width: width of the image in pixels.

    Raises:
        MaskError: the mask cannot be decoded, or its size differs from the image's.
    """
    if isinstance(stored, list):
        polygons = [[short_float(value) for value in polygon] for polygon in _split(stored, _POLYGON_ENDS) if polygon]
        return polygons or None
    if isinstance(stored, bytes):
        return encode_mask(_decode(stored, height, width)) if stored else None
    if stored.size != height * width:
        raise MaskError(f"{stored.size} values for {width}x{height} pixels")
    return encode_mask(stored.reshape(height, width) > 0.5)


def _decode(png: bytes, height: int, width: int) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(png)) as image:
            if image.size == (width, height):
                pixels = np.asarray(image)
                return np.asarray(pixels != 0 if pixels.ndim == 2 else pixels[..., :3].any(axis=-1))
            size = image.size
    except Exception as error:  # Pillow's format plugins raise errors of many types
        raise MaskError(f"the mask cannot be decoded ({error})") from None
    raise MaskError(f"the mask has {size[0]}x{size[1]} pixels, the image {width}x{height}")


def _split(values: list[float], separator: float) -> list[list[float]]:
    parts: list[list[float]] = [[]]
    for value in values:
        if value == separator:
            parts.append([])
        else:
            parts[-1].append(value)
    return parts
