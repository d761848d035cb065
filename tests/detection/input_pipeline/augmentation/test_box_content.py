import numpy as np
import tensorflow as tf

from detection.input_pipeline.augmentation.affine import Content, translation_x, warp_content
from detection.input_pipeline.augmentation.box_content import change_boxes, pixel_box
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import (
    assert_equal,
    assert_points_show_their_origin,
    coordinate_sample,
)

BOXES = [(3, 4, 12, 20), (14, 2, 19, 9), (13, 30, 24, 38)]
ALWAYS = tf.constant(1.0)


def _invert(content: Content, _: tf.Tensor) -> Content:
    return content._replace(image=255 - content.image)


def _shift(content: Content, _: tf.Tensor) -> Content:
    return warp_content(content, translation_x(tf.constant(3.0)))


def _sample() -> Sample:
    return coordinate_sample(26, 40, BOXES)


def test_the_pixels_of_a_box() -> None:
    image = tf.zeros([10, 30, 3], tf.uint8)
    boxes = [[0.3, 0.1, 0.7, 0.9], [0.31, 0.0, 0.32, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    expected = [[3, 3, 7, 27], [3, 0, 4, 30], [0, 0, 1, 1], [9, 29, 10, 30]]
    np.testing.assert_array_equal(pixel_box(tf.constant(boxes), image).numpy(), expected)


def test_only_pixels_in_boxes_change() -> None:
    sample = _sample()
    changed = change_boxes(sample, _invert, probability=ALWAYS, seed=tf.constant([1, 2]))
    expected = sample.image.numpy()
    for top, left, bottom, right in BOXES:
        expected[top:bottom, left:right] = 255 - expected[top:bottom, left:right]
    assert_equal(changed, sample._replace(image=tf.constant(expected)))


def test_each_box_draws_for_itself() -> None:
    """Of 3 boxes and probability 0.25, all 8 outcomes come up as often as they should."""
    sample = _sample()._replace(masks=None, keypoints=None)
    seeds = tf.data.Dataset.range(1500).map(lambda number: tf.stack([tf.cast(number, tf.int32), 3]))
    images = seeds.map(lambda seed: change_boxes(sample, _invert, probability=tf.constant(0.25), seed=seed).image)
    corners = np.array(BOXES)[:, :2]
    before = sample.image.numpy()[tuple(corners.T)]
    outcomes = [tuple((image[tuple(corners.T)] != before).any(-1)) for image in images.as_numpy_iterator()]
    for outcome in np.ndindex(2, 2, 2):
        expected = 0.25 ** sum(outcome) * 0.75 ** (3 - sum(outcome))
        found = np.mean([drawn == tuple(map(bool, outcome)) for drawn in outcomes])
        assert abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / 1500), outcome


def test_masks_and_keypoints_follow_the_pixels() -> None:
    sample = _sample()
    changed = change_boxes(sample, _shift, probability=ALWAYS, seed=tf.constant([1, 2]))
    np.testing.assert_array_equal(changed.boxes_yxyx.numpy(), sample.boxes_yxyx.numpy())
    assert changed.masks is not None
    assert changed.keypoints is not None
    for (top, left, bottom, right), mask in zip(BOXES, changed.masks.numpy(), strict=True):
        expected = np.zeros((26, 40))
        expected[top:bottom, left : right - 3] = 1
        np.testing.assert_array_equal(mask, expected)
    # In each box the first keypoint is pushed out, the second moves with its pixel.
    np.testing.assert_array_equal(changed.keypoints.numpy()[:, 0], np.zeros((3, 3)))
    assert assert_points_show_their_origin(changed, {0: sample}, atol=1e-3) == 3


def test_a_neighbours_keypoints_move_where_its_pixels_do() -> None:
    sample = coordinate_sample(20, 40, [(2, 5, 18, 25), (4, 20, 8, 34)])
    only_first = tf.constant([0.05, 0.125, 0.9, 0.625])
    part = sample._replace(boxes_yxyx=only_first[tf.newaxis])
    changed = change_boxes(part, _shift, probability=ALWAYS, seed=tf.constant([1, 2]))
    assert changed.masks is not None
    assert changed.keypoints is not None
    np.testing.assert_allclose(changed.keypoints.numpy()[1] * [20, 40, 1], [[4.5, 17.5, 2], [7.5, 33.5, 1]], atol=1e-4)
    np.testing.assert_array_equal(np.flatnonzero(changed.masks.numpy()[1, 5]), [17, 18, 19, 20, 21, *range(25, 34)])


def test_boxes_that_overlap_change_one_after_the_other_in_random_order() -> None:
    sample = Sample(tf.zeros([10, 10, 3], tf.uint8), tf.constant([[0.0, 0.0, 1.0, 1.0]] * 2), tf.constant([0, 1]))

    def double_and_add(content: Content, seed: tf.Tensor) -> Content:
        addition = tf.random.stateless_uniform([], seed, minval=1, maxval=3, dtype=tf.int32)
        return content._replace(image=content.image * 2 + tf.cast(addition, tf.uint8))

    found = set()
    for number in range(20):
        changed = change_boxes(sample, double_and_add, probability=ALWAYS, seed=tf.constant([number, 0]))
        found.add(int(changed.image.numpy()[0, 0, 0]))
    # (0 * 2 + a) * 2 + b with a, b in {1, 2}: both boxes acted, each with a seed of its own.
    assert found == {3, 4, 5, 6}


def test_without_boxes_nothing_changes() -> None:
    sample = coordinate_sample(8, 9, [])
    assert_equal(change_boxes(sample, _shift, probability=ALWAYS, seed=tf.constant([1, 2])), sample)
