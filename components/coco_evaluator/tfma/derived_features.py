"""Features to slice images by that are not in their records; computed on demand."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from components.coco_evaluator.tfma.slice_metrics import Value
from detection.coco.params import make_params
from detection.datasets.packed_entries import unpack_entries
from detection.images.decode import decode_rgb_eagerly
from schemas import features
from schemas.errors import DataError

Buckets: TypeAlias = Mapping[float, str]  # min value -> name, ascending

# `coco/image/license` is the key `license` of the image's entry in the COCO file.
IMAGE_ENTRY_PREFIX = "coco/image/"

# Each bucket ends before the min value of the next one.
BRIGHTNESS: Buckets = {0: "dark", 64: "dim", 128: "medium", 192: "bright"}  # mean luma, 0..255
NUM_OBJECTS: Buckets = {
    0: "0 objects",
    1: "1 object",
    2: "2-4 objects",
    5: "5-9 objects",
    10: "10-19 objects",
    20: "20 or more objects",
}
IMAGE_SIZE: Buckets = {0: "to 320 px", 321: "321-640 px", 641: "641-1280 px", 1281: "over 1280 px"}  # the longer side
ASPECT_RATIO: Buckets = {0: "tall", 0.8: "square", 1.25: "wide", 2: "very wide"}  # width / height

_LUMA = np.array([0.299, 0.587, 0.114])  # of RGB, ITU-R BT.601
_JPEG = b"\xff\xd8\xff"


def derive(name: str, example: tf.train.Example) -> list[Value] | None:
    """Computes the values of a derived feature.

    Args:
        name: one of `DERIVED`, or `coco/image/` and a key of the image's COCO entry.
        example: record with the keys of `schemas.features`.

    Returns:
        The values, mostly one; None where there is no such feature: an unknown name, or
        an image whose COCO entry lacks the key or has a list or an object there.

    Raises:
        DataError: the record lacks what the feature is made of, or its image does not
            decode.
    """
    if name in DERIVED:
        return DERIVED[name](example.features.feature)
    if name.startswith(IMAGE_ENTRY_PREFIX):
        entry, _ = unpack_entries(_only_bytes(example.features.feature, features.COCO))
        value = entry.get(name.removeprefix(IMAGE_ENTRY_PREFIX))
        if isinstance(value, bool):
            return [str(value).lower()]
        return [value] if isinstance(value, str | int | float) else None
    return None


def bucket(value: float, buckets: Buckets) -> str:
    """Returns the name of the bucket that holds a value.

    Args:
        value: at least the first bucket's min value.
        buckets: min value of each bucket and its name.

    >>> bucket(4, NUM_OBJECTS), bucket(5, NUM_OBJECTS)
    ('2-4 objects', '5-9 objects')
    """
    return list(buckets.values())[bisect_right(list(buckets), value) - 1]


def _brightness(record: Mapping[str, Any]) -> list[Value]:
    data = _only_bytes(record, features.ENCODED)
    try:
        pixels = decode_rgb_eagerly(data, jpeg=data.startswith(_JPEG))
    except tf.errors.InvalidArgumentError:
        raise DataError(
            f"{_name(record)}: the image does not decode, so its brightness is unknown. Copy the file again."
        ) from None
    return [bucket(float(pixels.reshape(-1, 3).mean(axis=0) @ _LUMA), BRIGHTNESS)]


def _num_objects(record: Mapping[str, Any]) -> list[Value]:
    return [bucket(len(_annotations(record)), NUM_OBJECTS)]


def _object_size(record: Mapping[str, Any]) -> list[Value]:
    """COCO's sizes of the objects: each that there is."""
    ranges = {name: limits for name, limits in make_params().area_ranges.items() if name != "all"}
    areas = [_area(annotation) for annotation in _annotations(record)]
    return [name for name, (least, greatest) in ranges.items() if any(least <= area <= greatest for area in areas)]


def _image_size(record: Mapping[str, Any]) -> list[Value]:
    return [bucket(max(_height_and_width(record)), IMAGE_SIZE)]


def _aspect_ratio(record: Mapping[str, Any]) -> list[Value]:
    height, width = _height_and_width(record)
    return [bucket(width / height, ASPECT_RATIO)]


DERIVED: Mapping[str, Callable[[Mapping[str, Any]], list[Value]]] = {
    "brightness": _brightness,
    "num_objects": _num_objects,
    "object_size": _object_size,
    "image_size": _image_size,
    "aspect_ratio": _aspect_ratio,
}


def _annotations(record: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    return unpack_entries(_only_bytes(record, features.COCO))[1]


def _area(annotation: Mapping[str, Any]) -> float:
    """Returns the area in square pixels as the evaluation takes it: that of the box if `area` is missing."""
    width, height = annotation["bbox"][2:]
    return float(annotation.get("area", width * height))


def _height_and_width(record: Mapping[str, Any]) -> tuple[int, int]:
    height, width = (_only(record, key, record[key].int64_list.value) for key in (features.HEIGHT, features.WIDTH))
    return height, width


def _only_bytes(record: Mapping[str, Any], key: str) -> bytes:
    value: bytes = _only(record, key, record[key].bytes_list.value)
    return value


def _only(record: Mapping[str, Any], key: str, values: Sequence[Any]) -> Any:
    if len(values) != 1:
        raise DataError(f"{_name(record)}: the record lacks {key}. Write the examples with CocoExampleGen.")
    return values[0]


def _name(record: Mapping[str, Any]) -> str:
    names = record[features.FILENAME].bytes_list.value or [b"record without a name"]
    return names[0].decode(errors="replace")
