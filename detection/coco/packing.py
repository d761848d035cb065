"""An image's COCO entries as one small bytes value, lossless."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from detection.coco.json_text import parse, serialize
from schemas.errors import DataError

_LEVEL = 6


def pack_entries(image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]]) -> bytes:
    """Packs an image's entry and its annotations, as they stood in the COCO file.

    Floats are written so that they read back to the same bits; key order is kept,
    and equal input gives equal bytes.

    Args:
        image: entry of the COCO file's `images` list.
        annotations: the entries of its `annotations` list that belong to the image.

    Returns:
        zlib-compressed UTF-8 JSON `{"image": {...}, "annotations": [...]}`.

    Raises:
        ValueError: NaN or Infinity somewhere, which JSON does not have.
    """
    entries = {"image": image, "annotations": list(annotations)}
    return zlib.compress(serialize(entries), _LEVEL)


def unpack_entries(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Inverse of `pack_entries`: the image's entry and its annotations.

    Raises:
        DataError: `data` was not written by `pack_entries`, or is damaged.
    """
    try:
        entries = parse(zlib.decompress(data))
        return entries["image"], entries["annotations"]
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"coco/annotations: {len(data)} bytes that do not hold an image's COCO entries ({error}). "
            "Write the records again with this version."
        ) from None
