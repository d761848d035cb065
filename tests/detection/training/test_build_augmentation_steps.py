"""Every step of the TF Object Detection API: objects stay where the image shows them, draws keep to their ranges."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.sample import Sample
from detection.training.build_augmentation_steps import augmentation_steps
from schemas.config.train.augmentation import AugmentConfig
from schemas.config.train.augmentation_steps import STEPS
from schemas.errors import ConfigError
from tests.detection.input_pipeline.augmentation.coordinate_images import (
    array,
    assert_equal,
    assert_points_show_their_origin,
    coordinate_sample,
    mask_boxes,
    pixel_boxes,
)

CATEGORIES = [{"id": number, "name": f"class {number}", "keypoints": ["left", "right"]} for number in (10, 20, 30)]
BOXES = [(2, 3, 24, 26), (20, 30, 46, 58), (0, 40, 14, 64)]
RANGE = {"min_aspect_ratio": 0.5, "max_aspect_ratio": 2.0, "min_area": 0.2, "max_area": 0.7}
CROP = {**RANGE, "min_object_covered": 0.3}
OPERATIONS = {"operations": [CROP, {**CROP, "min_area": 0.5, "overlap_thresh": 0.5}]}
FIXED = {"operations": [{"min_area": 0.3, "max_area": 0.8}]}

# The steps that move pixels or objects, with the number of coordinates' steps per pixel that resizing may blur.
GEOMETRIC: dict[str, tuple[dict[str, Any], float]] = {
    "random_horizontal_flip": ({"probability": 1.0}, 0.0),
    "random_vertical_flip": ({"probability": 1.0, "keypoint_flip_permutation": [0, 1]}, 0.0),
    "random_rotation90": ({"probability": 1.0}, 0.0),
    "random_image_scale": ({"min_scale_ratio": 0.9}, 1.6),
    "random_crop_image": (CROP, 0.0),
    "random_pad_image": ({}, 0.0),
    "random_crop_pad_image": ({**CROP, "pad_color": [1.0, 2.0, 3.0]}, 0.0),
    "random_crop_to_aspect_ratio": ({"aspect_ratio": 0.8}, 0.0),
    "random_resize_method": ({"target_height": 60, "target_width": 90}, 1.6),
    "resize_image": ({"new_height": 70, "new_width": 50, "method": "NEAREST_NEIGHBOR"}, 1.6),
    "ssd_random_crop": (OPERATIONS, 0.0),
    "ssd_random_crop_pad": ({}, 0.0),
    "ssd_random_crop_fixed_aspect_ratio": (FIXED, 0.0),
    "ssd_random_crop_pad_fixed_aspect_ratio": ({"aspect_ratio": 1.2}, 0.0),
    "random_absolute_pad_image": ({"max_height_padding": 20, "max_width_padding": 30}, 0.0),
    "random_downscale_to_target_pixels": ({"min_target_pixels": 2500, "max_target_pixels": 2900}, 1.6),
    "random_square_crop_by_scale": ({}, 0.0),
    "random_scale_crop_and_pad_to_square": ({"output_size": 60, "scale_min": 0.9}, 1.6),
}
COLORS = {
    name: {
        "random_adjust_hue": {"max_delta": 0.4},
        "adjust_gamma": {"gamma": 1.5},
        "random_rgb_to_gray": {"probability": 0.3},
    }.get(name, {})
    for name in (
        *("random_pixel_value_scale", "random_adjust_brightness", "random_adjust_contrast", "random_adjust_hue"),
        *("random_adjust_saturation", "random_distort_color", "random_black_patches", "random_jpeg_quality"),
        *("random_patch_gaussian", "adjust_gamma", "random_rgb_to_gray"),
    )
}


def _sample() -> Sample:
    sample = coordinate_sample(48, 64, BOXES, crowds=[False, False, True])
    return sample._replace(weights=tf.constant([0.0, 0.5, 1.0]), maskless=tf.zeros([3], tf.bool))


def _step(name: str, fields: dict[str, Any] | None = None) -> Any:
    """The step as the input pipeline runs it, traced once."""
    config = AugmentConfig.model_validate({"steps": [{name: fields or {}}]})
    (step,) = augmentation_steps(config.steps, CATEGORIES, with_keypoints=True)
    signature = Sample(
        tf.TensorSpec([None, None, 3], tf.uint8),
        tf.TensorSpec([None, 4]),
        tf.TensorSpec([None], tf.int32),
        masks=tf.TensorSpec([None, None, None], tf.uint8),
        keypoints=tf.TensorSpec([None, 2, 3]),
        crowds=tf.TensorSpec([None], tf.bool),
        weights=tf.TensorSpec([None]),
        maskless=tf.TensorSpec([None], tf.bool),
    )
    run = tf.function(
        lambda sample, seed: step.apply(sample, seed=seed),
        input_signature=[signature, tf.TensorSpec([2], tf.int32)],
        autograph=False,
    )
    return lambda sample, number: run(sample, tf.constant([number, 7]))


@pytest.mark.parametrize("name", GEOMETRIC)
def test_what_is_painted_where_an_object_is_stays_there(name: str) -> None:
    fields, blur = GEOMETRIC[name]
    step, sample, results = _step(name, fields), _sample(), []
    for number in range(6):
        result = step(sample, number)
        results.append(result)
        assert result.image.dtype == tf.uint8
        assert ((array(result.boxes_yxyx) >= -1e-6) & (array(result.boxes_yxyx) <= 1 + 1e-6)).all()
        np.testing.assert_allclose(pixel_boxes(result), mask_boxes(result.masks), atol=max(blur, 1e-3))
        _assert_objects_have_their_own_pixels(result, sample, blur)
        np.testing.assert_array_equal(array(result.crowds), array(result.classes) == 2)
        np.testing.assert_array_equal(array(result.weights), array(result.classes) / 2)
        assert array(result.keypoints).shape == (len(result.classes), 2, 3)
        named = name == "random_horizontal_flip"  # left and right change places
        points = array(result.keypoints)[:, ::-1] if named else array(result.keypoints)
        assert_points_show_their_origin(result._replace(keypoints=points), {0: sample}, atol=max(2 * blur, 1e-3))
    assert_equal(step(sample, 0), results[0])
    if "probability" not in fields and name != "resize_image":
        assert len({result.image.numpy().tobytes() for result in results}) > 1


def _assert_objects_have_their_own_pixels(result: Sample, original: Sample, blur: float) -> None:
    """The colours in each moved mask, which are coordinates, are those in its object's original mask."""
    for label, mask in zip(array(result.classes), array(result.masks), strict=True):
        places = array(result.image)[mask > 0].astype(float)[:, :2]
        top, left, bottom, right = BOXES[label]
        assert (places >= np.array([top, left]) - 2 * blur).all()
        assert (places <= np.array([bottom, right]) - 1 + 2 * blur).all()


@pytest.mark.parametrize("name", COLORS)
def test_colour_steps_change_the_image_alone(name: str) -> None:
    step, sample = _step(name, COLORS[name]), _sample()
    results = [step(sample, number) for number in range(30)]
    for result in results:
        assert_equal(result._replace(image=sample.image), sample)
    changed = [not np.array_equal(result.image, sample.image) for result in results]
    if name == "random_rgb_to_gray":
        assert 3 <= sum(changed) <= 16
        return
    assert any(changed)
    assert name == "adjust_gamma" or len({result.image.numpy().tobytes() for result in results}) > 5


def test_every_step_is_tested() -> None:
    others = {"random_jitter_boxes", "random_self_concat_image", "autoaugment_image", "drop_label_probabilistically"}
    assert {*GEOMETRIC, *COLORS, *others, "remap_labels"} == set(STEPS)


def test_gamma_and_brightness_are_the_formulas() -> None:
    image = _sample().image.numpy() / 255.0
    gamma = _step("adjust_gamma", {"gamma": 0.7, "gain": 1.4})(_sample(), 0)
    np.testing.assert_allclose(gamma.image, np.clip(1.4 * image**0.7, 0, 1) * 255, atol=0.51)
    brightness = _step("random_adjust_brightness", {"max_delta": 0.3})
    deltas = [int(brightness(_sample(), number).image.numpy()[30, 40, 2]) for number in range(40)]
    assert 0.2 * 255 < max(deltas) <= 0.3 * 255 + 1  # from a channel that is 0
    factors = _step("random_pixel_value_scale", {"minval": 0.5, "maxval": 0.8})(_sample(), 0).image.numpy()
    assert (np.abs(factors / 255.0 - image * 0.65) <= image * 0.15 + 0.51 / 255).all()


def test_black_patches_are_squares_of_the_given_side() -> None:
    white = _sample()._replace(image=tf.fill([48, 64, 3], tf.constant(255, tf.uint8)))
    one = {"max_black_patches": 1, "probability": 1.0, "size_to_image_ratio": 0.25}
    for number in range(5):
        black = _step("random_black_patches", one)(white, number).image.numpy()[..., 0] == 0
        assert black.sum() == 144
        assert (black.any(1).sum(), black.any(0).sum()) == (12, 12)
    noise = _step("random_patch_gaussian", {"min_patch_size": 9, "max_patch_size": 9})(white, 1).image.numpy()
    assert 0 < (noise != 255).any(-1).sum() <= 81


@pytest.mark.parametrize("mode", ["DEFAULT", "EXPAND", "SHRINK_SYMMETRIC", "EXPAND_SYMMETRIC_XY"])
def test_jittered_sides_move_in_their_direction(mode: str) -> None:
    sample, step = _sample(), _step("random_jitter_boxes", {"ratio": 0.1, "jitter_mode": mode})
    moves = np.concatenate([pixel_boxes(step(sample, number)) - pixel_boxes(sample) for number in range(20)])[::3]
    limits = 0.05 * np.array([22, 23, 22, 23])
    assert (np.abs(moves) <= limits + 1e-3).all()
    if mode != "DEFAULT":
        outwards = moves * [-1, -1, 1, 1] * (1 if "EXPAND" in mode else -1)
        assert (outwards >= -1e-4).all()
    if "SYMMETRIC" in mode:
        np.testing.assert_allclose(moves[:, :2], -moves[:, 2:], atol=1e-3)
        assert np.allclose(moves[:, 0] / 22, moves[:, 1] / 23, atol=1e-4) == mode.endswith("XY")


def test_self_concat_repeats_image_and_objects() -> None:
    both = {"concat_vertical_probability": 1.0, "concat_horizontal_probability": 1.0}
    result, sample = _step("random_self_concat_image", both)(_sample(), 0), _sample()
    np.testing.assert_array_equal(result.image, np.tile(sample.image, (2, 2, 1)))
    assert array(result.classes).tolist() == [0, 1, 2] * 4
    np.testing.assert_allclose(pixel_boxes(result), mask_boxes(result.masks), atol=1e-3)
    _assert_objects_have_their_own_pixels(result, sample, 0.0)
    assert assert_points_show_their_origin(result, {0: sample}, atol=1e-3) == 24


def test_labels_are_category_ids() -> None:
    dropped = _step("drop_label_probabilistically", {"label": 20})(_sample(), 0)
    assert array(dropped.classes).tolist() == [0, 2]
    some = _step("drop_label_probabilistically", {"label": 20, "drop_probability": 0.5})
    assert {len(some(_sample(), number).classes) for number in range(20)} == {2, 3}
    remapped = _step("remap_labels", {"original_labels": [10, 20], "new_label": 30})(_sample(), 0)
    assert array(remapped.classes).tolist() == [2, 2, 2]
    with pytest.raises(ConfigError, match=r"steps\.0\.remap_labels\.new_label: no category has the id 7"):
        _step("remap_labels", {"original_labels": [10], "new_label": 7})


def test_keypoints_change_places_by_name_or_as_given() -> None:
    with pytest.raises(ConfigError, match=r"keypoint_rot_permutation = \[1\]: list each index from 0 to 1 once"):
        _step("random_rotation90", {"keypoint_rot_permutation": [1]})
    alone = [{"id": 1, "name": "one", "keypoints": ["left"]}]
    steps = AugmentConfig.model_validate({"steps": ["random_vertical_flip"]}).steps
    with pytest.raises(ConfigError, match=r"steps\.0\.random_vertical_flip: category 'one' has a keypoint 'left' but"):
        augmentation_steps(steps, alone, with_keypoints=True)
    by_name = _step("random_vertical_flip", {"probability": 1.0})(_sample(), 0)
    given = _step("random_vertical_flip", {"probability": 1.0, "keypoint_flip_permutation": [1, 0]})(_sample(), 0)
    assert_equal(by_name, given)
    still = _step("random_vertical_flip", {"probability": 1.0, "keypoint_flip_permutation": [0, 1]})(_sample(), 0)
    np.testing.assert_array_equal(array(still.keypoints)[:, ::-1], array(given.keypoints))


def test_sizes_keep_to_their_fields() -> None:
    cases: dict[str, dict[str, Any]] = {
        "random_pad_image": {"min_image_height": 50, "max_image_height": 55, "max_image_width": 70},
        "random_square_crop_by_scale": {"num_scales": 2, "scale_min": 0.5, "scale_max": 1.25},
        "random_scale_crop_and_pad_to_square": {"output_size": 40},
        "ssd_random_crop_fixed_aspect_ratio": {},
        "ssd_random_crop_pad_fixed_aspect_ratio": {"min_padded_size_ratio": [1.5, 1.5]},
    }
    sizes = {}
    for name, fields in cases.items():
        step = _step(name, fields)
        sizes[name] = np.array([step(_sample(), number).image.shape[:2] for number in range(8)])
    assert ((sizes["random_pad_image"] >= [50, 64]) & (sizes["random_pad_image"] <= [55, 70])).all()
    assert {tuple(size) for size in sizes["random_square_crop_by_scale"]} == {(32, 32), (80, 80)}
    assert (sizes["random_scale_crop_and_pad_to_square"] == 40).all()
    for name in ("ssd_random_crop_fixed_aspect_ratio", "ssd_random_crop_pad_fixed_aspect_ratio"):
        assert (np.abs(np.diff(sizes[name])) <= 1).all(), name


def test_crops_keep_objects_by_their_own_threshold_and_random_coef_skips() -> None:
    crop = {**RANGE, "max_area": 0.4, "min_object_covered": 0.1, "overlap_thresh": 0.6}
    whole = np.array([(bottom - top) * (right - left) for top, left, bottom, right in BOXES])
    step = _step("ssd_random_crop", {"operations": [crop]})
    for number in range(10):
        result = step(_sample(), number)
        assert (array(result.masks).sum((1, 2)) >= 0.6 * whole[array(result.classes)] - 30).all()
    skipped = _step("random_crop_image", {**CROP, "random_coef": 1.0})(_sample(), 3)
    np.testing.assert_array_equal(skipped.image, _sample().image)
    assert array(skipped.classes).tolist() == [0, 1, 2]
    some = _step("ssd_random_crop", {"operations": [{**CROP, "random_coef": 0.5}]})
    same = [some(_sample(), number).image.shape == (48, 64, 3) for number in range(30)]
    assert 5 < sum(same) < 25


def test_autoaugment_is_the_policy() -> None:
    from detection.input_pipeline.augmentation.autoaugment import POLICIES, autoaugment

    expected = autoaugment(_sample(), policy=POLICIES["test"], seed=tf.constant([5, 7]))
    assert_equal(_step("autoaugment_image", {"policy_name": "test"})(_sample(), 5), expected)


def test_steps_keep_their_order_and_seeds() -> None:
    entries = ["random_rotation90", {"random_jpeg_quality": {"random_coef": 0.75}}, "random_rotation90"]
    steps = augmentation_steps(AugmentConfig.model_validate({"steps": entries}).steps, CATEGORIES, with_keypoints=True)
    assert [step.number for step in steps] == [100, 101, 102]
    assert [step.probability for step in steps] == [0.5, 0.25, 0.5]
    assert all(one.number != other.number for one, other in itertools.combinations(steps, 2))
