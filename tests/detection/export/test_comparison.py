"""Differences between a file and its SavedModel, and calibration images unlike the training's."""

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from PIL import Image

from detection.export.comparison import compare_with_saved_model, compare_with_training, draw_images
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.results import Results
from detection.models.detector import Detector
from detection.models.layers.batch_norm import batch_norms
from detection.ops.masks import rle_of_crop
from detection.types import EncodedImage
from tests.detection.export.exported_models import random_detector
from tests.detection.tiny_dense import SIDE


class Listed(SignatureDetector):
    """Gives the same detections for every image."""

    def __init__(self, rows: Iterable[list[float]]) -> None:
        self._rows = np.array([[1.0, *row] for row in rows]).reshape(-1, 7)

    def detect(self, images: object, *, with_masks: bool = True) -> list[Results]:
        crop = np.ones((4, 4), np.float32)
        masks = [rle_of_crop(crop, row[1:5], height=100, width=100) for row in self._rows]
        return [Results(self._rows, masks)] * 2


IMAGES = [EncodedImage(1, "one", b"", 100, 100), EncodedImage(2, "two", b"", 100, 100)]
ROWS = [
    [10.0, 10.0, 20.0, 20.0, 0.9, 3.0],
    [50.0, 50.0, 10.0, 30.0, 0.5, 3.0],
    [50.0, 50.0, 10.0, 30.0, 0.4, 7.0],
    [0.0, 90.0, 5.0, 0.0, 0.1, 7.0],  # without area
]


def test_differences_worked_by_hand() -> None:
    moved = [list(row) for row in ROWS[::-1]]
    moved[3][0] += 2  # the first: IoU 18 / 22
    moved[3][4] -= 0.25
    moved[2][5] = 8.0  # the second has no counterpart of its category
    found = compare_with_saved_model(Listed(moved), Listed(ROWS), IMAGES)
    assert (found.images, found.detections) == (2, 8)
    np.testing.assert_allclose(found.scores, [0.25, 0, 0] * 2, atol=1e-9)
    np.testing.assert_allclose(found.boxes, [2, 0, 0] * 2, atol=1e-9)
    assert found.mask_ious is not None
    np.testing.assert_allclose(found.mask_ious[:2], [18 / 22, 1], atol=0.01)  # pasted corners are round
    assert str(found).startswith("compared with the SavedModel on 2 images: 6 of 8 detections have a counterpart")
    assert "boxes in pixels differ by 0.67 on average, 2 at most" in str(found)


def test_no_detections_are_told() -> None:
    nothing, something = Listed([]), Listed(ROWS)
    assert "it detects nothing on them" in str(compare_with_saved_model(something, nothing, IMAGES))
    assert "0 of 8 detections" in str(compare_with_saved_model(nothing, something, IMAGES))


@pytest.fixture(scope="module")
def detector() -> Detector:
    """Batch norms have the statistics of `coarse` images."""
    detector = random_detector()
    for layer in batch_norms(detector):
        layer.momentum = 0.0
    (pixels,) = coarse(seed=0, count=64)
    mean, std = (np.array(values, np.float32) for values in (detector.pixel_mean, detector.pixel_std))
    detector((pixels - mean) / std, training=True)
    return detector


def coarse(seed: int, count: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(seed)
    tiles = [Image.fromarray(random.integers(0, 256, (6, 6, 3), np.uint8)).resize((SIDE, SIDE)) for _ in range(count)]
    yield np.stack([np.asarray(tile) for tile in tiles])


def test_images_unlike_the_trainings_are_told(detector: Detector) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (8, SIDE, SIDE, 3), np.uint8)
    before = [variable.numpy() for variable in detector.variables]
    assert compare_with_training(detector, coarse(seed=2, count=24)) == []
    for other in (noise, np.zeros_like(noise), noise // 8):
        (message,) = compare_with_training(detector, [other])
        assert "the calibration images look unlike the training's" in message
    for variable, old in zip(detector.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)


def test_drawn_images_have_sizes_that_are_resized() -> None:
    images = draw_images((64, 96))
    assert [(image.height, image.width) for image in images] == [(64, 96), (32, 96), (64, 38), (109, 192)]
