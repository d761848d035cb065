import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detection.images.decode import decode_rgb, decode_rgb_eagerly
from detection.input_pipeline.network_input import fit_to_input, normalize
from detection.input_pipeline.record_decoder import decode_record
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD
from detection.types import Resizing
from tests.detection.synthetic import example

UNCHANGED: Any = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


def test_jpegs_decode_as_pillow_decodes_them(shared_data: Path) -> None:
    paths = sorted((shared_data / "coco2017_ccby" / "images").glob("*.jpg"))[:10]
    for path in paths:
        with Image.open(path) as image:
            expected = np.asarray(image.convert("RGB"))
        np.testing.assert_array_equal(decode_rgb(path.read_bytes()).numpy(), expected)
        np.testing.assert_array_equal(decode_rgb_eagerly(path.read_bytes(), jpeg=True), expected)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP"])
def test_other_formats_decode_to_three_channels(kind: str) -> None:
    pixels = np.zeros((5, 7, 3), np.uint8)
    pixels[2, 3] = (255, 0, 0)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    np.testing.assert_array_equal(decode_rgb(file.getvalue()).numpy(), pixels)
    np.testing.assert_array_equal(decode_rgb_eagerly(file.getvalue(), jpeg=False), pixels)


def test_a_record_gives_boxes_y_first_and_contiguous_classes_without_crowds() -> None:
    image = np.zeros((50, 100, 3), np.uint8)
    boxes = [[5, 10, 25, 40], [0, 0, 50, 100], [10, 50, 20, 100]]
    sample = decode_record(tf.constant(example(image, boxes, [40, 3, 7], crowd=[0, 1, 0])), category_ids=(3, 7, 40))
    np.testing.assert_allclose(sample.boxes_yxyx.numpy(), [[0.1, 0.1, 0.5, 0.4], [0.2, 0.5, 0.4, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(sample.classes.numpy(), [2, 1])
    assert sample.image.shape == (50, 100, 3)


def test_a_record_without_the_crowd_list_or_without_objects_decodes() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    assert decode_record(tf.constant(example(image, [[0, 0, 4, 4]], [7])), category_ids=(7,)).classes.shape == (1,)
    assert decode_record(tf.constant(example(image, [], [])), category_ids=(7,)).boxes_yxyx.shape == (0, 4)


def test_classes_follow_the_order_of_the_categories_given() -> None:
    """Asymmetric: neither sorted nor reversed."""
    image, boxes = np.zeros((8, 8, 3), np.uint8), [[0, 0, 4, 4]] * 4
    record = tf.constant(example(image, boxes, [2**53, 7, 40, 0]))
    assert decode_record(record, category_ids=(40, 2**53, 0, 7)).classes.numpy().tolist() == [1, 3, 0, 2]


def test_many_objects_among_many_categories_fit_in_memory() -> None:
    """Each of 20,000 labels beside each of 100,000 ids would be 2 GB."""
    labels = [number * 5 for number in range(20_000)]
    record = tf.constant(example(np.zeros((8, 8, 3), np.uint8), [[0, 0, 4, 4]] * len(labels), labels))
    classes = decode_record(record, category_ids=range(100_000)).classes
    np.testing.assert_array_equal(classes, labels)


def test_normalisation_equals_the_original(oracles: dict) -> None:
    expected = oracles["prep.normalise"]["expected"]
    pixels = np.stack([np.zeros(3), np.full(3, 255.0)]).astype(np.float32)
    got = normalize(tf.constant(pixels), mean=IMAGENET_MEAN, std=IMAGENET_STD).numpy()
    np.testing.assert_allclose(got, [expected["zero"], expected["max"]], atol=1e-5)


def test_fitting_equals_the_original(oracles: dict) -> None:
    expected = oracles["prep.resize_effdet"]["expected"]
    image = tf.fill([480, 640, 3], tf.constant(255, tf.uint8))
    fitted, info = fit_to_input(image, image_size=(512, 512), resizing=Resizing((512, 512)), **UNCHANGED)
    filled = fitted.numpy()[..., 0] > 0
    assert (filled.any(1).sum(), filled.any(0).sum()) == tuple(expected["scaled"])
    assert filled[:384, :512].all()
    np.testing.assert_allclose(1 / info.scale.numpy(), expected["image_scale"], rtol=1e-6)
    box = np.array([0.1, 0.2, 0.5, 0.6]) * np.tile(info.original_size.numpy() * info.scale.numpy(), 2)
    np.testing.assert_allclose(box, expected["box"], rtol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(1, 300), (33, 97), (500, 333), (64, 64), (2000, 3)])
def test_the_longer_side_fills_the_input_exactly(height: int, width: int) -> None:
    image = tf.fill([height, width, 3], tf.constant(200, tf.uint8))
    fitted, info = fit_to_input(image, image_size=(64, 64), resizing=Resizing((64, 64)), **UNCHANGED)
    filled = fitted.numpy()[..., 0] > 0
    size = np.array([filled.any(1).sum(), filled.any(0).sum()])
    assert size.max() == 64
    np.testing.assert_allclose(size, info.original_size.numpy() * info.scale.numpy(), rtol=1e-6)
