import numpy as np
import tensorflow as tf

from detection.input_pipeline.augmentation.cutout import box_cutout, cutout


def _grayed(image: tf.Tensor) -> tuple[int, int, int, int]:
    """The rectangle of 128s in what was black: (first row, first column, height, width)."""
    rows, columns = np.nonzero((image.numpy() == 128).all(-1))
    height, width = int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1
    assert len(rows) == height * width
    assert (image.numpy() == 128).sum() == 3 * len(rows)
    return int(rows.min()), int(columns.min()), height, width


def test_a_square_of_twice_the_half_side() -> None:
    places = [
        _grayed(cutout(tf.zeros([60, 90, 3], tf.uint8), tf.constant(5.9), tf.constant([0, n]))) for n in range(150)
    ]
    whole = [place for place in places if place[2:] == (10, 10)]
    assert 0.5 < len(whole) / len(places) < 0.95
    # Others are cut at the border; the centre is any pixel, so at least half a side is there.
    for row, column, height, width in places:
        assert height >= 5
        assert width >= 5
        assert height == 10 or row in (0, 60 - height)
        assert width == 10 or column in (0, 90 - width)
    rows, columns, *_ = np.transpose(places)
    assert rows.min() < 4
    assert rows.max() > 48
    assert columns.min() < 4
    assert columns.max() > 77


def test_nothing_is_cut_out_of_size_0() -> None:
    image = tf.constant(np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8))
    np.testing.assert_array_equal(cutout(image, tf.constant(0.0), tf.constant([1, 2])).numpy(), image.numpy())


def test_a_square_larger_than_the_image_covers_it() -> None:
    assert (cutout(tf.zeros([9, 7, 3], tf.uint8), tf.constant(50.0), tf.constant([1, 2])).numpy() == 128).all()


def test_a_part_of_one_box_is_cut_out() -> None:
    boxes = tf.constant([[0.1, 0.1, 0.3, 0.2], [0.5, 0.25, 0.9, 0.75]])
    in_pixels = [(10, 20, 30, 40), (50, 50, 90, 150)]
    hits = [0, 0]
    for number in range(60):
        image = box_cutout(tf.zeros([100, 200, 3], tf.uint8), boxes, tf.constant(0.3), tf.constant([number, 5]))
        row, column, height, width = _grayed(image)
        centre = row + height / 2, column + width / 2
        for index, (top, left, bottom, right) in enumerate(in_pixels):
            if top <= centre[0] < bottom and left <= centre[1] < right:
                hits[index] += 1
                assert height == 2 * int(0.3 * (bottom - top) / 2)
                assert width == 2 * int(0.3 * (right - left) / 2)
    assert sum(hits) == 60
    assert min(hits) > 15


def test_without_boxes_nothing_is_cut_out() -> None:
    image = tf.ones([9, 7, 3], tf.uint8)
    cut = box_cutout(image, tf.zeros([0, 4]), tf.constant(0.5), tf.constant([1, 2]))
    np.testing.assert_array_equal(cut.numpy(), image.numpy())
