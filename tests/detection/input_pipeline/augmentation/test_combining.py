"""None"""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.input_pipeline.augmentation.combining import mixup, mosaic
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import (
    BLUE,
    array,
    assert_equal,
    assert_points_show_their_origin,
    coordinate_sample,
    coordinate_samples,
    mask_boxes,
    pixel_boxes,
    seeds,
)

FOUR = st.tuples(*(coordinate_samples(number=number) for number in range(4)))


def _cut(image: np.ndarray) -> tuple[int, int]:
    """Where the four images meet, by their blue."""
    return int((image[:, 0, 2] == 0).sum()), int((image[0, :, 2] == 0).sum())


@settings(deadline=None, max_examples=25)
@given(four=FOUR, seed=seeds)
def test_each_image_fills_its_quarter_and_takes_its_objects_along(
    four: tuple[Sample, ...], seed: tuple[int, int]
) -> None:
    joined = mosaic(*four, image_size=(120, 160), seed=tf.constant(seed))
    image = joined.image.numpy()
    assert image.shape == (120, 160, 3)
    y, x = _cut(image)
    assert 30 <= y <= 90
    assert 40 <= x <= 120
    quarters = [(0, 0, y, x), (0, x, y, 160), (y, 0, 120, x), (y, x, 120, 160)]
    expected, labels = [], []
    for number, (sample, (top, left, bottom, right)) in enumerate(zip(four, quarters, strict=True)):
        assert (image[top:bottom, left:right, 2] == number * BLUE).all()
        extent = np.tile([bottom - top, right - left], 2)
        expected += (sample.boxes_yxyx.numpy() * extent + np.tile([top, left], 2)).tolist()
        labels += sample.classes.numpy().tolist()
    assert joined.classes.numpy().tolist() == labels
    np.testing.assert_allclose(pixel_boxes(joined), np.reshape(expected, (-1, 4)), atol=1e-3)
    drawn = array(joined.masks).any((1, 2))  # a pixel of an image that shrinks may vanish
    np.testing.assert_allclose(mask_boxes(array(joined.masks)[drawn]), pixel_boxes(joined)[drawn], atol=1.001)
    # A pixel of the mosaic is up to 60 / 30 pixels of the original.
    assert assert_points_show_their_origin(joined, dict(enumerate(four)), atol=1.6) == 2 * len(labels)


def test_the_cut_moves_within_its_bounds() -> None:
    four = [coordinate_sample(10, 14, [], number=number) for number in range(4)]
    cuts = [_cut(mosaic(*four, image_size=(100, 200), seed=tf.constant([9, n])).image.numpy()) for n in range(60)]
    rows, columns = np.transpose(cuts)
    assert (rows.min() >= 25, rows.max() <= 75, columns.min() >= 50, columns.max() <= 150) == (True,) * 4
    assert np.ptp(rows) > 35
    assert np.ptp(columns) > 70
    assert abs(np.corrcoef(rows, columns)[0, 1]) < 0.5
    halves = mosaic(*four, image_size=(100, 200), min_share=0.5, seed=tf.constant([0, 0]))
    assert _cut(halves.image.numpy()) == (50, 100)


def test_the_default_is_the_original_s_square() -> None:
    four = [coordinate_sample(10, 14, [(1, 2, 5, 9)], number=number) for number in range(4)]
    joined = mosaic(*(sample._replace(masks=None, keypoints=None) for sample in four), seed=tf.constant([0, 0]))
    assert joined.image.shape == (680, 680, 3)
    assert (joined.masks, joined.keypoints) == (None, None)


def test_crowds_and_unlabelled_points_stay_what_they_are() -> None:
    four = [coordinate_sample(10, 14, [(1, 2, 5, 9)], number=number, crowds=[number == 2]) for number in range(4)]
    four[3] = four[3]._replace(keypoints=tf.zeros([1, 2, 3]))
    joined = mosaic(*four, image_size=(40, 40), seed=tf.constant([1, 0]))
    assert array(joined.crowds).tolist() == [False, False, True, False]
    assert (array(joined.keypoints)[3] == 0).all()
    assert (array(joined.keypoints)[:3, :, 2] == [2, 1]).all()


def test_equal_seeds_give_equal_mosaics() -> None:
    four = [coordinate_sample(10, 14, [(1, 2, 5, 9)], number=number) for number in range(4)]
    assert_equal(*(mosaic(*four, image_size=(40, 50), seed=tf.constant([1, 2])) for _ in range(2)))


def _flat(height: int, width: int, value: int) -> Sample:
    return coordinate_sample(height, width, [])._replace(
        image=tf.fill([height, width, 3], tf.constant(value, tf.uint8))
    )


@settings(deadline=None, max_examples=25)
@given(first=coordinate_samples(), second=coordinate_samples(number=1), seed=seeds)
def test_the_sum_is_weighted_and_the_objects_of_both_stay_in_place(
    first: Sample, second: Sample, seed: tuple[int, int]
) -> None:
    mixed = mixup(first, second, seed=tf.constant(seed))
    size = np.maximum(first.image.shape[:2], second.image.shape[:2])
    assert tuple(mixed.image.shape) == (*size, 3)
    # Blue is 0 in the first image and 60 in the second: the corner, where both are, tells the weight.
    weight = mixed.image.numpy()[0, 0, 2] / 60
    padded = [
        np.pad(
            each.image.numpy().astype(float),
            [(0, size[0] - each.image.shape[0]), (0, size[1] - each.image.shape[1]), (0, 0)],
        )
        for each in (first, second)
    ]
    np.testing.assert_allclose(mixed.image.numpy(), (1 - weight) * padded[0] + weight * padded[1], atol=1.1)
    assert mixed.classes.numpy().tolist() == [*first.classes.numpy(), *second.classes.numpy()]
    np.testing.assert_allclose(
        pixel_boxes(mixed), [*pixel_boxes(first), *pixel_boxes(second)] or np.zeros((0, 4)), atol=1e-3
    )
    np.testing.assert_array_equal(mask_boxes(mixed.masks), np.round(pixel_boxes(mixed)))
    points = [array(each.keypoints) * [*each.image.shape[:2], 1] for each in (first, second)]
    np.testing.assert_allclose(array(mixed.keypoints) * [*size, 1], np.concatenate(points), atol=1e-3)


def test_weights_follow_the_beta_distribution() -> None:
    black, white = _flat(2, 2, 0), _flat(2, 2, 255)
    for alpha in (1.5, 8.0):
        brightness = tf.function(lambda seed, alpha=alpha: mixup(black, white, alpha=alpha, seed=seed).image[0, 0, 0])
        weights = [1 - float(brightness(tf.constant([3, number]))) / 255 for number in range(300)]
        # Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)); bounds of about four standard errors.
        variance = 1 / (4 * (2 * alpha + 1))
        assert abs(np.mean(weights) - 0.5) < 4 * np.sqrt(variance / 300)
        assert abs(np.var(weights) / variance - 1) < 0.33


def test_images_of_different_shape_lie_at_the_upper_left_over_black() -> None:
    mixed = mixup(_flat(2, 6, 200), _flat(4, 3, 100), seed=tf.constant([0, 1])).image.numpy()[..., 0].astype(float)
    assert mixed.shape == (4, 6)
    weight = mixed[0, 5] / 200
    np.testing.assert_allclose(mixed[3, 0], 100 * (1 - weight), atol=1)
    np.testing.assert_allclose(mixed[0, 0], 200 * weight + 100 * (1 - weight), atol=1)
    assert mixed[3, 5] == 0


def test_what_is_absent_stays_absent_and_equal_seeds_give_equal_images() -> None:
    one = coordinate_sample(9, 7, [(1, 1, 5, 6)], crowds=[True])._replace(masks=None, keypoints=None)
    runs = [mixup(one, one, seed=tf.constant([1, 1])) for _ in range(2)]
    assert (runs[0].masks, runs[0].keypoints) == (None, None)
    assert array(runs[0].crowds).tolist() == [True, True]
    assert_equal(*runs)
