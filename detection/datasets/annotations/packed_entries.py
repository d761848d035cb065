"""Packs an image's COCO entries as one small bytes value, lossless."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detection.datasets.annotations.entries import AnnotationEntry
from detection.datasets.annotations.entry_rules import UNIQUE_ID, check_entries, image_issue, known_image
from detection.storage.json_files import is_too_deep, parse, serialize
from schemas.errors import DataError
from schemas.limits import MAX_DEPTH, MAX_IMAGE_ENTRIES

_LEVEL = 6


class EntriesTooLargeError(Exception):
    """The JSON of an image's entries exceeds the size limit of a record."""


def pack_entries(image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]]) -> bytes:
    """Packs an image's entry and its annotations, unchanged from the COCO file.

    Floats are written so that they parse to the same bits; key order is kept, and equal input
    gives equal bytes.

    Args:
        image: entry of the COCO file's `images` list.
        annotations: entries of its `annotations` list for the image.

    Returns:
        zlib-compressed UTF-8 JSON `{"image": {...}, "annotations": [...]}`.

    Raises:
        EntriesTooLargeError: more than `MAX_IMAGE_ENTRIES` bytes.
        ValueError: an entry contains NaN or Infinity, which JSON does not support.
    """
    text = serialize({"image": image, "annotations": list(annotations)})
    if len(text) > MAX_IMAGE_ENTRIES:
        raise EntriesTooLargeError(too_large(len(text)))
    return zlib.compress(text, _LEVEL)


def unpack_entries(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Inverse of `pack_entries`: returns the image's entry and its annotations.

    Limits the memory to `MAX_IMAGE_ENTRIES` bytes of JSON, even for malicious `data`, and validates
    the entries like those of a COCO file.

    Raises:
        DataError: `data` was not written by `pack_entries`, is damaged, or contains invalid
            entries.
    """
    try:
        text = _decompress(data)
        entries = parse(text)
        image, annotations = entries["image"], entries["annotations"]
        _validate(image, annotations)
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"coco/annotations: {len(data)} bytes that are not an image's COCO entries "
            f"({str(error).removesuffix('.')}). Write the records again with this version."
        ) from None
    return image, annotations


def too_large(size: int) -> str:
    """Returns a message for entries with too many bytes of JSON."""
    return (
        f"the image's annotations have {size} bytes of JSON, more than {MAX_IMAGE_ENTRIES}. "
        "Simplify their polygons, or cut the image into tiles."
    )


def _decompress(data: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(data, MAX_IMAGE_ENTRIES + 1)
    if len(text) > MAX_IMAGE_ENTRIES:
        raise ValueError(f"they unpack to more than {MAX_IMAGE_ENTRIES} bytes")
    if not unpacking.eof:
        raise ValueError("they are truncated")
    if is_too_deep(text):
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return text


def _validate(image: Any, annotations: Any) -> None:
    """Raises a `ValueError` for entries that are not valid in an annotation file."""
    issue = image_issue(image)
    if issue is not None:
        raise ValueError(f"image: {issue}")
    if type(annotations) is not list:
        raise ValueError("annotations is not a list")
    own_image = known_image(np.array([image["id"]], np.int64), f"The image's id is {image['id']}.")
    for position, issue in check_entries(annotations, AnnotationEntry, [own_image, UNIQUE_ID])[1].items():
        raise ValueError(f"annotations[{position}]: {issue}")
