"""TFX's statistics of records, with the pipeline's options: small whatever the records hold, and without anomalies."""

import io
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from PIL import Image
from tensorflow_metadata.proto.v0 import schema_pb2

import schemas
from detection.datasets.annotations.packed_entries import unpack_entries
from detection.datasets.encode_record import encode_example
from detection.images.inspect import ImageFile
from schemas import features

pytestmark = pytest.mark.slow

SCHEMA = Path(schemas.__file__).with_name("records.pbtxt")
IMAGES, OBJECTS, POINTS = 1000, 60, 40
WIDTH, HEIGHT = 640, 480
NAMES = {7 * n: f"category {n}" for n in range(1, 81)}


def _entries(number: int, rng: np.random.Generator) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An image of COCO's size and kind, with polygons in steps of a hundredth of a pixel."""
    centres = rng.uniform((100, 100), (WIDTH - 100, HEIGHT - 100), (OBJECTS, 1, 2))
    polygons = np.round(centres + rng.uniform(-99, 99, (OBJECTS, POINTS, 2)), 2)
    low, sides = polygons.min(axis=1), np.round(np.ptp(polygons, axis=1), 2)
    annotations = [
        {
            "segmentation": [polygons[n].ravel().tolist()],
            "area": float(np.prod(sides[n])) / 2,
            "iscrowd": 0,
            "image_id": number,
            "bbox": [*low[n].tolist(), *sides[n].tolist()],
            "category_id": 7 * int(rng.integers(1, 81)),
            "id": OBJECTS * number + n,
        }
        for n in range(OBJECTS)
    ]
    image = {
        "license": 3,
        "file_name": f"{number:012d}.jpg",
        "coco_url": f"http://images.example.org/train/{number:012d}.jpg",
        "height": HEIGHT,
        "width": WIDTH,
        "date_captured": "2013-11-14 17:02:52",
        "id": number,
    }
    return image, annotations


def _write(path: Path, files: Iterable[ImageFile]) -> Path:
    """A record of each image file."""
    rng = np.random.default_rng(0)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, file in enumerate(files):
            example = encode_example(file, *_entries(number, rng), category_names=NAMES)
            writer.write(example.SerializeToString())
    return path


def _png(number: int) -> ImageFile:
    """One pixel, of a colour of its own."""
    buffer = io.BytesIO()
    Image.new("RGB", (1, 1), (number % 256, number // 256, 9)).save(buffer, "PNG")
    return ImageFile(buffer.getvalue(), "png", HEIGHT, WIDTH, "RGB", 1, "")


def _dark_bmp(number: int) -> ImageFile:
    """A BMP of which each byte is an ASCII character."""
    pixels = np.random.default_rng(number).integers(0, 100, (64, 64, 3), np.uint8).tobytes()
    header = b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54)
    header += struct.pack("<IiiHHIIiiII", 40, 64, 64, 1, 24, 0, len(pixels), 2835, 2835, 0, 0)
    assert (header + pixels).isascii()
    return ImageFile(header + pixels, "bmp", 64, 64, "RGB", 1, "")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("records") / "shard", map(_png, range(IMAGES)))


def _statistics(records: Path) -> tuple[Any, Any]:
    """Statistics as the pipeline's StatisticsGen makes them, and the schema."""
    import tensorflow_data_validation as tfdv

    schema = tfdv.load_schema_text(str(SCHEMA))
    options = tfdv.StatsOptions(schema=schema)
    return tfdv.generate_statistics_from_tfrecord(str(records), stats_options=options), schema


def test_statistics_of_many_annotations_are_small_and_without_anomalies(records: Path) -> None:
    import tensorflow_data_validation as tfdv

    assert records.stat().st_size > 10_000_000
    statistics, schema = _statistics(records)
    assert statistics.ByteSize() < 1_000_000
    assert not tfdv.validate_statistics(statistics, schema).anomaly_info
    [dataset] = statistics.datasets
    assert dataset.num_examples == IMAGES
    by_name = {feature.path.step[0]: feature for feature in dataset.features}
    assert by_name.keys() == {feature.name for feature in schema.feature} - {features.WEIGHT}  # optional
    labels = by_name[features.CLASS_LABEL].num_stats
    assert (labels.min, labels.max, labels.common_stats.tot_num_values) == (7, 560, IMAGES * OBJECTS)


def test_images_that_could_be_text_stay_out_of_the_statistics(tmp_path: Path) -> None:
    records = _write(tmp_path / "shard", map(_dark_bmp, range(20)))
    statistics, _ = _statistics(records)
    assert statistics.ByteSize() < 100_000


def test_tensorflow_alone_reads_the_records_as_the_schema_describes_them(records: Path) -> None:
    from tensorflow_transform.tf_metadata import schema_utils

    schema = text_format.Parse(SCHEMA.read_text(), schema_pb2.Schema())
    spec = schema_utils.schema_as_feature_spec(schema).feature_spec
    read = 0
    for batch in tf.data.TFRecordDataset(str(records)).batch(100).map(lambda batch: tf.io.parse_example(batch, spec)):
        images = [unpack_entries(packed) for packed in batch[features.COCO].numpy()[:, 0]]
        read += len(images)
        assert batch[features.SOURCE_ID].numpy()[:, 0].tolist() == [str(image["id"]).encode() for image, _ in images]
        boxes = np.array([[annotation["bbox"] for annotation in annotations] for _, annotations in images])
        for key, corner in (
            (features.BBOX_XMIN, boxes[..., 0] / WIDTH),
            (features.BBOX_XMAX, (boxes[..., 0] + boxes[..., 2]) / WIDTH),
            (features.BBOX_YMIN, boxes[..., 1] / HEIGHT),
            (features.BBOX_YMAX, (boxes[..., 1] + boxes[..., 3]) / HEIGHT),
        ):
            np.testing.assert_allclose(tf.sparse.to_dense(batch[key]), corner, rtol=1e-6)
        texts = tf.sparse.to_dense(batch[features.CLASS_TEXT]).numpy()
        expected = [[NAMES[annotation["category_id"]].encode() for annotation in each] for _, each in images]
        assert texts.tolist() == expected
    assert read == IMAGES
