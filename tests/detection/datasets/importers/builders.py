"""Records as other tools write them, made with TensorFlow's own writer."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image


def example(values: Mapping[str, Any]) -> bytes:
    """A serialised Example; text and bytes, ints and floats, alone or in lists, by their type."""
    return tf.train.Example(
        features=tf.train.Features(feature={key: _feature(value) for key, value in values.items()})
    ).SerializeToString()


def _feature(value: Any) -> tf.train.Feature:
    values = value if isinstance(value, list) else [value]
    if all(isinstance(each, int) for each in values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if all(isinstance(each, float) for each in values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    encoded = [each.encode() if isinstance(each, str) else each for each in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))


def write_shard(path: Path, records: Iterable[bytes], *, compression: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def encoded_image(height: int, width: int, *, image_format: str = "PNG", seed: int = 0, orientation: int = 1) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, [height, width, 3], np.uint8)
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(buffer, image_format, **({"exif": exif} if orientation != 1 else {}))
    return buffer.getvalue()


def mask_png(inside: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(inside.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def boxes(rows: list[list[float]], *, height: int, width: int) -> dict[str, list[float]]:
    """The four corner lists of COCO boxes, normalised as the tools do it."""
    return {
        "image/object/bbox/xmin": [x / width for x, _, _, _ in rows],
        "image/object/bbox/ymin": [y / height for _, y, _, _ in rows],
        "image/object/bbox/xmax": [(x + w) / width for x, _, w, _ in rows],
        "image/object/bbox/ymax": [(y + h) / height for _, y, _, h in rows],
    }


def automl_record(source_id: Any = 7, *, objects: int = 2, seed: int = 0, **more: Any) -> bytes:
    """A record of a 40x60 image with two boxes, cats (label 17) and dogs (label 3) in turn; `more` with __ for /."""
    rows = [[3.25, 4.5, 10.0, 20.75], [30.0, 2.0, 25.5, 7.25]][:objects]
    values = {
        "image/encoded": encoded_image(40, 60, seed=seed),
        "image/format": "png",
        "image/filename": f"picture_{seed}.png",
        "image/source_id": source_id,
        "image/height": 40,
        "image/width": 60,
        **boxes(rows, height=40, width=60),
        "image/object/class/label": [17, 3][:objects],
        "image/object/class/text": ["cat", "dog"][:objects],
        "image/object/is_crowd": [0, 1][:objects],
        "image/object/area": [100.5, 33.25][:objects],
        **{key.replace("__", "/"): value for key, value in more.items()},
    }
    return example({key: value for key, value in values.items() if value is not None})
