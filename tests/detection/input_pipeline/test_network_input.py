from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.input_pipeline.augmentation.crops import random_scale_crop
from detection.input_pipeline.network_input import InputSample, crop_masks, fit_to_input, in_window, pad_labels
from detection.input_pipeline.sample import Sample
from detection.types import Resizing

Oracles = dict[str, dict[str, Any]]
SIDES = st.integers(1, 90)
NO_CHANGE: Any = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
RESIZINGS = st.one_of(
    st.builds(Resizing, st.tuples(SIDES, SIDES), st.sampled_from(["fit", "stretch"])),
    st.builds(
        lambda short, long, more: Resizing((long + more, short + more), "short_side", short, long),
        st.integers(1, 40),
        st.integers(40, 80),
        st.integers(0, 10),
    ),
)


def _sample(count: int, **fields: tf.Tensor) -> InputSample:
    boxes = tf.reshape(tf.range(4 * count, dtype=tf.float32), [count, 4])
    return InputSample(tf.zeros([9, 9, 3]), boxes, tf.range(count), **fields)


def test_too_many_instances_are_truncated_and_counted_and_few_are_padded() -> None:
    labels, truncated = pad_labels(_sample(7), max_instances=5)
    np.testing.assert_array_equal(labels.classes.numpy(), np.arange(5))
    assert labels.valid.numpy().all()
    assert truncated == 2
    labels, truncated = pad_labels(_sample(2), max_instances=5)
    np.testing.assert_array_equal(labels.valid.numpy(), [True, True, False, False, False])
    np.testing.assert_array_equal(labels.boxes.numpy(), np.vstack([np.arange(8).reshape(2, 4), np.zeros((3, 4))]))
    assert truncated == 0
    assert (labels.masks, labels.keypoints, labels.crowds) == (None, None, None)
    assert labels.sizes is not None
    np.testing.assert_array_equal(labels.sizes, [9, 9])


def test_masks_and_keypoints_are_padded_alike() -> None:
    masks, points = tf.ones([3, 4, 4], tf.uint8), tf.ones([3, 2, 3])
    labels, _ = pad_labels(_sample(3, masks=masks, keypoints=points), max_instances=5)
    assert labels.masks is not None
    assert labels.keypoints is not None
    assert (labels.masks.dtype, labels.masks.shape) == (tf.uint8, (5, 4, 4))
    assert labels.keypoints.shape == (5, 2, 3)
    for field in (labels.masks, labels.keypoints):
        assert (field.numpy()[:3] == 1).all()
        assert (field.numpy()[3:] == 0).all()


def test_crowds_come_last_are_not_valid_and_give_way_to_objects() -> None:
    crowds = tf.constant([True, False, True, False])
    labels, truncated = pad_labels(_sample(4, crowds=crowds), max_instances=5)
    assert labels.crowds is not None
    np.testing.assert_array_equal(labels.classes.numpy(), [1, 3, 0, 2, 0])
    np.testing.assert_array_equal(labels.valid.numpy(), [True, True, False, False, False])
    np.testing.assert_array_equal(labels.crowds.numpy(), [False, False, True, True, False])
    assert truncated == 0
    labels, truncated = pad_labels(_sample(4, crowds=crowds), max_instances=1)
    assert labels.classes.numpy().tolist() == [1]
    assert truncated == 1


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_a_box_of_whole_pixels_is_cut_out_exactly(data: st.DataObject) -> None:
    height, width = data.draw(st.integers(5, 30)), data.draw(st.integers(5, 30))
    side = data.draw(st.integers(1, min(height, width)))
    top, left = data.draw(st.integers(0, height - side)), data.draw(st.integers(0, width - side))
    masks = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 2, (2, height, width), np.uint8)
    box = np.array([top, left, top + side, left + side]) / [height, width, height, width]
    crops = crop_masks(tf.constant(masks), tf.constant([box, box], tf.float32), side)
    np.testing.assert_array_equal(crops, masks[:, top : top + side, left : left + side])


def test_a_mask_is_stretched_along_each_axis_by_itself() -> None:
    """A box 8 high and 4 wide, as 16 x 16: its upper quarter and its left half."""
    masks = np.zeros((2, 20, 30), np.uint8)
    masks[0, 4:6, 8:16] = 1
    masks[1, 2:14, 10:12] = 1
    box = [4 / 20, 10 / 30, 12 / 20, 14 / 30]
    expected = np.zeros((2, 16, 16), np.uint8)
    expected[0, :4], expected[1, :, :8] = 1, 1
    np.testing.assert_array_equal(crop_masks(tf.constant(masks), tf.constant([box, box]), 16), expected)


def test_masks_at_the_border_do_not_fray() -> None:
    masks = tf.ones([1, 7, 9], tf.uint8)
    assert (crop_masks(masks, tf.constant([[0.0, 0.0, 1.0, 1.0]]), 28).numpy() == 1).all()
    assert (crop_masks(tf.ones([1, 1, 1], tf.uint8), tf.constant([[0.0, 0.0, 1.0, 1.0]]), 3).numpy() == 1).all()


def test_no_objects_give_no_crops() -> None:
    assert crop_masks(tf.zeros([0, 5, 5], tf.uint8), tf.zeros([0, 4]), 6).shape == (0, 6, 6)


def _scaled(size: tuple[int, int], resizing: Resizing) -> list[Fraction]:
    """The size to which an image is scaled, before rounding, in exact fractions."""
    ratios = [Fraction(target, side) for target, side in zip(resizing.size, size, strict=True)]
    if resizing.mode != "stretch":
        ratios = [min(ratios)] * 2
    if resizing.mode == "short_side":
        ratios = [min(ratios[0], Fraction(resizing.short_side, min(size)), Fraction(resizing.long_side, max(size)))] * 2
    return [side * ratio for side, ratio in zip(size, ratios, strict=True)]


def _is_rounded(pixels: int, exact: Fraction, mode: str) -> bool:
    """Tells whether pixels are exact, rounded as the mode says; of two equally near ones, either."""
    if pixels == 1 and exact < 1:
        return True
    return abs(pixels - exact) <= Fraction(1, 2) if mode == "short_side" else 0 <= exact - pixels < 1


@settings(deadline=None, max_examples=60)
@given(size=st.tuples(SIDES, SIDES), resizing=RESIZINGS, more=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_images_are_scaled_as_the_mode_says_and_boxes_map_back(
    size: tuple[int, int], resizing: Resizing, more: tuple[int, int]
) -> None:
    image_size = (resizing.size[0] + more[0], resizing.size[1] + more[1])
    image = tf.fill([*size, 3], tf.constant(200, tf.uint8))
    fitted, info = fit_to_input(image, image_size=image_size, resizing=resizing, **NO_CHANGE)
    assert fitted.shape == (*image_size, 3)
    filled = fitted.numpy()[..., 0] > 0
    pixels = [int(filled.any(axis=1).sum()), int(filled.any(axis=0).sum())]
    assert filled[: pixels[0], : pixels[1]].all()
    assert all(map(_is_rounded, pixels, _scaled(size, resizing), [resizing.mode] * 2))
    np.testing.assert_array_equal(info.original_size, size)
    np.testing.assert_allclose(info.scale * info.original_size, pixels, rtol=1e-6)
    boxes = np.random.default_rng(0).uniform(0, 1, (5, 4)).astype(np.float32) * np.tile(size, 2)
    to_input = boxes * np.tile(info.scale, 2)
    assert (to_input <= np.tile(pixels, 2) * (1 + 1e-6)).all()
    np.testing.assert_allclose(to_input / np.tile(info.scale, 2), boxes, rtol=1e-5)


def test_the_short_side_is_scaled_as_in_the_od_api(oracles: Oracles) -> None:
    expected = oracles["prep.resize_odapi"]["expected"]
    cases = [
        ((480, 640), (600, 1024), expected["r600_1024"]),
        ((480, 640), (800, 1333), expected["r800_1333_pad"]["true"]),
        ((480, 640), (512, 512), expected["r512_512_pad"]["true"]),
        ((1000, 2000), (800, 1333), expected["r800_1333_on_1000x2000"]),
    ]
    for size, (short, long), true_shape in cases:
        resizing = Resizing((long, long), "short_side", short, long)
        image = tf.zeros([*size, 3], tf.uint8)
        padded, info = fit_to_input(image, image_size=(long, long), resizing=resizing, **NO_CHANGE)
        np.testing.assert_allclose(info.scale * size, true_shape[:2], rtol=1e-6)
        assert padded.shape == (long, long, 3)


def test_an_image_may_be_stretched_to_another_aspect() -> None:
    rows = tf.cast(tf.tile(tf.reshape(tf.range(20), [20, 1, 1]), [1, 10, 3]), tf.uint8)
    fitted, info = fit_to_input(rows, image_size=(40, 30), resizing=Resizing((40, 30), "stretch"), **NO_CHANGE)
    np.testing.assert_allclose(info.scale, [2.0, 3.0])
    np.testing.assert_allclose(fitted.numpy()[10:30, :, 0], np.tile(np.arange(4.75, 14.5, 0.5)[:, None], [1, 30]))
    corners = Resizing((40, 30), "stretch", half_pixel_centers=False)
    fitted, _ = fit_to_input(rows, image_size=(40, 30), resizing=corners, **NO_CHANGE)
    np.testing.assert_allclose(fitted.numpy()[:39, :, 0], np.tile(np.arange(0.0, 19.5, 0.5)[:, None], [1, 30]))


@pytest.mark.parametrize(
    "resizing", [Resizing((32, 48)), Resizing((32, 48), "stretch"), Resizing((32, 48), "short_side", 20, 30)]
)
def test_training_at_a_scale_of_1_sees_what_evaluation_sees(resizing: Resizing) -> None:
    image = tf.cast(tf.random.stateless_uniform([37, 55, 3], [1, 2], maxval=256, dtype=tf.int32), tf.uint8)
    sample = Sample(image, tf.constant([[0.1, 0.2, 0.5, 0.9]]), tf.constant([0]))
    fitted, info = fit_to_input(image, image_size=(40, 48), resizing=resizing, **NO_CHANGE)
    size = info.original_size * info.scale
    expected = in_window(sample, fitted, size=size, offset=tf.zeros([2]), window=size, mask_size=0)
    window = random_scale_crop(
        sample, image_size=(40, 48), resizing=resizing, scale_min=1.0, scale_max=1.0, seed=tf.constant([3, 4])
    )
    height, width = window.image.shape[:2]
    np.testing.assert_array_equal(window.image, fitted[:height, :width])
    np.testing.assert_allclose(size, [height, width])
    np.testing.assert_allclose(window.boxes_yxyx, expected.boxes_yxyx, rtol=1e-6)


def test_an_object_whose_mask_is_outside_is_dropped_and_one_without_a_mask_is_not() -> None:
    masks = tf.concat([tf.ones([3, 20, 4], tf.uint8), tf.zeros([3, 20, 36], tf.uint8)], axis=2)
    masks *= tf.constant([1, 1, 0], tf.uint8)[:, tf.newaxis, tf.newaxis]
    boxes = tf.constant([[0.0, 0.0, 1.0, 0.4], [0.0, 0.0, 1.0, 0.8], [0.0, 0.0, 1.0, 0.8]])
    sample = Sample(
        tf.zeros([20, 40, 3], tf.uint8),
        boxes,
        tf.constant([0, 1, 2]),
        masks=masks,
        maskless=tf.constant([False, False, True]),
    )
    size = tf.constant([20.0, 40.0])
    half = {"size": size, "offset": tf.constant([0.0, 10.0]), "window": tf.constant([20.0, 30.0])}
    cut = in_window(sample, tf.zeros([20, 30, 3]), mask_size=7, **half)
    assert np.asarray(cut.classes).tolist() == [2]
    labels, truncated = pad_labels(cut, max_instances=2)
    assert (np.asarray(labels.valid).tolist(), int(truncated)) == ([True, False], 0)
    assert not np.asarray(labels.masks).any()
