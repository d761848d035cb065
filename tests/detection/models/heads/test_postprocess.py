import numpy as np
import tensorflow as tf

from detection.models.heads.postprocess import BoxPostprocess, suppress, top_candidates
from detection.types import ImageInfo


def test_candidates_are_the_best_pairs() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 50, 4)).astype(np.float32)
    candidates = top_candidates(tf.constant(logits), 20)
    for image in range(2):
        order = np.argsort(-logits[image].ravel())[:20]
        np.testing.assert_array_equal(candidates.anchors[image], order // 4)
        np.testing.assert_array_equal(candidates.classes[image], order % 4)
        np.testing.assert_array_equal(candidates.logits[image], logits[image].ravel()[order])


def test_fewer_pairs_than_asked_for() -> None:
    assert top_candidates(tf.zeros([1, 3, 2]), 100).logits.shape == (1, 6)


def test_boxes_come_back_to_the_original_image() -> None:
    # A 100 high, 400 wide original, halved in y and quartered in x: 50 by 100 pixels of the input.
    image_info = ImageInfo(original_size=tf.constant([[100.0, 400.0]]), scale=tf.constant([[0.5, 0.25]]))
    boxes = tf.constant([[[5.0, 10.0, 25.0, 50.0], [40.0, -10.0, 60.0, 120.0], [0.0, 0.0, 1.0, 1.0]]])
    detections = suppress(
        boxes,
        tf.constant([[0.6, 0.9, 0.2]]),
        tf.constant([[1, 2, 0]]),
        image_info,
        BoxPostprocess(score_threshold=0.3, iou_threshold=0.5, max_detections=4, pre_nms_top_k=3),
    )
    expected = [[0.8, 0.0, 1.0, 1.0], [0.1, 0.1, 0.5, 0.5], [0.0] * 4, [0.0] * 4]
    np.testing.assert_allclose(detections.boxes[0], expected, atol=1e-6)
    np.testing.assert_allclose(detections.scores[0], [0.9, 0.6, 0.0, 0.0])
    assert detections.classes.numpy().tolist() == [[2, 1, 0, 0]]
    assert detections.num.numpy().tolist() == [2]
