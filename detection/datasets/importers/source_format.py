"""The source formats of COCO TFRecords: their keys, and a serialized `tf.train.Example` as plain lists."""

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from detection.datasets.annotations.entries import is_id
from schemas import features
from schemas.errors import DataError
from schemas.limits import MAX_NUMBERS

COCOFLOW = "cocoflow"  # ours: the COCO entries are in the record
AUTOML = "automl"  # google/automl and the TPU models: labels are required
OD_API = "od_api"  # TF Object Detection API, whose COCO writer omits labels

# Keys of COCO TFRecords that our records do not have, as in the TF Object Detection API and google/automl.
OBJECT_PREFIX = "image/object/"

CAPTION = "image/caption"  # bytes [C], sentences
ATTRIBUTE_LABEL = "image/object/attribute/label"  # int64 [N x attributes]

# bytes [N]: PNGs of the image's size, nonzero inside; or float [N x H x W].
MASK = "image/object/mask"
# float: x, y of all polygons in pixels; -1 separates polygons, -2 separates objects, -3 is padding.
POLYGON = "image/object/polygon"

# N objects of K points each, N x K values; x and y are normalised.
KEYPOINT_X = "image/object/keypoint/x"  # float
KEYPOINT_Y = "image/object/keypoint/y"  # float
KEYPOINT_VISIBILITY = "image/object/keypoint/visibility"  # int64: COCO's 0, 1 or 2
KEYPOINT_TEXT = "image/object/keypoint/text"  # bytes: the point's name
KEYPOINT_NUM = "image/object/keypoint/num"  # int64 [N]: labelled points; some writers: points

# key -> values: bytes, int, or float with a float32's value.  Keys without values are omitted.
Record: TypeAlias = dict[str, list[Any]]

_AUTOML_ONLY = (CAPTION, POLYGON, ATTRIBUTE_LABEL)
_CORNERS = (features.BBOX_XMIN, features.BBOX_YMIN, features.BBOX_XMAX, features.BBOX_YMAX)
_ID_DIGITS = 19
_WHOLE = {features.HEIGHT, features.WIDTH, features.CLASS_LABEL, features.IS_CROWD, KEYPOINT_VISIBILITY, KEYPOINT_NUM}
_NUMBERS = {*_CORNERS, features.AREA, POLYGON, KEYPOINT_X, KEYPOINT_Y}
_BYTES = {features.ENCODED, features.FORMAT, features.FILENAME, features.CLASS_TEXT, features.COCO, KEYPOINT_TEXT}
_KINDS = ((int, _WHOLE, "whole numbers"), (float, _NUMBERS, "numbers"), (bytes, _BYTES, "bytes"))
# Keys that are read, or recomputed from the image's bytes; WEIGHT becomes the field `weight` of annotations.
_UNDERSTOOD = {value for name, value in vars(features).items() if name.isupper() and name != "WEIGHT"} | {
    MASK,
    POLYGON,
    KEYPOINT_X,
    KEYPOINT_Y,
    KEYPOINT_VISIBILITY,
    KEYPOINT_TEXT,
    KEYPOINT_NUM,
}
# Fields of COCO's images and annotations, not available as names of extra fields.
_TAKEN = {
    "id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation", "keypoints", "num_keypoints",
    "file_name", "height", "width", "source_id", "license",
}  # fmt: skip


def source_format_of(keys: Container[str], *, labels: bool) -> str:
    """Determines the source format of a data set's records from their keys.

    Formats of other tools are read in the same way; the name is for users only.  Ambiguous records
    are automl's if they have labels and crowd flags: older tools of the Object Detection API write
    labels, but no crowd flags.

    Args:
        keys: the keys of the records.
        labels: whether every object has a label.

    Returns:
        COCOFLOW, AUTOML or OD_API.
    """
    if features.COCO in keys:
        return COCOFLOW
    if any(key in keys for key in _AUTOML_ONLY):
        return AUTOML
    return AUTOML if labels and features.IS_CROWD in keys and KEYPOINT_X not in keys else OD_API


def parse_record(data: bytes, where: str) -> Record:
    """Parses a record.

    Args:
        data: a serialized `tf.train.Example`.
        where: the file and the index of the record in it, for messages.

    Raises:
        DataError: not a `tf.train.Example`, or a known key has values of a wrong type;
            integers may be stored as floats.
    """
    try:
        example = tf.train.Example.FromString(data)
    except DecodeError:
        raise DataError(f"{where}: not a tf.train.Example. Pass files of image records only.") from None
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
    first = values[0]
    if key in _WHOLE and isinstance(first, float) and all(value.is_integer() for value in values):
        return [int(value) for value in values]
    if key in _NUMBERS and isinstance(first, int):
        return [float(value) for value in values]
    for kind, known, expected in _KINDS:
        if key in known and not isinstance(first, kind):
            raise DataError(
                f"{where}: the values of {key} are not {expected}. Write the records again, or without that key."
            )
    return values


def first_bytes(record: Record, key: str) -> bytes:
    """Returns the first value of a bytes key; b"" if there is none."""
    value = record.get(key, [b""])[0]
    return value if isinstance(value, bytes) else b""


def as_text(value: Any) -> str:
    """Decodes bytes, with escapes if they are not UTF-8; formats numbers."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def source_id(record: Record) -> str:
    """Returns `image/source_id` of any type as text; "" if it is missing."""
    return as_text(record.get(features.SOURCE_ID, [b""])[0]).strip()


def numeric_source_id(record: Record) -> int | None:
    """Returns `image/source_id` as an image id; None if it is not a valid one."""
    text = source_id(record)
    if not (text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS):
        return None
    return int(text) if is_id(int(text)) else None


def corners(record: Record) -> list[list[float]]:
    """Returns xmin, ymin, xmax, ymax of all objects, normalised: four lists, with different lengths if invalid."""
    return [record.get(key, []) for key in _CORNERS]


def object_count(record: Record) -> int:
    """Returns the number of objects in a record, by the longest list of corners."""
    return max(map(len, corners(record)))


def object_classes(record: Record) -> list[tuple[int | None, str | None]]:
    """Returns (label, text) of each object, None for missing values."""
    count = object_count(record)
    labels = [int(label) for label in record.get(features.CLASS_LABEL, [])]
    texts = [as_text(text) or None for text in record.get(features.CLASS_TEXT, [])]
    return [
        (labels[row] if row < len(labels) else None, texts[row] if row < len(texts) else None) for row in range(count)
    ]


def short_float(value: float) -> float:
    """Returns the shortest decimal that rounds to the same float32."""
    return float(str(np.float32(value)))


def extra_names(keys: Iterable[str]) -> dict[str, str]:
    """Maps the keys of a data set without a COCO field to field names.

    The name is the last part of the key, or all its parts if that name is not available.
    """
    extras = sorted(set(keys) - _UNDERSTOOD)
    count = Counter(_last(key) for key in extras)
    return {
        key: _last(key) if count[_last(key)] == 1 and _last(key) not in _TAKEN else key.replace("/", "_")
        for key in extras
    }


def extra_fields(record: Record, count: int, names: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Collects the fields of a record that have no COCO field.

    Object keys whose values divide evenly among the objects go to the annotations.  Bytes that
    are not text are dropped: JSON does not support them.

    Args:
        record: the record.
        count: number of objects.
        names: field names, from `extra_names`.

    Returns:
        Extra fields of the image's entry, and of each annotation.
    """
    image: dict[str, Any] = {}
    objects: list[dict[str, Any]] = [{} for _ in range(count)]
    for key in sorted(names.keys() & record.keys()):
        values = list(map(_json_value, record[key]))
        if key.startswith(OBJECT_PREFIX) and count and len(values) % count == 0:
            size = len(values) // count
            for row, entry in enumerate(objects):
                _put(entry, names[key], values[row * size : (row + 1) * size])
        else:
            _put(image, names[key], values)
    return image, objects


def _put(entry: dict[str, Any], name: str, values: list[Any]) -> None:
    if any(value is not None for value in values):
        entry[name] = values[0] if len(values) == 1 else values


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return short_float(value) if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value


def _last(key: str) -> str:
    return key.rpartition("/")[2]
