"""Masks of foreign records as COCO segmentations."""

import io
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from detection.datasets.importers import keys
from detection.datasets.importers.parsing import Record, short_float

# Compressed RLE or polygons; None: the object has no mask.
Segmentation: TypeAlias = dict[str, Any] | list[list[float]] | None

_POLYGON_ENDS, _OBJECT_ENDS, _PADDING = -1.0, -2.0, -3.0


class MaskError(Exception):
    """Why a mask cannot be used."""


def object_masks(record: Record, count: int) -> list[Any]:
    """The masks of a record's objects as they are stored, one an object; [] where there are none.

    Each is for `segmentation_of`.

    Raises:
        MaskError: they cannot be shared out among the objects.
    """
    masks, flat = record.get(keys.MASK, []), record.get(keys.POLYGON, [])
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
    """An object's mask as COCO has it: RLE of a PNG or of pixels, polygons as they are.

    Args:
        stored: an entry of `object_masks`.
        height: of the image, pixels.
        width: of the image, pixels.

    Raises:
        MaskError: it does not decode, or has not the image's size.
    """
    if isinstance(stored, list):
        polygons = [[short_float(value) for value in polygon] for polygon in _split(stored, _POLYGON_ENDS) if polygon]
        return polygons or None
    if isinstance(stored, bytes):
        return _rle(_decode(stored, height, width)) if stored else None
    if stored.size != height * width:
        raise MaskError(f"{stored.size} values for {width}x{height} pixels")
    return _rle(stored.reshape(height, width) > 0.5)


def _decode(png: bytes, height: int, width: int) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(png)) as image:
            if image.size == (width, height):
                pixels = np.asarray(image)
                return pixels != 0 if pixels.ndim == 2 else pixels[..., :3].any(axis=-1)
            found = image.size
    except Exception as error:  # Pillow raises whatever its format plugins raise
        raise MaskError(f"the mask does not decode ({error})") from None
    raise MaskError(f"the mask has {found[0]}x{found[1]} pixels, the image {width}x{height}")


def _rle(inside: np.ndarray) -> dict[str, Any]:
    from pycocotools import mask

    rle = mask.encode(np.asfortranarray(inside, np.uint8))
    return {"size": [int(length) for length in rle["size"]], "counts": rle["counts"].decode("ascii")}


def _split(values: list[float], separator: float) -> list[list[float]]:
    parts: list[list[float]] = [[]]
    for value in values:
        if value == separator:
            parts.append([])
        else:
            parts[-1].append(value)
    return parts
