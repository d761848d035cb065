"""Small records made by hand: coloured rectangles on grey, one class per colour."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from schemas import features

COLOURS = np.array([[250, 20, 20], [20, 250, 20], [20, 20, 250]], np.uint8)
CATEGORY_IDS = (3, 7, 40)


def example(
    image: np.ndarray,
    boxes_yxyx: Sequence[Sequence[float]],
    labels: Sequence[int],
    crowd: Sequence[int] | None = None,
    weights: Sequence[float] = (),
) -> bytes:
    """A serialised record: uint8 [H, W, 3], pixel boxes, category ids."""
    height, width = image.shape[:2]
    boxes = np.array(boxes_yxyx, np.float32).reshape(-1, 4) / [height, width, height, width]
    keys = (features.BBOX_YMIN, features.BBOX_XMIN, features.BBOX_YMAX, features.BBOX_XMAX)
    entries = {
        key: tf.train.Feature(float_list=tf.train.FloatList(value=boxes[:, column])) for column, key in enumerate(keys)
    }
    encoded = tf.io.encode_png(image).numpy()
    entries[features.ENCODED] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))
    entries[features.CLASS_LABEL] = tf.train.Feature(int64_list=tf.train.Int64List(value=labels))
    if crowd is not None:
        entries[features.IS_CROWD] = tf.train.Feature(int64_list=tf.train.Int64List(value=crowd))
    if weights:
        entries[features.WEIGHT] = tf.train.Feature(float_list=tf.train.FloatList(value=weights))
    return bytes(tf.train.Example(features=tf.train.Features(feature=entries)).SerializeToString())


def rectangles(count: int, *, side: int = 64, seed: int = 0) -> list[bytes]:
    """Records of one to three rectangles each."""
    random = np.random.default_rng(seed)
    records = []
    for _ in range(count):
        image = np.full((side, side, 3), 128, np.uint8)
        boxes, labels = [], []
        for _ in range(random.integers(1, 4)):
            height, width = random.integers(side // 6, side // 2, 2)
            top, left = random.integers(0, side - height), random.integers(0, side - width)
            kind = int(random.integers(3))
            image[top : top + height, left : left + width] = COLOURS[kind]
            boxes.append([top, left, top + height, left + width])
            labels.append(CATEGORY_IDS[kind])
        records.append(example(image, boxes, labels))
    return records


def write_shards(folder: Path, records: Sequence[bytes], shards: int = 2) -> list[str]:
    """Writes plain TFRecord files; record i goes to shard i modulo their number."""
    paths = [str(folder / f"data-{number:05d}-of-{shards:05d}") for number in range(shards)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for record in records[number::shards]:
                writer.write(record)
    return paths
