"""Reading the files of an evaluation: quickly, and only what it needs of them.

msgspec decodes a large file several times faster than `json`, with the same bits.
What it does not take (NaN, a value of another type, a file cut off) is read again by
`json`, so that the checks can name it.
"""

import itertools
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np

from detection.datasets.entries import LARGEST_ID, Ids, Rows
from detection.storage.json_files import cannot_read, is_file, read_json

_AT_ONCE = 1 << 18  # bytes; what is decoded at once stays in the processor's cache
_SPACE = b" \t\r\n"
_LONGEST = 32 << 20  # bytes without a place to cut at: looking for one in ever more text takes quadratic time
_BETWEEN = 64  # bytes, at most, between two detections


class _Image(TypedDict, total=False):
    id: Any
    height: Any
    width: Any
    neg_category_ids: Any
    not_exhaustive_category_ids: Any


class _BoxAnnotation(TypedDict, total=False):
    id: Any
    image_id: Any
    category_id: Any
    bbox: Any
    area: Any
    iscrowd: Any
    is_crowd: Any
    ignore: Any


class _MaskAnnotation(_BoxAnnotation, total=False):
    segmentation: Any


class _KeypointAnnotation(_BoxAnnotation, total=False):
    keypoints: Any
    num_keypoints: Any


class _BoxTruth(TypedDict, total=False):
    images: list[_Image]
    annotations: list[_BoxAnnotation]
    categories: list[Any]


class _MaskTruth(TypedDict, total=False):
    images: list[_Image]
    annotations: list[_MaskAnnotation]
    categories: list[Any]


class _KeypointTruth(TypedDict, total=False):
    images: list[_Image]
    annotations: list[_KeypointAnnotation]
    categories: list[Any]


class _BoxDetection(msgspec.Struct, gc=False):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    score: float


class _Detection(TypedDict, total=False):
    image_id: Any
    category_id: Any
    bbox: Any
    segmentation: Any
    keypoints: Any
    score: Any


_TRUTHS: dict[str, Any] = {"bbox": _BoxTruth, "segm": _MaskTruth, "keypoints": _KeypointTruth}
_FIELDS = [attrgetter(name) for name in ("image_id", "category_id", "score", "bbox")]
# What makes `json` read the file: RecursionError for nesting, OverflowError for an id of many digits.
NOT_TAKEN = (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeDecodeError)


def read_ground_truth(path: str | Path, iou_type: str) -> Any:
    """The content of an annotation file, as far as an evaluation by `iou_type` needs it; nothing is checked.

    Raises:
        DataError: the file cannot be read or is no JSON.
    """
    if not is_file(path):
        return read_json(path)
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_TRUTHS[iou_type])
    except OSError as error:
        raise cannot_read(path, error) from None
    except NOT_TAKEN:
        return read_json(path)


def read_detections(path: str | Path, iou_type: str) -> Any:
    """The content of a COCO results file; nothing is checked.

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
    return np.concatenate(portions) if iou_type == "bbox" else list(itertools.chain.from_iterable(portions))


def detection_portions(path: str | Path, iou_type: str) -> Iterator[Any]:
    """The content of a COCO results file, some thousand detections at a time and at least once; nothing is checked.

    Yields:
        For boxes rows float64 [N, 7], as `read_detections` returns them, else parsed JSON.

    Raises:
        OSError: the file cannot be read.
        One of `NOT_TAKEN`: it has to be read by `json`.
    """
    if iou_type == "bbox":
        boxes = msgspec.json.Decoder(list[_BoxDetection])
        yield from (_rows(boxes.decode(text)) for text in _portions(path))
    else:
        entries = msgspec.json.Decoder(list[_Detection])
        yield from (entries.decode(text) for text in _portions(path))


def _rows(detections: Sequence[_BoxDetection]) -> Rows:
    count = len(detections)
    image_ids, category_ids, scores, boxes = (map(field, detections) for field in _FIELDS)
    rows = np.empty((count, 7))
    rows[:, 0] = _ids(image_ids, count)
    rows[:, 1:5] = np.fromiter(itertools.chain.from_iterable(boxes), np.float64, 4 * count).reshape(count, 4)
    rows[:, 5] = np.fromiter(scores, np.float64, count)
    rows[:, 6] = _ids(category_ids, count)
    return rows


def _ids(values: Iterator[int], count: int) -> Ids:
    ids = np.fromiter(values, np.int64, count)
    if count and not (ids.min() >= 0 and ids.max() <= LARGEST_ID):
        raise OverflowError
    return ids


def _portions(path: str | Path) -> Iterator[bytes]:
    """A file with a list of JSON objects as several such lists.

    It is cut where `}`, a comma and `{` follow each other.  Where that is no place
    between two of the objects, but inside of one or of a text, the halves are no JSON.
    """
    opening, text = b"", b""
    with open(path, "rb") as file:
        while block := file.read(_AT_ONCE):
            text += block
            comma = _last_comma(text)
            if comma > 0:
                yield b"".join((opening, text[:comma], b"]"))
                opening, text = b"[", text[comma + 1 :]
            elif len(text) > _LONGEST:
                raise msgspec.DecodeError("no two objects that can be told apart")
    yield opening + text


def _last_comma(text: bytes) -> int:
    """Where the last comma between two objects is; -1 where there is none."""
    brace = text.rfind(b"{")
    while brace > 0:
        before = text[max(0, brace - _BETWEEN) : brace]
        comma = before.rstrip(_SPACE)
        if comma.endswith(b",") and comma[:-1].rstrip(_SPACE).endswith(b"}"):
            return brace - len(before) + len(comma) - 1
        brace = text.rfind(b"{", 0, brace)
    return -1
