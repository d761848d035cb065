import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from detection.input_pipeline.augmentation.scale_crop import random_scale_crop
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import (
    array,
    coordinate_sample,
    coordinate_samples,
    seeds,
)

SIDE = 40


def test_boxes_outside_the_window_are_dropped_and_others_cut() -> None:
    boxes = tf.constant([[0.0, 0.0, 0.1, 0.1], [0.9, 0.9, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    sample = Sample(tf.zeros([40, 40, 3], tf.uint8), boxes, tf.constant([0, 1, 2]))
    for number in range(10):
        cut = random_scale_crop(
            sample, image_size=(20, 20), scale_min=4.0, scale_max=4.0, seed=tf.constant([1, number])
        )
        assert cut.image.shape == (20, 20, 3)
        np.testing.assert_array_equal(cut.boxes_yxyx.numpy()[-1], [0, 0, 20, 20])
        assert len(set(cut.classes.numpy()) & {0, 1}) < 2
        assert (cut.masks, cut.keypoints, cut.crowds) == (None, None, None)


@settings(deadline=None, max_examples=40)
@given(sample=coordinate_samples(), seed=seeds)
def test_boxes_and_keypoints_lie_where_the_window_shows_them(sample: Sample, seed: tuple[int, int]) -> None:
    """The window's pixels tell their origin; where they are linear, bilinear resizing is exact."""
    window = random_scale_crop(
        sample, image_size=(SIDE, SIDE), scale_min=0.7, scale_max=2.5, mask_size=7, seed=tf.constant(seed)
    )
    image, size = window.image.numpy(), np.array(sample.image.shape[:2])
    assert (np.array(image.shape[:2]) <= SIDE).all()
    # A window pixel shows (y, x) = first + step * pixel; fitted to the pixels away from the border, which blurs.
    first, step = zip(*(_line(image[..., axis], axis) for axis in (0, 1)), strict=True)
    place = lambda points: (np.array(points) - first) / step - 0.5 / np.array(step) + 0.5  # noqa: E731
    atol = 0.1
    boxes = sample.boxes_yxyx.numpy() * np.tile(size, 2)
    expected = np.concatenate([place(boxes[:, :2]), place(boxes[:, 2:])], axis=1)
    expected = np.clip(expected, 0, np.tile(image.shape[:2], 2))
    found = dict(zip(window.classes.numpy(), window.boxes_yxyx.numpy(), strict=True))
    for label, box in enumerate(expected):
        if (box[2:] - box[:2] > 2 * atol).all():
            np.testing.assert_allclose(found[label], box, atol=atol)
        elif (box[2:] - box[:2] <= 0).any():
            assert label not in found
    points = dict(zip(window.classes.numpy(), array(window.keypoints), strict=True))
    for label, each in points.items():
        expected_points = place(array(sample.keypoints)[label, :, :2] * size)
        for point, where in zip(each, expected_points, strict=True):
            if (where > atol).all() and (where < np.array(image.shape[:2]) - atol).all():
                np.testing.assert_allclose(point[:2], where, atol=atol)
                assert point[2] > 0
            elif (where < -atol).any() or (where > np.array(image.shape[:2]) + atol).any():
                np.testing.assert_array_equal(point, 0)


def _line(values: np.ndarray, axis: int) -> tuple[float, float]:
    """Value at pixel 0 and step a pixel, along an axis, of values that are linear in the middle."""
    along = values.mean(axis=1 - axis)
    inner = slice(len(along) // 4, len(along) - len(along) // 4)
    step, first = np.polyfit(np.arange(len(along))[inner], along[inner], 1)
    return first, step


def test_keypoints_outside_become_unlabelled_and_empty_masks_drop_their_object() -> None:
    # An L of two arms: its box covers the window, none of its pixels does.
    sample = coordinate_sample(40, 40, [(0, 0, 40, 40), (0, 0, 40, 40)])
    masks = np.zeros((2, 40, 40), np.uint8)
    masks[0, :2], masks[0, :, :2] = 1, 1
    masks[1] = 1
    sample = sample._replace(masks=tf.constant(masks))
    seen = set()
    for number in range(12):
        cut = random_scale_crop(
            sample, image_size=(10, 10), scale_min=4, scale_max=4, mask_size=5, seed=tf.constant([0, number])
        )
        corner = cut.image.numpy()[0, 0, :2]
        touched = (corner < 2).any()
        assert cut.classes.numpy().tolist() == ([0, 1] if touched else [1])
        assert array(cut.masks).shape[1:] == (5, 5)
        np.testing.assert_array_equal(array(cut.masks)[-1], 1)
        expected = [[0.5, 0.5, 2], [39.5, 39.5, 1]] - np.array([*corner, 0])
        inside = ((expected[:, :2] >= 0) & (expected[:, :2] <= 10)).all(1)
        np.testing.assert_allclose(array(cut.keypoints)[-1], expected * inside[:, None], atol=1e-4)
        seen.add(touched)
    assert False in seen


def test_crowds_stay_marked_whatever_their_mask() -> None:
    sample = coordinate_sample(20, 30, [(2, 3, 9, 12), (4, 5, 20, 30)], crowds=[True, False])
    sample = sample._replace(masks=sample.masks * tf.constant([[[0]], [[1]]], tf.uint8))
    cut = random_scale_crop(
        sample, image_size=(30, 30), scale_min=1, scale_max=1, mask_size=4, seed=tf.constant([0, 0])
    )
    np.testing.assert_array_equal(array(cut.crowds), [True, False])
    np.testing.assert_array_equal(cut.classes.numpy(), [0, 1])


@pytest.mark.parametrize("number", range(3))
def test_equal_seeds_give_equal_windows(number: int) -> None:
    sample = coordinate_sample(33, 47, [(3, 4, 20, 30)])
    runs = [
        random_scale_crop(
            sample, image_size=(24, 32), scale_min=0.5, scale_max=2, mask_size=3, seed=tf.constant([5, number])
        )
        for _ in range(2)
    ]
    tf.nest.map_structure(np.testing.assert_array_equal, runs[0][:5], runs[1][:5])
