"""What images can be sliced by besides their records' features."""

import io
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from components.coco_evaluator.tfma import derived_features
from components.coco_evaluator.tfma.derived_features import bucket, derive
from detection.datasets.annotations.packed_entries import pack_entries
from detection.input_pipeline.evaluation_records import parse_record
from schemas.errors import DataError


def record(
    *, size: tuple[int, int] = (30, 40), colour: Any = (0, 0, 0), areas: tuple[float | None, ...] = (), **entry: Any
) -> tf.train.Example:
    """An image of one colour; `size` is height, width; an area of None is not said, and the box's is 400."""
    file = io.BytesIO()
    Image.new("RGB", size[::-1], colour).save(file, "PNG")
    common = {"image_id": 7, "category_id": 1, "bbox": [0, 0, 20, 20]}
    annotations = [{"id": i, **common, "area": area} for i, area in enumerate(areas)]
    said = [{key: value for key, value in a.items() if value is not None} for a in annotations]
    feature = {
        "image/encoded": bytes_feature(file.getvalue()),
        "image/filename": bytes_feature(b"a.png"),
        "image/height": tf.train.Feature(int64_list=tf.train.Int64List(value=[size[0]])),
        "image/width": tf.train.Feature(int64_list=tf.train.Int64List(value=[size[1]])),
        "coco/annotations": bytes_feature(pack_entries({"id": 7, "file_name": "a.png", **entry}, said)),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


def bytes_feature(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


@pytest.mark.parametrize(
    ("name", "example", "values"),
    [
        ("brightness", record(colour=(63, 63, 63)), ["dark"]),
        ("brightness", record(colour=(65, 65, 65)), ["dim"]),
        # 0.299 * 255 = 76, 0.587 * 255 = 150, 0.114 * 255 = 29
        ("brightness", record(colour=(255, 0, 0)), ["dim"]),
        ("brightness", record(colour=(0, 255, 0)), ["medium"]),
        ("brightness", record(colour=(0, 0, 255)), ["dark"]),
        ("brightness", record(colour=(255, 255, 255)), ["bright"]),
        ("num_objects", record(), ["0 objects"]),
        ("num_objects", record(areas=(5.0,)), ["1 object"]),
        ("num_objects", record(areas=(5.0,) * 4), ["2-4 objects"]),
        ("num_objects", record(areas=(5.0,) * 25), ["20 or more objects"]),
        ("object_size", record(), []),
        ("object_size", record(areas=(None, 1e6)), ["small", "large"]),
        ("object_size", record(areas=(32.0**2,)), ["small", "medium"]),  # COCO counts both
        ("image_size", record(size=(320, 10)), ["to 320 px"]),
        ("image_size", record(size=(10, 321)), ["321-640 px"]),
        ("aspect_ratio", record(size=(40, 20)), ["tall"]),
        ("aspect_ratio", record(size=(40, 40)), ["square"]),
        ("aspect_ratio", record(size=(40, 60)), ["wide"]),
        ("aspect_ratio", record(size=(20, 60)), ["very wide"]),
        ("coco/image/license", record(license=3), [3]),
        ("coco/image/weather", record(weather="fog"), ["fog"]),
        ("coco/image/night", record(night=True), ["true"]),
        ("coco/image/tags", record(tags=["a"]), None),
        ("coco/image/license", record(), None),
        ("image/height", record(), None),
    ],
)
def test_values(name: str, example: tf.train.Example, values: list[Any] | None) -> None:
    assert derive(name, parse_record(example.SerializeToString())) == values


def test_each_bucket_ends_where_the_next_begins() -> None:
    for buckets in (
        derived_features.BRIGHTNESS,
        derived_features.NUM_OBJECTS,
        derived_features.IMAGE_SIZE,
        derived_features.ASPECT_RATIO,
    ):
        assert list(buckets) == sorted(buckets)
        assert [bucket(least, buckets) for least in buckets] == list(buckets.values())
        below = [bucket(np.nextafter(least, 0), buckets) for least in list(buckets)[1:]]
        assert below == list(buckets.values())[:-1]


def test_a_broken_image_is_named() -> None:
    example = record()
    example.features.feature["image/encoded"].bytes_list.value[:] = [b"\xff\xd8\xffno more"]
    with pytest.raises(DataError, match=r"a\.png: the image does not decode, so its brightness is unknown"):
        derive("brightness", parse_record(example.SerializeToString()))
