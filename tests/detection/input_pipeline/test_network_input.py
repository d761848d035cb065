import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.input_pipeline.network_input import InputSample, crop_masks, pad_labels


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
