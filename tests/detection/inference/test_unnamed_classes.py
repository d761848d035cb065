"""Class outputs without a category: in the detector's answer, never in that of its signatures."""

from typing import Any

import numpy as np
import tensorflow as tf

from detection.inference.formats.serving_module import ServingModule, keep_classes
from detection.types import Detections, ImageInfo
from tests.detection.training.tiny_detector import TinyConfig, TinyDetector

BATCH, SLOTS, CLASSES = 5, 12, 4
KEPT = [True, False, True, False]


def _detections() -> Detections:
    random = np.random.default_rng(0)
    num = np.array([SLOTS, 7, 1, 0, 9], np.int32)
    filled = np.arange(SLOTS) < num[:, None]
    scores = np.sort(random.uniform(0.1, 1, (BATCH, SLOTS)), axis=1)[:, ::-1] * filled
    return Detections(
        boxes=tf.constant(random.uniform(size=(BATCH, SLOTS, 4)) * filled[..., None], tf.float32),
        scores=tf.constant(scores, tf.float32),
        classes=tf.constant(random.integers(0, CLASSES, (BATCH, SLOTS)) * filled, tf.int32),
        num=tf.constant(num),
        masks=tf.constant(random.uniform(size=(BATCH, SLOTS, 2, 2)), tf.float32),
        keypoints=tf.constant(random.uniform(size=(BATCH, SLOTS, 3, 3)), tf.float32),
    )


def test_the_others_move_up_in_their_order() -> None:
    before = _detections()
    after = tf.function(keep_classes, jit_compile=True)(before, KEPT)
    for image in range(BATCH):
        stay = [slot for slot in range(int(before.num[image])) if KEPT[int(before.classes[image, slot])]]
        assert after.num[image] == len(stay)
        for old, new in zip(before, after, strict=True):
            if old is not None and old.shape.rank > 1:
                assert new.shape == old.shape
                np.testing.assert_array_equal(new[image, : len(stay)], old.numpy()[image][stay])
                assert not new[image, len(stay) :].numpy().any()
    assert int(after.num[3]) == 0


class _Fixed(TinyDetector):
    def detect(self, outputs: Any, image_info: ImageInfo) -> Detections:
        return _detections()._replace(masks=None, keypoints=None)


def test_signatures_leave_out_what_has_no_category() -> None:
    named = [{"id": 10 + number, "name": f"class {number}"} for number in range(CLASSES)]
    unnamed = [entry if kept else {**entry, "name": None} for entry, kept in zip(named, KEPT, strict=True)]
    detector = _Fixed(config=TinyConfig(), num_classes=CLASSES, name="tiny")
    images = tf.zeros((BATCH, 40, 60, 3), tf.uint8)
    whole, part = (ServingModule(detector, entries).serve_images(images) for entries in (named, unnamed))
    lost = 0
    for image in range(BATCH):
        count, left = (int(answer["num_detections"][image]) for answer in (whole, part))
        classes = whole["detection_classes"][image, :count].numpy()
        stay = np.isin(classes, [10, 12])
        assert left == stay.sum()
        lost += count - left
        for name in ("detection_boxes", "detection_scores", "detection_classes"):
            np.testing.assert_array_equal(part[name][image, :left], whole[name][image, :count].numpy()[stay])
    assert lost > 0
