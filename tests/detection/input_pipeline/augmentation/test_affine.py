"""Rotation, shear and translation against an inverse map written in numpy, and against hand-made cases."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.augmentation import affine
from detection.input_pipeline.augmentation.affine import Affine, warp
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import (
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


def _rotated_back(degrees: float) -> Back:
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))

    def back(y: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # An image that turns anticlockwise shows what lay clockwise of the place.
        up, right = HEIGHT / 2 - y, x - WIDTH / 2
        return HEIGHT / 2 - (cosine * up - sine * right), WIDTH / 2 + (cosine * right + sine * up)

    return back


MOTIONS: dict[str, tuple[Affine, Back]] = {
    "rotate 17": (affine.rotation(tf.constant(17.0), tf.constant([HEIGHT, WIDTH], tf.float32)), _rotated_back(17)),
    "rotate -30": (affine.rotation(tf.constant(-30.0), tf.constant([HEIGHT, WIDTH], tf.float32)), _rotated_back(-30)),
    "shear x": (affine.shear_x(tf.constant(0.23)), lambda y, x: (y, x + 0.23 * y)),
    "shear -x": (affine.shear_x(tf.constant(-0.23)), lambda y, x: (y, x - 0.23 * y)),
    "shear y": (affine.shear_y(tf.constant(0.17)), lambda y, x: (y + 0.17 * x, x)),
    "translate x": (affine.translation_x(tf.constant(7.0)), lambda y, x: (y, x + 7)),
    "translate -y": (affine.translation_y(tf.constant(-3.0)), lambda y, x: (y - 3, x)),
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
    found = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    moved = pixels[np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)]
    moved[~found] = fill
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
    turned = warp(sample, affine.rotation(tf.constant(90.0), tf.constant([20.0, 20.0])))
    assert turned.masks is not None
    assert turned.keypoints is not None
    np.testing.assert_array_equal(turned.image.numpy(), np.rot90(sample.image.numpy()))
    np.testing.assert_allclose(pixel_boxes(turned), [[9, 2, 16, 5]], atol=1e-4)
    np.testing.assert_array_equal(mask_boxes(turned.masks.numpy()), [[9, 2, 16, 5]])
    np.testing.assert_allclose(turned.keypoints.numpy()[0] * [20, 20, 1], [[15.5, 2.5, 2], [9.5, 4.5, 1]], atol=1e-4)


def test_translation_moves_to_the_left_and_up() -> None:
    sample = coordinate_sample(10, 14, [(5, 6, 8, 9)])
    image = sample.image.numpy()
    left = warp(sample, affine.translation_x(tf.constant(4.0)))
    np.testing.assert_array_equal(left.image.numpy()[:, :10], image[:, 4:])
    assert (left.image.numpy()[:, 10:] == 128).all()
    np.testing.assert_allclose(pixel_boxes(left), [[5, 2, 8, 5]], atol=1e-5)
    up = warp(sample, affine.translation_y(tf.constant(3.0)))
    np.testing.assert_array_equal(up.image.numpy()[:7], image[3:])
    np.testing.assert_allclose(pixel_boxes(up), [[2, 6, 5, 9]], atol=1e-5)


def test_objects_that_leave_are_dropped_and_others_cut() -> None:
    sample = coordinate_sample(20, 30, [(2, 1, 9, 8), (3, 5, 12, 20), (4, 20, 8, 28)], crowds=[True, False, True])
    moved = warp(sample, affine.translation_x(tf.constant(10.0)))
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
    moved = warp(sample, affine.translation_x(tf.constant(-10.0)))
    assert moved.keypoints is not None
    np.testing.assert_array_equal(moved.keypoints.numpy(), np.zeros([1, 3, 3]))


@pytest.mark.parametrize("name", ["rotation", "shear_x", "shear_y", "translation_x", "translation_y"])
def test_nothing_moves_by_nothing(name: str) -> None:
    sample = coordinate_sample(21, 30, BOXES[:1])
    extent = [tf.constant([21.0, 30.0])] if name == "rotation" else []
    still = warp(sample, getattr(affine, name)(tf.constant(0.0), *extent))
    np.testing.assert_array_equal(still.image.numpy(), sample.image.numpy())
    np.testing.assert_allclose(still.boxes_yxyx.numpy(), sample.boxes_yxyx.numpy(), atol=1e-7)


def test_an_image_without_objects() -> None:
    for fields in ({}, {"masks": tf.zeros([0, 8, 9], tf.uint8), "keypoints": tf.zeros([0, 2, 3])}):
        sample = Sample(tf.ones([8, 9, 3], tf.uint8), tf.zeros([0, 4]), tf.zeros([0], tf.int32), **fields)
        moved = warp(sample, affine.shear_x(tf.constant(0.3)))
        assert moved.image.shape == (8, 9, 3)
        assert moved.boxes_yxyx.shape == (0, 4)
