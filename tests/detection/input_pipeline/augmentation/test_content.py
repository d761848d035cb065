"""Rotation, shear and translation against an inverse map written in numpy, and against hand-made cases."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.augmentation import content
from detection.input_pipeline.augmentation.content import (
    Affine,
    Content,
    change_boxes,
    pixel_box,
    translation_x,
    warp,
    warp_content,
)
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import (
    assert_equal,
    assert_points_show_their_origin,
    coordinate_sample,
    mask_boxes,
    pixel_boxes,
)

HEIGHT, WIDTH = 40, 56
# Far from each other and from the border, so that small motions keep all.
BOXES = [(10, 12, 16, 22), (8, 34, 20, 38), (22, 18, 30, 45)]

# For each motion: a new pixel's (y, x), as seen from the image's corner, to the old one's.
Back = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
CHANGED_BOXES = [(3, 4, 12, 20), (14, 2, 19, 9), (13, 30, 24, 38)]
ALWAYS = tf.constant(1.0)


def _rotated_back(degrees: float) -> Back:
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))

    def back(y: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # An image that turns anticlockwise shows what lay clockwise of the place.
        up, right = HEIGHT / 2 - y, x - WIDTH / 2
        return HEIGHT / 2 - (cosine * up - sine * right), WIDTH / 2 + (cosine * right + sine * up)

    return back


MOTIONS: dict[str, tuple[Affine, Back]] = {
    "rotate 17": (content.rotation(tf.constant(17.0), tf.constant([HEIGHT, WIDTH], tf.float32)), _rotated_back(17)),
    "rotate -30": (content.rotation(tf.constant(-30.0), tf.constant([HEIGHT, WIDTH], tf.float32)), _rotated_back(-30)),
    "shear x": (content.shear_x(tf.constant(0.23)), lambda y, x: (y, x + 0.23 * y)),
    "shear -x": (content.shear_x(tf.constant(-0.23)), lambda y, x: (y, x - 0.23 * y)),
    "shear y": (content.shear_y(tf.constant(0.17)), lambda y, x: (y + 0.17 * x, x)),
    "translate x": (content.translation_x(tf.constant(7.0)), lambda y, x: (y, x + 7)),
    "translate -y": (content.translation_y(tf.constant(-3.0)), lambda y, x: (y - 3, x)),
}


@pytest.fixture(params=MOTIONS, name="motion")
def _motion(request: pytest.FixtureRequest) -> tuple[Affine, Back]:
    return MOTIONS[request.param]


def _numpy_warp(pixels: np.ndarray, back: Back, fill: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest old pixel at each new one, and where that is not a matter of rounding."""
    height, width = pixels.shape[:2]
    rows, columns = np.mgrid[:height, :width] + 0.5
    y, x = back(rows, columns)
    sure = np.minimum(np.abs(y - np.round(y)), np.abs(x - np.round(x))) > 1e-3
    y, x = np.floor(y).astype(int), np.floor(x).astype(int)
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    moved = pixels[np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)]
    moved[~inside] = fill
    return moved, sure


def test_pixels_and_masks_are_those_of_the_inverse_map(motion: tuple[Affine, Back]) -> None:
    transform, back = motion
    sample = coordinate_sample(HEIGHT, WIDTH, BOXES)
    moved = warp(sample, transform)
    assert moved.masks is not None
    assert sample.masks is not None
    expected, sure = _numpy_warp(sample.image.numpy(), back, 128)
    assert sure.mean() > 0.9
    assert (expected == 128).all(-1).any()
    np.testing.assert_array_equal(moved.image.numpy()[sure], expected[sure])
    for mask, before in zip(moved.masks.numpy(), sample.masks.numpy(), strict=True):
        np.testing.assert_array_equal(mask[sure], _numpy_warp(before, back, 0)[0][sure])


def test_boxes_are_around_the_moved_objects(motion: tuple[Affine, Back]) -> None:
    """The masks are filled boxes, so the box around a moved mask is the moved box, up to the pixel it is cut into."""
    sample = coordinate_sample(HEIGHT, WIDTH, BOXES)
    moved = warp(sample, motion[0])
    assert moved.masks is not None
    assert moved.classes.numpy().tolist() == [0, 1, 2]
    assert np.abs(pixel_boxes(moved) - pixel_boxes(sample)).max() > 2
    np.testing.assert_allclose(pixel_boxes(moved), mask_boxes(moved.masks.numpy()), atol=1.0)


def test_keypoints_stay_on_their_pixels(motion: tuple[Affine, Back]) -> None:
    sample = coordinate_sample(HEIGHT, WIDTH, BOXES)
    assert assert_points_show_their_origin(warp(sample, motion[0]), {0: sample}, atol=1.1) == 6


def test_a_quarter_turn_anticlockwise() -> None:
    sample = coordinate_sample(20, 20, [(2, 4, 5, 11)])
    turned = warp(sample, content.rotation(tf.constant(90.0), tf.constant([20.0, 20.0])))
    assert turned.masks is not None
    assert turned.keypoints is not None
    np.testing.assert_array_equal(turned.image.numpy(), np.rot90(sample.image.numpy()))
    np.testing.assert_allclose(pixel_boxes(turned), [[9, 2, 16, 5]], atol=1e-4)
    np.testing.assert_array_equal(mask_boxes(turned.masks.numpy()), [[9, 2, 16, 5]])
    np.testing.assert_allclose(turned.keypoints.numpy()[0] * [20, 20, 1], [[15.5, 2.5, 2], [9.5, 4.5, 1]], atol=1e-4)


def test_translation_moves_to_the_left_and_up() -> None:
    sample = coordinate_sample(10, 14, [(5, 6, 8, 9)])
    image = sample.image.numpy()
    left = warp(sample, content.translation_x(tf.constant(4.0)))
    np.testing.assert_array_equal(left.image.numpy()[:, :10], image[:, 4:])
    assert (left.image.numpy()[:, 10:] == 128).all()
    np.testing.assert_allclose(pixel_boxes(left), [[5, 2, 8, 5]], atol=1e-5)
    up = warp(sample, content.translation_y(tf.constant(3.0)))
    np.testing.assert_array_equal(up.image.numpy()[:7], image[3:])
    np.testing.assert_allclose(pixel_boxes(up), [[2, 6, 5, 9]], atol=1e-5)


def test_objects_that_leave_are_dropped_and_others_cut() -> None:
    sample = coordinate_sample(20, 30, [(2, 1, 9, 8), (3, 5, 12, 20), (4, 20, 8, 28)], crowds=[True, False, True])
    moved = warp(sample, content.translation_x(tf.constant(10.0)))
    np.testing.assert_array_equal(moved.classes.numpy(), [1, 2])
    np.testing.assert_allclose(pixel_boxes(moved), [[3, 0, 12, 10], [4, 10, 8, 18]], atol=1e-5)
    assert moved.masks is not None
    assert moved.keypoints is not None
    assert moved.crowds is not None
    np.testing.assert_array_equal(mask_boxes(moved.masks.numpy()), [[3, 0, 12, 10], [4, 10, 8, 18]])
    np.testing.assert_array_equal(moved.crowds.numpy(), [False, True])
    # The first keypoint of the cut object has left the image: it is no longer labelled.
    np.testing.assert_array_equal(moved.keypoints.numpy()[0, 0], [0, 0, 0])
    np.testing.assert_allclose(moved.keypoints.numpy()[0, 1] * [20, 30, 1], [11.5, 9.5, 1], atol=1e-5)


def test_unlabelled_keypoints_stay_unlabelled() -> None:
    sample = coordinate_sample(20, 30, [(2, 1, 9, 8)])._replace(keypoints=tf.zeros([1, 3, 3]))
    moved = warp(sample, content.translation_x(tf.constant(-10.0)))
    assert moved.keypoints is not None
    np.testing.assert_array_equal(moved.keypoints.numpy(), np.zeros([1, 3, 3]))


@pytest.mark.parametrize("name", ["rotation", "shear_x", "shear_y", "translation_x", "translation_y"])
def test_nothing_moves_by_nothing(name: str) -> None:
    sample = coordinate_sample(21, 30, BOXES[:1])
    extent = [tf.constant([21.0, 30.0])] if name == "rotation" else []
    still = warp(sample, getattr(content, name)(tf.constant(0.0), *extent))
    np.testing.assert_array_equal(still.image.numpy(), sample.image.numpy())
    np.testing.assert_allclose(still.boxes_yxyx.numpy(), sample.boxes_yxyx.numpy(), atol=1e-7)


def test_an_image_without_objects() -> None:
    for fields in ({}, {"masks": tf.zeros([0, 8, 9], tf.uint8), "keypoints": tf.zeros([0, 2, 3])}):
        sample = Sample(tf.ones([8, 9, 3], tf.uint8), tf.zeros([0, 4]), tf.zeros([0], tf.int32), **fields)
        moved = warp(sample, content.shear_x(tf.constant(0.3)))
        assert moved.image.shape == (8, 9, 3)
        assert moved.boxes_yxyx.shape == (0, 4)


def _invert(content: Content, _: tf.Tensor) -> Content:
    return content._replace(image=255 - content.image)


def _shift(content: Content, _: tf.Tensor) -> Content:
    return warp_content(content, translation_x(tf.constant(3.0)))


def _sample() -> Sample:
    return coordinate_sample(26, 40, CHANGED_BOXES)


def test_the_pixels_of_a_box() -> None:
    image = tf.zeros([10, 30, 3], tf.uint8)
    boxes = [[0.3, 0.1, 0.7, 0.9], [0.31, 0.0, 0.32, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    expected = [[3, 3, 7, 27], [3, 0, 4, 30], [0, 0, 1, 1], [9, 29, 10, 30]]
    np.testing.assert_array_equal(pixel_box(tf.constant(boxes), image).numpy(), expected)


def test_only_pixels_in_boxes_change() -> None:
    sample = _sample()
    changed = change_boxes(sample, _invert, probability=ALWAYS, seed=tf.constant([1, 2]))
    expected = sample.image.numpy()
    for top, left, bottom, right in CHANGED_BOXES:
        expected[top:bottom, left:right] = 255 - expected[top:bottom, left:right]
    assert_equal(changed, sample._replace(image=tf.constant(expected)))


def test_each_box_draws_for_itself() -> None:
    """Of 3 boxes and probability 0.25, all 8 outcomes come up as often as they should."""
    sample = _sample()._replace(masks=None, keypoints=None)
    seeds = tf.data.Dataset.range(1500).map(lambda number: tf.stack([tf.cast(number, tf.int32), 3]))
    images = seeds.map(lambda seed: change_boxes(sample, _invert, probability=tf.constant(0.25), seed=seed).image)
    corners = np.array(CHANGED_BOXES)[:, :2]
    before = sample.image.numpy()[tuple(corners.T)]
    outcomes = [tuple((image[tuple(corners.T)] != before).any(-1)) for image in images.as_numpy_iterator()]
    for outcome in np.ndindex(2, 2, 2):
        expected = 0.25 ** sum(outcome) * 0.75 ** (3 - sum(outcome))
        frequency = np.mean([drawn == tuple(map(bool, outcome)) for drawn in outcomes])
        assert abs(frequency - expected) < 4 * np.sqrt(expected * (1 - expected) / 1500), outcome


def test_masks_and_keypoints_follow_the_pixels() -> None:
    sample = _sample()
    changed = change_boxes(sample, _shift, probability=ALWAYS, seed=tf.constant([1, 2]))
    np.testing.assert_array_equal(changed.boxes_yxyx.numpy(), sample.boxes_yxyx.numpy())
    assert changed.masks is not None
    assert changed.keypoints is not None
    for (top, left, bottom, right), mask in zip(CHANGED_BOXES, changed.masks.numpy(), strict=True):
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

    orders = set()
    for number in range(20):
        changed = change_boxes(sample, double_and_add, probability=ALWAYS, seed=tf.constant([number, 0]))
        orders.add(int(changed.image.numpy()[0, 0, 0]))
    # (0 * 2 + a) * 2 + b with a, b in {1, 2}: both boxes acted, each with a seed of its own.
    assert orders == {3, 4, 5, 6}


def test_without_boxes_nothing_changes() -> None:
    sample = coordinate_sample(8, 9, [])
    assert_equal(change_boxes(sample, _shift, probability=ALWAYS, seed=tf.constant([1, 2])), sample)
