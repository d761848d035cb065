"""Class outputs without a category: in the detector's answer, never in that of its signatures."""

import numpy as np
import tensorflow as tf

from detection.inference.serving_module import ServingModule, keep_classes
from detection.types import Detections
from tests.detection.training.evaluation_records import CATEGORIES
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
            if old.shape.rank > 1:
                assert new.shape == old.shape
                np.testing.assert_array_equal(new[image, : len(stay)], old.numpy()[image][stay])
                assert not new[image, len(stay) :].numpy().any()
    assert int(after.num[3]) == 0


def test_signatures_leave_out_what_has_no_category() -> None:
    detector = TinyDetector(config=TinyConfig(), num_classes=len(CATEGORIES), name="tiny")
    images = tf.constant(np.random.default_rng(1).integers(0, 256, (2, 40, 60, 3), np.uint8))
    gone = CATEGORIES[0]["id"]
    unnamed = [{**CATEGORIES[0], "name": None}, *CATEGORIES[1:]]
    whole, part = (ServingModule(detector, entries).serve_images(images) for entries in (CATEGORIES, unnamed))
    for image in range(2):
        count = int(whole["num_detections"][image])
        classes = whole["detection_classes"][image, :count].numpy()
        left = int(part["num_detections"][image])
        assert 0 < left < count
        assert gone in classes
        np.testing.assert_array_equal(part["detection_classes"][image, :left], classes[classes != gone])
        scores = whole["detection_scores"][image, :count].numpy()
        np.testing.assert_array_equal(part["detection_scores"][image, :left], scores[classes != gone])
