"""Reads the files of an evaluation: quickly, and only what it needs of them.

msgspec decodes a large file several times faster than `json`, with the same bits, and
validates the entries meanwhile. A file that it refuses (NaN, an invalid entry, a
truncated file) is read again by `json`, so that the checks name what is invalid.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np

from detection.coco.validation import entry_types
from detection.coco.validation.checks import rows_of
from detection.coco.validation.invalid_entries import Typed
from detection.storage.files import is_file
from detection.storage.json_files import read_json
from detection.storage.paths import stem, with_name
from detection.storage.reading import cannot_read, open_stream, read_bytes

_AT_ONCE = 1 << 18  # bytes; what is decoded at once stays in the processor's cache
_SPACE = b" \t\r\n"
_LONGEST = 32 << 20  # bytes without a place to cut at: looking for one in ever more text takes quadratic time
_BETWEEN = 64  # bytes, at most, between two detections


class _Image(TypedDict, total=False):
    """An entry of `images`; it is validated later, as more is asked of it for masks and for LVIS."""

    id: Any
    file_name: Any
    height: Any
    width: Any
    neg_category_ids: Any
    not_exhaustive_category_ids: Any


class _BoxTree(TypedDict, total=False):
    images: list[_Image]
    annotations: list[entry_types.BoxAnnotation]
    categories: list[Any]


class _MaskTree(TypedDict, total=False):
    images: list[_Image]
    annotations: list[entry_types.MaskAnnotation]
    categories: list[Any]


class _KeypointTree(TypedDict, total=False):
    images: list[_Image]
    annotations: list[entry_types.KeypointAnnotation]
    categories: list[Any]


_TREES: dict[str, Any] = {"bbox": _BoxTree, "segm": _MaskTree, "keypoints": _KeypointTree}
# What makes `json` read the file: RecursionError for nesting, OverflowError for an id of many digits.
NOT_TAKEN = (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeDecodeError)


def read_ground_truth(path: str | Path, iou_type: str) -> Any:
    """Reads an annotation file, as far as `iou_type` needs it; references between entries are not checked.

    Raises:
        DataError: the file cannot be read or is no JSON.
    """
    if not is_file(path):
        return read_json(path)
    try:
        tree = msgspec.json.decode(read_bytes(path), type=_TREES[iou_type])
    except NOT_TAKEN:
        return read_json(path)
    if "annotations" in tree:
        tree["annotations"] = Typed(tree["annotations"], entry_types.ANNOTATIONS[iou_type])
    return tree


def image_list_path(results: str | Path) -> str:
    """Returns the path of the list of images beside a results file of `predict`: `NAME_images.json`."""
    return with_name(results, f"{stem(results)}_images.json")


def read_detections(path: str | Path, iou_type: str) -> Any:
    """Reads a COCO results file; references to the ground truth are not checked.

    Returns:
        For boxes, if all have the right type, rows float64 [N, 7]: image_id, x, y,
        width, height, score, category_id; else the parsed JSON.

    Raises:
        DataError: the file cannot be read or is no JSON.
    """
    if not is_file(path):
        return read_json(path)
    try:
        portions = list(detection_portions(path, iou_type))
    except OSError as error:
        raise cannot_read(path, error) from None
    except NOT_TAKEN:
        return read_json(path)
    if iou_type == "bbox":
        return np.concatenate(portions)
    return Typed(itertools.chain.from_iterable(portions), entry_types.DETECTIONS[iou_type])


def detection_portions(path: str | Path, iou_type: str) -> Iterator[Any]:
    """Reads a COCO results file, some thousand detections at a time and at least once.

    Yields:
        For boxes rows float64 [N, 7], as `read_detections` returns them, else parsed JSON.

    Raises:
        DataError: the file cannot be opened.
        OSError: it cannot be read.
        One of `NOT_TAKEN`: it has to be read by `json`.
    """
    kind: Any = entry_types.DETECTIONS[iou_type]
    decoder = msgspec.json.Decoder(list[kind])
    for text in _portions(path):
        detections = decoder.decode(text)
        yield rows_of(detections) if iou_type == "bbox" else detections


def _portions(path: str | Path) -> Iterator[bytes]:
    """A file with a list of JSON objects as several such lists.

    It is cut where `}`, a comma and `{` follow each other.  Where that is no place
    between two of the objects, but inside of one or of a text, the halves are not JSON.
    """
    opening, text = b"", b""
    with open_stream(path) as file:
        while block := file.read(_AT_ONCE):
            text += block
            comma = _last_comma(text)
            if comma > 0:
                yield b"".join((opening, text[:comma], b"]"))
                opening, text = b"[", text[comma + 1 :]
            elif len(text) > _LONGEST:
                raise msgspec.DecodeError("no two entries that can be divided")
    yield opening + text


def _last_comma(text: bytes) -> int:
    """Position of the last comma between two objects; -1: none."""
    brace = text.rfind(b"{")
    while brace > 0:
        before = text[max(0, brace - _BETWEEN) : brace]
        comma = before.rstrip(_SPACE)
        if comma.endswith(b",") and comma[:-1].rstrip(_SPACE).endswith(b"}"):
            return brace - len(before) + len(comma) - 1
        brace = text.rfind(b"{", 0, brace)
    return -1
