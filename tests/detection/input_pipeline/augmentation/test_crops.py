"""None"""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings

from detection.input_pipeline.augmentation.crops import (
    MIN_OVERLAPS,
    CropOperation,
    crop,
    random_crop,
    random_scale_crop,
)
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import (
    array,
    assert_equal,
    assert_points_show_their_origin,
    coordinate_sample,
    coordinate_samples,
    mask_boxes,
    pixel_boxes,
    seeds,
)

SIDE = 40
SSD = [CropOperation(least, 0.5, 2.0, 0.1, 1.0, overlap_thresh=least) for least in MIN_OVERLAPS]


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
    by_label = dict(zip(window.classes.numpy(), window.boxes_yxyx.numpy(), strict=True))
    for label, box in enumerate(expected):
        if (box[2:] - box[:2] > 2 * atol).all():
            np.testing.assert_allclose(by_label[label], box, atol=atol)
        elif (box[2:] - box[:2] <= 0).any():
            assert label not in by_label
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
        inside = np.asarray(((expected[:, :2] >= 0) & (expected[:, :2] <= 10)).all(1))
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


def test_equal_seeds_give_equal_windows_and_others_others() -> None:
    sample = coordinate_sample(33, 47, [(3, 4, 20, 30)])
    first, second = (
        [
            random_scale_crop(sample, image_size=(24, 32), scale_min=0.5, scale_max=2, mask_size=3, seed=[5, number])
            for number in range(3)
        ]
        for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one[:5], other[:5])
    assert len({cut.image.numpy().tobytes() for cut in first}) == 3


@settings(deadline=None, max_examples=25)
@given(sample=coordinate_samples(), seed=seeds)
def test_objects_follow_the_pixels(sample: Sample, seed: tuple[int, int]) -> None:
    cut = random_crop(sample, operations=SSD, seed=tf.constant(seed))
    image = cut.image.numpy().astype(int)
    first, size = image[0, 0, :2], np.array(image.shape[:2])
    np.testing.assert_array_equal(image[-1, -1, :2], first + size - 1)  # a window, nothing scaled
    expected = np.clip(pixel_boxes(sample) - np.tile(first, 2), 0, np.tile(size, 2))
    kept = cut.classes.numpy()
    np.testing.assert_allclose(pixel_boxes(cut), expected[kept], atol=1e-3)
    np.testing.assert_allclose(mask_boxes(cut.masks), pixel_boxes(cut), atol=1e-3)
    assert_points_show_their_origin(cut, {0: sample}, atol=1e-3)
    fractions = np.prod(expected[:, 2:] - expected[:, :2], axis=1) / np.prod(
        pixel_boxes(sample)[:, 2:] - pixel_boxes(sample)[:, :2], axis=1
    )
    # Some threshold of the seven tells the kept from the others.
    least = min(fractions[kept], default=1.0)
    left_out = np.delete(fractions, kept)
    assert any((left_out < threshold + 1e-5).all() and least > threshold - 1e-5 for threshold in (*MIN_OVERLAPS, 1e-9))


def test_an_object_that_touches_the_window_is_not_in_it() -> None:
    """The sum of two rounded numbers may be more than the rounded sum."""
    side, kept = 33, 0
    for begin in range(1, side - 1, 5):
        for end in range(begin + 1, side, 2):
            sample = coordinate_sample(side, side, [(end, 0, side, side), (0, 0, begin, side)])
            window = tf.constant([begin, 0]), tf.constant([end - begin, side])
            kept += len(crop(sample, *window, min_overlap=0.0).classes)
    assert kept == 0


def test_the_window_keeps_to_its_ranges_and_covers_an_object_as_asked() -> None:
    sample = coordinate_sample(60, 90, [(5, 8, 35, 30), (20, 40, 55, 85)])
    for number in range(40):
        operation = CropOperation(0.7, 0.8, 1.6, 0.3, 0.6, overlap_thresh=0.7)
        cut = random_crop(sample, operations=[operation], seed=tf.constant([2, number]))
        height, width = cut.image.shape[:2]
        if (height, width) == (60, 90):
            continue
        assert 0.75 <= width / height <= 1.7  # whole pixels
        assert 0.28 <= height * width / (60 * 90) <= 0.62
        areas = np.prod(pixel_boxes(cut)[:, 2:] - pixel_boxes(cut)[:, :2], axis=1)
        whole = np.array([30 * 22, 35 * 45])[cut.classes.numpy()]
        assert len(areas) >= 1
        assert (areas / whole >= 0.7 - 1e-4).all()


def test_all_seven_operations_come_up() -> None:
    """A window of a tenth of the image, one object that fills it: what is kept tells the operation."""
    sample = coordinate_sample(50, 50, [(0, 0, 50, 50)])
    sizes = set()
    for number in range(60):
        cut = random_crop(sample, operations=SSD, seed=tf.constant([number, 0]))
        fraction = np.prod(cut.image.shape[:2]) / 2500
        sizes.add(min(MIN_OVERLAPS, key=lambda least: (least > fraction, fraction - least)))
        assert len(cut.classes) <= 1
    assert len(sizes) >= 5


def test_the_overlap_rule_counts_the_object_s_own_area() -> None:
    # Half of object 0, a fifth of object 1, nothing of object 2 (it only touches), object 3 whole.
    sample = coordinate_sample(40, 40, [(0, 0, 10, 20), (0, 8, 10, 18), (0, 10, 10, 20), (2, 2, 5, 5)])
    window = (tf.constant([0, 0]), tf.constant([40, 10]))
    for least, kept in ((0.0, [0, 1, 3]), (0.2, [0, 1, 3]), (0.21, [0, 3]), (0.5, [0, 3]), (0.51, [3]), (1.0, [3])):
        assert crop(sample, *window, min_overlap=least).classes.numpy().tolist() == kept, least


def test_crowds_do_not_call_for_a_window_but_are_cut_like_objects() -> None:
    sample = coordinate_sample(40, 60, [(0, 0, 40, 60), (30, 50, 38, 58)], crowds=[True, False])
    operation = CropOperation(1.0, 0.5, 2.0, 0.1, 0.4, overlap_thresh=1.0)
    for number in range(20):
        cut = random_crop(sample, operations=[operation], seed=tf.constant([7, number]))
        assert 1 in cut.classes.numpy()
        assert array(cut.crowds).tolist() == (cut.classes.numpy() == 0).tolist()


def test_an_image_without_objects_is_cropped_or_left() -> None:
    sample = coordinate_sample(30, 20, [])
    cuts = [random_crop(sample, operations=SSD, seed=tf.constant([0, number])) for number in range(10)]
    shapes = {tuple(cut.image.shape) for cut in cuts}
    assert len(shapes) > 3


def test_equal_seeds_give_equal_crops() -> None:
    sample = coordinate_sample(33, 47, [(3, 4, 20, 30)])
    for number in range(3):
        seed = tf.constant([4, number])
        assert_equal(random_crop(sample, operations=SSD, seed=seed), random_crop(sample, operations=SSD, seed=seed))
