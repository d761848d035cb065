import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.input_pipeline.augmentation.ssd_crop import MIN_OVERLAPS, crop, ssd_random_crop
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


@settings(deadline=None, max_examples=25)
@given(sample=coordinate_samples(), seed=seeds, centre=st.booleans())
def test_objects_follow_the_pixels(sample: Sample, seed: tuple[int, int], centre: bool) -> None:
    cut = ssd_random_crop(sample, keep="centre" if centre else "overlap", seed=tf.constant(seed))
    image = cut.image.numpy().astype(int)
    first, size = image[0, 0, :2], np.array(image.shape[:2])
    np.testing.assert_array_equal(image[-1, -1, :2], first + size - 1)  # a window, nothing scaled
    expected = np.clip(pixel_boxes(sample) - np.tile(first, 2), 0, np.tile(size, 2))
    kept = cut.classes.numpy()
    np.testing.assert_allclose(pixel_boxes(cut), expected[kept], atol=1e-3)
    np.testing.assert_allclose(mask_boxes(cut.masks), pixel_boxes(cut), atol=1e-3)
    assert_points_show_their_origin(cut, {0: sample}, atol=1e-3)
    shares = np.prod(expected[:, 2:] - expected[:, :2], axis=1) / np.prod(
        pixel_boxes(sample)[:, 2:] - pixel_boxes(sample)[:, :2], axis=1
    )
    if centre:
        middle = (pixel_boxes(sample)[:, :2] + pixel_boxes(sample)[:, 2:]) / 2
        distance = np.minimum(middle - first, first + size - middle).min(1)  # into the window; 0: on its border
        sure = np.abs(distance) > 1e-3
        assert np.isin(np.flatnonzero(sure), kept).tolist() == (distance[sure] > 0).tolist()
    else:
        # Some threshold of the seven tells the kept from the others.
        least = min(shares[kept], default=1.0)
        left_out = np.delete(shares, kept)
        assert any(
            (left_out < threshold + 1e-5).all() and least > threshold - 1e-5 for threshold in (*MIN_OVERLAPS, 1e-9)
        )


def test_the_window_keeps_to_its_ranges_and_covers_an_object_as_asked() -> None:
    sample = coordinate_sample(60, 90, [(5, 8, 35, 30), (20, 40, 55, 85)])
    for number in range(40):
        cut = ssd_random_crop(
            sample,
            min_overlaps=(0.7,),
            aspect_ratio_range=(0.8, 1.6),
            area_range=(0.3, 0.6),
            seed=tf.constant([2, number]),
        )
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
        cut = ssd_random_crop(sample, area_range=(0.1, 1.0), seed=tf.constant([number, 0]))
        share = np.prod(cut.image.shape[:2]) / 2500
        sizes.add(min(MIN_OVERLAPS, key=lambda least: (least > share, share - least)))
        assert len(cut.classes) <= 1
    assert len(sizes) >= 5


def test_the_overlap_rule_counts_the_object_s_own_area() -> None:
    # Half of object 0, a fifth of object 1, nothing of object 2 (it only touches), object 3 whole.
    sample = coordinate_sample(40, 40, [(0, 0, 10, 20), (0, 8, 10, 18), (0, 10, 10, 20), (2, 2, 5, 5)])
    window = (tf.constant([0, 0]), tf.constant([40, 10]))
    for least, kept in ((0.0, [0, 1, 3]), (0.2, [0, 1, 3]), (0.21, [0, 3]), (0.5, [0, 3]), (0.51, [3]), (1.0, [3])):
        assert crop(sample, *window, min_overlap=least, keep="overlap").classes.numpy().tolist() == kept, least
    # Centres at x = 10 (on the border), 13, 15 and 3.5.
    assert crop(sample, *window, min_overlap=0.0, keep="centre").classes.numpy().tolist() == [3]


def test_crowds_do_not_call_for_a_window_but_are_cut_like_objects() -> None:
    sample = coordinate_sample(40, 60, [(0, 0, 40, 60), (30, 50, 38, 58)], crowds=[True, False])
    for number in range(20):
        cut = ssd_random_crop(sample, min_overlaps=(1.0,), area_range=(0.1, 0.4), seed=tf.constant([7, number]))
        assert 1 in cut.classes.numpy()
        assert array(cut.crowds).tolist() == (cut.classes.numpy() == 0).tolist()


def test_an_image_without_objects_is_cropped_or_left() -> None:
    sample = coordinate_sample(30, 20, [])
    shapes = {tuple(ssd_random_crop(sample, seed=tf.constant([0, number])).image.shape) for number in range(10)}
    assert len(shapes) > 3


def test_equal_seeds_give_equal_crops() -> None:
    sample = coordinate_sample(33, 47, [(3, 4, 20, 30)])
    for number in range(3):
        seed = tf.constant([4, number])
        assert_equal(ssd_random_crop(sample, seed=seed), ssd_random_crop(sample, seed=seed))
