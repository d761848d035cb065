"""Features to slice images by that are not in their records; computed on demand."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from components.coco_evaluator.tfma.slice_metrics import Value
from detection.coco.params import make_params
from detection.images.decode import decode_rgb_eagerly
from detection.input_pipeline.evaluation_records import EvaluationRecord
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

_LUMA = np.array([0.299, 0.587, 0.114])  # weights of R, G and B (ITU-R BT.601)
_JPEG = b"\xff\xd8\xff"


def derive(name: str, record: EvaluationRecord) -> list[Value] | None:
    """Computes the values of a derived feature.

    Args:
        name: one of `DERIVED`, or `coco/image/` and a key of the image's COCO entry.
        record: the image with its ground truth.

    Returns:
        The values, mostly one; None where there is no such feature: an unknown name, or
        an image whose COCO entry lacks the key or has a list or an object there.

    Raises:
        DataError: the image does not decode.
    """
    if name in DERIVED:
        return DERIVED[name](record)
    if name.startswith(IMAGE_ENTRY_PREFIX):
        value = record.entry.get(name.removeprefix(IMAGE_ENTRY_PREFIX))
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


def _brightness(record: EvaluationRecord) -> list[Value]:
    data = record.image.encoded
    try:
        pixels = decode_rgb_eagerly(data, jpeg=data.startswith(_JPEG))
    except tf.errors.InvalidArgumentError:
        raise DataError(
            f"{record.image.name}: the image does not decode, so its brightness is unknown. Copy the file again."
        ) from None
    return [bucket(float(pixels.reshape(-1, 3).mean(axis=0) @ _LUMA), BRIGHTNESS)]


def _object_size(record: EvaluationRecord) -> list[Value]:
    """COCO's sizes of the objects: each that there is."""
    ranges = {name: limits for name, limits in make_params().area_ranges.items() if name != "all"}
    areas = list(map(_area, record.annotations))
    return [name for name, (low, high) in ranges.items() if any(low <= area <= high for area in areas)]


def _area(annotation: Mapping[str, Any]) -> float:
    """Returns the area in square pixels as the evaluation takes it: that of the box if `area` is missing."""
    width, height = annotation["bbox"][2:]
    return float(annotation.get("area", width * height))


DERIVED: Mapping[str, Callable[[EvaluationRecord], list[Value]]] = {
    "brightness": _brightness,
    "num_objects": lambda record: [bucket(len(record.annotations), NUM_OBJECTS)],
    "object_size": _object_size,
    "image_size": lambda record: [bucket(max(record.image.height, record.image.width), IMAGE_SIZE)],
    "aspect_ratio": lambda record: [bucket(record.image.width / record.image.height, ASPECT_RATIO)],
}
