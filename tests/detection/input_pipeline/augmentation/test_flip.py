import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.input_pipeline.augmentation.flip import keypoint_flips, mirrored_categories, random_horizontal_flip
from detection.input_pipeline.record_decoder import num_keypoints
from detection.input_pipeline.sample import Sample
from schemas.errors import ConfigError
from tests.detection.input_pipeline.augmentation.coordinate_images import (
    array,
    assert_equal,
    assert_points_show_their_origin,
    coordinate_sample,
    coordinate_samples,
    mask_boxes,
    pixel_boxes,
)

PERSON = {"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"]}
CAR = {"id": 3, "name": "car"}


def _seed(*, flips: bool) -> tf.Tensor:
    seeds = (tf.constant([3, number]) for number in range(100))
    return next(seed for seed in seeds if bool(tf.random.stateless_uniform([], seed) < 0.5) == flips)


def test_half_of_the_images_are_mirrored_x_changes_and_y_stays() -> None:
    image = np.zeros((4, 10, 3), np.uint8)
    image[1, 2] = 255
    sample = Sample(tf.constant(image), tf.constant([[0.25, 0.2, 0.5, 0.3]]), tf.constant([0]))
    flipped = [random_horizontal_flip(sample, seed=tf.constant([0, number])) for number in range(40)]
    mirrored = [one for one in flipped if one.image.numpy()[1, 7, 0] == 255]
    assert 10 < len(mirrored) < 30
    for one in flipped:
        moved = one.image.numpy()[1, 7, 0] == 255
        expected = [[0.25, 0.7, 0.5, 0.8]] if moved else [[0.25, 0.2, 0.5, 0.3]]
        np.testing.assert_allclose(one.boxes_yxyx.numpy(), expected, rtol=1e-6)


@settings(deadline=None, max_examples=25)
@given(sample=coordinate_samples())
def test_masks_and_keypoints_follow_the_pixels_and_twice_is_nothing(sample: Sample) -> None:
    seed = _seed(flips=True)
    once = random_horizontal_flip(sample, seed=seed)
    np.testing.assert_array_equal(once.image.numpy(), sample.image.numpy()[:, ::-1])
    np.testing.assert_allclose(pixel_boxes(once), mask_boxes(once.masks), atol=1e-3)
    assert assert_points_show_their_origin(once, {0: sample}, atol=1e-4) == 2 * len(sample.classes)
    twice = random_horizontal_flip(once, seed=seed)
    np.testing.assert_allclose(twice.boxes_yxyx, sample.boxes_yxyx, atol=1e-6)
    np.testing.assert_allclose(array(twice.keypoints), array(sample.keypoints), atol=1e-6)
    np.testing.assert_array_equal(array(twice.masks), array(sample.masks))


def test_what_is_not_mirrored_stays_bit_for_bit() -> None:
    sample = coordinate_sample(9, 14, [(1, 2, 5, 9)])
    assert_equal(random_horizontal_flip(sample, keypoint_flips=[[1, 0]], seed=_seed(flips=False)), sample)


def test_left_and_right_change_places_by_class_and_unlabelled_points_stay_zero() -> None:
    keypoints = np.zeros((2, 3, 3), np.float32)
    keypoints[0] = [[0.1, 0.4, 2.0], [0.2, 0.3, 1.0], [0.0, 0.0, 0.0]]  # nose, left eye; the right one is not seen
    keypoints[1] = [[0.5, 0.9, 2.0], [0.6, 0.8, 2.0], [0.0, 0.0, 0.0]]  # of a class without sides
    sample = Sample(
        tf.zeros([4, 6, 3], tf.uint8), tf.zeros([2, 4]), tf.constant([1, 0]), keypoints=tf.constant(keypoints)
    )
    flips = [[0, 1, 2], [0, 2, 1]]
    flipped = random_horizontal_flip(sample, keypoint_flips=flips, seed=_seed(flips=True))
    expected = [[[0.1, 0.6, 2], [0, 0, 0], [0.2, 0.7, 1]], [[0.5, 0.1, 2], [0.6, 0.2, 2], [0, 0, 0]]]
    np.testing.assert_allclose(array(flipped.keypoints), np.array(expected), atol=1e-6)


def test_sides_are_known_by_their_names() -> None:
    hand = {"id": 2, "name": "hand", "keypoints": ["Thumb L", "Thumb R", "wrist", "R-tip", "L-tip"]}
    assert num_keypoints([CAR, PERSON, hand]) == 5
    assert keypoint_flips([CAR, PERSON, hand]) == [[0, 1, 2, 3, 4], [0, 2, 1, 3, 4], [1, 0, 2, 4, 3]]
    assert keypoint_flips([CAR]) == [[]]
    assert num_keypoints([]) == 0


def test_coco_s_person_flips_as_everyone_flips_it() -> None:
    sides = [f"{side}_{part}" for part in ("eye", "ear", "shoulder", "hip") for side in ("left", "right")]
    assert keypoint_flips([PERSON | {"keypoints": ["nose", *sides]}]) == [[0, 2, 1, 4, 3, 6, 5, 8, 7]]


def test_a_word_within_a_word_is_no_side() -> None:
    parts = {"id": 1, "name": "bird", "keypoints": ["bill", "leftover", "brightest", "tail"]}
    assert keypoint_flips([parts]) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    "pair",
    [
        "leftEye rightEye",
        "EyeLeft EyeRight",
        "lefteye righteye",
        "lshoulder rshoulder",
        "LEFTEYE RIGHTEYE",
        "eyeL eyeR",
    ],
)
def test_sides_within_words_are_known_where_both_are_there(pair: str, caplog: pytest.LogCaptureFixture) -> None:
    left, right = pair.split()
    assert keypoint_flips([PERSON | {"keypoints": ["nose", left, right]}]) == [[0, 2, 1]]
    assert not caplog.records
    assert keypoint_flips([PERSON | {"keypoints": ["1", "2", "3"]}]) == [[0, 1, 2]]
    assert "no two keypoints of 'person' are named as left and right" in caplog.text


@pytest.mark.parametrize(
    ("names", "pair"),
    [
        ("stop|Turn_Left|Turn_Right", ("Turn_Left", "Turn_Right")),
        ("arrowRight|car|arrowLeft", ("arrowRight", "arrowLeft")),
        ("hand R|hand L", ("hand R", "hand L")),
        ("left|right", ("left", "right")),
        ("L|R|K", None),  # letters
        ("left|top", None),
        ("leftover|bright|lamp|ramp", None),
    ],
)
def test_categories_that_differ_in_left_and_right_are_found(names: str, pair: tuple[str, str] | None) -> None:
    assert mirrored_categories([{"id": 1, "name": name} for name in names.split("|")]) == pair


def test_a_side_without_the_other_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'person' has a keypoint 'left_eye' but no 'right_eye'.*Switch it off"):
        keypoint_flips([PERSON | {"keypoints": ["nose", "left_eye"]}])


@settings(deadline=None, max_examples=30)
@given(names=st.lists(st.sampled_from(["nose", "tail", "top"]), unique=True), pairs=st.integers(0, 4), data=st.data())
def test_a_flip_is_its_own_inverse(names: list[str], pairs: int, data: st.DataObject) -> None:
    names = names + [f"{side} {number}" for number in range(pairs) for side in ("left", "right")]
    shuffled = data.draw(st.permutations(names))
    (flips,) = keypoint_flips([{"id": 1, "name": "x", "keypoints": shuffled}])
    assert [flips[flips[number]] for number in range(len(names))] == list(range(len(names)))
