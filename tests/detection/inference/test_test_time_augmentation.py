import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detection.images.decode import decode_rgb
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.test_time_augmentation import AugmentedDetector, View, augmented, list_views
from detection.types import EncodedImage
from schemas import serving
from schemas.config.evaluate import ViewsConfig
from schemas.errors import DataError

HEIGHT, WIDTH = 120, 200
SLOTS = 3


def _image(*boxes: tuple[int, int, int, int], image_id: int = 1) -> EncodedImage:
    """An image with rectangles, each in a pure colour."""
    pixels = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    for channel, (top, left, bottom, right) in enumerate(boxes):
        pixels[top:bottom, left:right] = np.eye(3, dtype=np.uint8)[channel] * 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return EncodedImage(image_id, f"{image_id}.png", file.getvalue(), HEIGHT, WIDTH)


class Finder:
    """A model that finds rectangles in pure red, green and blue: classes 7, 8, 9; scores fall with the side shown."""

    def __init__(self, **more: Any) -> None:
        self.calls = 0
        self.more = more

    def __call__(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        self.calls += 1
        found = [self._find(decode_rgb(encoded).numpy()) for encoded in images]
        boxes = np.zeros((len(found), SLOTS, 4), np.float32)
        scores, classes = np.zeros((len(found), SLOTS), np.float32), np.zeros((len(found), SLOTS), np.int64)
        for number, rows in enumerate(found):
            for slot, (box, score, label) in enumerate(rows):
                boxes[number, slot], scores[number, slot], classes[number, slot] = box, score, label
        outputs = {serving.BOXES: boxes, serving.SCORES: scores, serving.CLASSES: classes}
        outputs[serving.COUNT] = np.array([len(rows) for rows in found], np.int32)
        return {name: tf.constant(value) for name, value in (outputs | self.more).items()}

    def _find(self, pixels: np.ndarray) -> list[Any]:
        size = np.array(pixels.shape[:2])
        rows = []
        for channel in range(3):
            places = np.argwhere((pixels == np.eye(3, dtype=np.uint8)[channel] * 255).all(axis=2))
            if len(places):
                box = np.concatenate([places.min(axis=0) / size, (places.max(axis=0) + 1) / size])
                rows.append((box, 0.8, 7 + channel))
        return rows


def _detect(images: Sequence[EncodedImage], *views: View) -> list[np.ndarray]:
    detector = AugmentedDetector(SignatureDetector(Finder(), batch_size=4), views, batch_size=4)
    return [results.rows for results in detector.detect(images)]


PLAIN = View(1.0, flip=False)
RED, GREEN = (10, 20, 50, 100), (30, 150, 100, 170)


@pytest.mark.parametrize(
    "views",
    [
        [PLAIN, View(1.0, flip=True)],
        [PLAIN, View(0.8, flip=False)],
        [PLAIN, View(0.5, flip=True)],
        [PLAIN, View(1.25, flip=False)],
        [PLAIN, View(2.0, flip=True)],
        list_views(ViewsConfig(flip=True, scales=(0.8, 1.2))),
    ],
    ids=str,
)
def test_each_view_gives_the_same_boxes(views: list[View]) -> None:
    rows = _detect([_image(RED, GREEN, image_id=3), _image(GREEN, image_id=5)], *views)
    # image, x, y, width, height, score, category; the boxes are seen whole by all views.
    expected = [[3, 20, 10, 80, 40, 0.8, 7], [3, 150, 30, 20, 70, 0.8, 8]]
    np.testing.assert_allclose(rows[0][np.argsort(rows[0][:, 6])], expected, rtol=1e-5)
    np.testing.assert_allclose(rows[1], [[5, 150, 30, 20, 70, 0.8, 7]], rtol=1e-5)


def test_the_image_alone_is_detected_on_as_it_is() -> None:
    images = [_image(RED, GREEN), _image(GREEN)]
    detector = SignatureDetector(Finder(), batch_size=4)
    for one, two in zip(detector.detect(images), _detect(images, PLAIN), strict=True):
        np.testing.assert_array_equal(one.rows, two)


def test_parts_that_cut_an_object_do_not_count() -> None:
    # At twice the size, each part shows a quarter of the image, and this box lies in none.
    wide = (10, 20, 50, 180)
    rows = _detect([_image(wide)], PLAIN, View(2.0, flip=False))
    np.testing.assert_allclose(rows[0], [[1, 20, 10, 160, 40, 0.8, 7]], rtol=1e-5)


def test_the_order_of_the_views_does_not_matter() -> None:
    views = list_views(ViewsConfig(flip=True, scales=(0.7, 1.3)))
    image = _image((11, 23, 51, 104), (30, 149, 103, 171))
    first = _detect([image], *views)[0]
    second = _detect([image], PLAIN, *views[:0:-1])[0]
    np.testing.assert_allclose(first, second, rtol=1e-12)


def test_views_of_a_configuration() -> None:
    assert list_views(ViewsConfig(scales=(0.8, 1.0, 0.8))) == [PLAIN, View(0.8, flip=False)]
    assert len(list_views(ViewsConfig(flip=True, scales=(0.8, 1.2)))) == 6


def test_without_views_the_detector_stays_itself() -> None:
    detector = SignatureDetector(Finder(), batch_size=4)
    assert augmented(detector, ViewsConfig(scales=(1.0,)), batch_size=4) is detector
    assert isinstance(augmented(detector, ViewsConfig(flip=True), batch_size=4), AugmentedDetector)


def test_the_calls_are_filled_with_parts() -> None:
    finder = Finder()
    detector = AugmentedDetector(SignatureDetector(finder, batch_size=4), [PLAIN, View(1.0, flip=True)], batch_size=4)
    detector.detect([_image(RED, image_id=number) for number in range(4)])
    assert finder.calls == 2


def test_masks_are_refused_before_any_image() -> None:
    finder = Finder(**{serving.MASKS: np.zeros((4, SLOTS, 2, 2), np.float32)})
    with pytest.raises(DataError, match=r"^test-time augmentation only fuses boxes, .* detection_masks"):
        augmented(SignatureDetector(finder, batch_size=4), ViewsConfig(flip=True), batch_size=4)


def test_no_image() -> None:
    assert _detect([], PLAIN) == []
