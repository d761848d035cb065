"""None"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.augmentation.erasing import box_cutout, cutout, random_grid_mask
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import assert_equal, coordinate_sample

HEIGHT, WIDTH = 120, 150


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


def _holes(number: int, *, ratio: float = 0.6, rotation: float = 0.0) -> np.ndarray:
    white = Sample(tf.fill([HEIGHT, WIDTH, 3], tf.constant(255, tf.uint8)), tf.zeros([0, 4]), tf.zeros([0], tf.int32))
    image = random_grid_mask(white, ratio=ratio, rotation=rotation, seed=tf.constant([number, 3])).image.numpy()
    assert set(np.unique(image)) == {0, 255}
    assert (image == image[..., :1]).all()
    return image[..., 0] == 0


def _runs(flags: np.ndarray) -> list[tuple[bool, int]]:
    """Lengths of the runs of equal values that are whole, that is without the first and last."""
    changes = np.flatnonzero(np.diff(flags.astype(int))) + 1
    return [(bool(flags[start]), int(end - start)) for start, end in itertools.pairwise(changes)]


@pytest.mark.parametrize("ratio", [0.6, 0.3])
def test_an_unturned_grid(ratio: float) -> None:
    periods = set()
    for number in range(40):
        holes = _holes(number, ratio=ratio)
        rows, columns = (np.asarray(holes.any(axis)) for axis in (1, 0))
        np.testing.assert_array_equal(holes, np.outer(rows, columns))
        for flags in (rows, columns):
            runs = _runs(flags)
            kept = {length for is_hole, length in runs if not is_hole}
            cut = {length for is_hole, length in runs if is_hole}
            assert len(kept) <= 1
            assert len(cut) <= 1
            if kept and cut:
                (light,), (dark,) = kept, cut
                period = light + dark
                periods.add(period)
                assert light == round(period * ratio)
                # Between 0.3 * width and 0.5 * height.
                assert 45 <= period < 60
    assert len(periods) > 5


def test_the_black_part_of_the_area() -> None:
    for ratio in (0.6, 0.3):
        fraction = np.mean([_holes(number, ratio=ratio, rotation=10.0).mean() for number in range(40)])
        assert abs(fraction - (1 - ratio) ** 2) < 0.03


def _turn(holes: np.ndarray) -> float:
    """Degrees, -45 to 45, by which the squares are turned: the direction of their edges, which repeats each 90."""
    smooth = sum(np.roll(holes.astype(float), (y, x), (0, 1)) for y in range(5) for x in range(5))
    down, right = np.gradient(np.asarray(smooth)[5:-5, 5:-5])
    edges = (right + 1j * down) ** 4
    return float(np.degrees(np.angle((edges * np.abs(edges)).sum()) / 4))


def test_grids_turn_either_way_up_to_the_largest_turn() -> None:
    turns = np.array([_turn(_holes(number, rotation=20.0)) for number in range(80)])
    assert np.abs(turns).max() < 22
    assert np.abs(np.histogram(turns, 4, (-22, 22))[0] / 80 - 0.25).max() < 0.2


def test_the_rest_of_the_sample_stays() -> None:
    sample = coordinate_sample(50, 60, [(3, 4, 12, 20)], crowds=[False])
    masked = random_grid_mask(sample, seed=tf.constant([5, 6]))
    assert_equal(masked._replace(image=sample.image), sample)
    kept = (masked.image.numpy() != 0).any(-1)
    np.testing.assert_array_equal(masked.image.numpy()[kept], sample.image.numpy()[kept])
    assert_equal(masked, random_grid_mask(sample, seed=tf.constant([5, 6])))


def test_an_image_of_a_few_pixels() -> None:
    tiny = Sample(tf.ones([2, 1, 3], tf.uint8), tf.zeros([0, 4]), tf.zeros([0], tf.int32))
    assert random_grid_mask(tiny, seed=tf.constant([5, 6])).image.shape == (2, 1, 3)
