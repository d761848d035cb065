"""A serialised `tf.train.Example` as plain lists."""

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from detection.datasets.entries import is_id
from detection.datasets.importers import keys
from schemas import features
from schemas.errors import DataError
from schemas.limits import MAX_NUMBERS

# key -> values: bytes, int, or float with a float32's value.  Keys without any value are left out.
Record: TypeAlias = dict[str, list[Any]]

_CORNERS = (features.BBOX_XMIN, features.BBOX_YMIN, features.BBOX_XMAX, features.BBOX_YMAX)
_ID_DIGITS = 19
_WHOLE = {
    features.HEIGHT,
    features.WIDTH,
    features.CLASS_LABEL,
    features.IS_CROWD,
    keys.KEYPOINT_VISIBILITY,
    keys.KEYPOINT_NUM,
}
_NUMBERS = {*_CORNERS, features.AREA, keys.POLYGON, keys.KEYPOINT_X, keys.KEYPOINT_Y}
_BYTES = {
    features.ENCODED,
    features.FORMAT,
    features.FILENAME,
    features.CLASS_TEXT,
    features.COCO,
    keys.KEYPOINT_TEXT,
}
_KINDS = ((int, _WHOLE, "whole numbers"), (float, _NUMBERS, "numbers"), (bytes, _BYTES, "bytes"))


def parse_record(data: bytes, where: str) -> Record:
    """Parses a record.

    Args:
        data: a serialised `tf.train.Example`.
        where: the file and the record's place in it, for messages.

    Raises:
        DataError: it is none, or a key that this package understands has values of a
            wrong type; whole numbers may be stored as floats.
    """
    try:
        example = tf.train.Example.FromString(data)
    except DecodeError:
        raise DataError(f"{where}: no tf.train.Example. Name files of image records only.") from None
    record = {}
    for key, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind and (values := getattr(feature, kind).value):
            if len(values) > MAX_NUMBERS:
                raise DataError(
                    f"{where}: {as_text(key)[:80]} has {len(values)} values, more than {MAX_NUMBERS}. "
                    "Write masks as PNG, or without that key."
                )
            record[key] = _typed(key, list(values), where)
    return record


def _typed(key: str, values: list[Any], where: str) -> list[Any]:
    found = values[0]
    if key in _WHOLE and isinstance(found, float) and all(value.is_integer() for value in values):
        return [int(value) for value in values]
    if key in _NUMBERS and isinstance(found, int):
        return [float(value) for value in values]
    for kind, known, expected in _KINDS:
        if key in known and not isinstance(found, kind):
            raise DataError(
                f"{where}: {key} does not hold {expected}, as it must. Write the records again, or without that key."
            )
    return values


def first_bytes(record: Record, key: str) -> bytes:
    """The only value of a bytes key; b"" where there is none."""
    value = record.get(key, [b""])[0]
    return value if isinstance(value, bytes) else b""


def as_text(value: Any) -> str:
    """Bytes as text, whatever they hold; numbers as they are written."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def source_id(record: Record) -> str:
    """`image/source_id` as text, whichever type it has; "" where there is none."""
    return as_text(record.get(features.SOURCE_ID, [b""])[0]).strip()


def numeric_source_id(record: Record) -> int | None:
    """`image/source_id` as an image id; None where it is no valid one."""
    text = source_id(record)
    if not (text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS):
        return None
    return int(text) if is_id(int(text)) else None


def corners(record: Record) -> list[list[float]]:
    """xmin, ymin, xmax, ymax of all objects, normalised: four lists, unequally long in faulty records."""
    return [record.get(key, []) for key in _CORNERS]


def object_count(record: Record) -> int:
    """How many objects a record claims."""
    return max(map(len, corners(record)))


def object_classes(record: Record) -> list[tuple[int | None, str | None]]:
    """(label, text) of each object, None for what the record does not tell."""
    count = object_count(record)
    labels = [int(label) for label in record.get(features.CLASS_LABEL, [])]
    texts = [as_text(text) or None for text in record.get(features.CLASS_TEXT, [])]
    return [
        (labels[row] if row < len(labels) else None, texts[row] if row < len(texts) else None) for row in range(count)
    ]


def short_float(value: float) -> float:
    """The shortest decimal that is the same float32."""
    return float(str(np.float32(value)))
