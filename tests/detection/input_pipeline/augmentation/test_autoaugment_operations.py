"""What each name of AutoAugment does, and how strongly; the parts have tests of their own."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from detection.input_pipeline.augmentation.autoaugment_operations import OPERATIONS, Draw
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import (
    assert_equal,
    assert_points_show_their_origin,
    coordinate_sample,
    mask_boxes,
    pixel_boxes,
)

# Oracle entry -> operations it is for.
ARGUMENTS = {
    "Rotate": ["Rotate_BBox", "Rotate_Only_BBoxes"],
    "Shear": ["ShearX_BBox", "ShearY_BBox", "ShearX_Only_BBoxes", "ShearY_Only_BBoxes"],
    "Translate": ["TranslateX_BBox", "TranslateY_BBox"],
    "TranslateBBoxOnly": ["TranslateX_Only_BBoxes", "TranslateY_Only_BBoxes"],
    "Posterize": ["Posterize"],
    "Solarize": ["Solarize", "Solarize_Only_BBoxes"],
    "SolarizeAdd": ["SolarizeAdd"],
    "Enhance": ["Color", "Contrast", "Brightness", "Sharpness"],
    "Cutout": ["Cutout"],
    "CutoutBBoxOnly": ["Cutout_Only_BBoxes"],
    "BBoxCutoutPad": ["BBox_Cutout"],
}
WITHOUT_ARGUMENT = ["AutoContrast", "Equalize", "Flip_Only_BBoxes", "Equalize_Only_BBoxes"]
MOTIONS = ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"]


def _run(name: str, sample: Sample, argument: float, number: int = 0) -> Sample:
    # A probability of 3 is one of 1 for each box.
    return OPERATIONS[name].run(sample, Draw(tf.constant(argument), tf.constant(3.0), tf.constant([number, 9])))


@pytest.mark.parametrize("entry", ARGUMENTS)
def test_levels_become_the_arguments_of_the_original(oracles: dict[str, dict[str, Any]], entry: str) -> None:
    oracle = oracles["aug.level_to_arg"]
    for name in ARGUMENTS[entry]:
        arguments = [OPERATIONS[name].argument(level) for level in oracle["inputs"]["levels"]]
        np.testing.assert_allclose(arguments, oracle["expected"][entry], atol=oracle["tolerance"])


def test_the_strongest_level() -> None:
    """The constants of the original, for machines without the oracle file."""
    strongest = [30, 0.3, 250, 120, 4, 256, 110, 1.9, 100, 50, 0.75]
    half = [15, 0.15, 125, 60, 2, 128, 55, 1.0, 50, 25, 0.375]
    for names, at_10, at_5 in zip(ARGUMENTS.values(), strongest, half, strict=True):
        for name in names:
            arguments = [OPERATIONS[name].argument(level) for level in (10, 5)]
            np.testing.assert_allclose(arguments, [at_10, at_5], atol=1e-9)
    assert OPERATIONS["Posterize"].argument(2) == 0


def test_no_operation_is_missing() -> None:
    assert sorted(OPERATIONS) == sorted([*WITHOUT_ARGUMENT, *(name for names in ARGUMENTS.values() for name in names)])
    assert {name for name, operation in OPERATIONS.items() if operation.per_box} == {
        name for name in OPERATIONS if name.endswith("_Only_BBoxes")
    }


def _photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (26, 40, 3), np.uint8) // 2 + 50


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("AutoContrast", 0.0, ImageOps.autocontrast),
        ("Equalize", 0.0, ImageOps.equalize),
        ("Posterize", 3.0, lambda image: ImageOps.posterize(image, 3)),
        ("Solarize", 100.0, lambda image: ImageOps.solarize(image, 100)),
        ("Color", 1.4, lambda image: ImageEnhance.Color(image).enhance(1.4)),
        ("Contrast", 1.4, lambda image: ImageEnhance.Contrast(image).enhance(1.4)),
        ("Brightness", 1.4, lambda image: ImageEnhance.Brightness(image).enhance(1.4)),
        ("Sharpness", 1.4, lambda image: ImageEnhance.Sharpness(image).enhance(1.4)),
        ("SolarizeAdd", 30.0, lambda image: Image.eval(image, lambda value: value + 30 if value < 128 else value)),
    ],
)
def test_colours_are_those_of_pillow_and_objects_stay(name: str, argument: float, expected: Any) -> None:
    sample = coordinate_sample(26, 40, [(3, 4, 12, 20)])._replace(image=tf.constant(_photo()))
    changed = _run(name, sample, argument)
    assert_equal(changed, sample._replace(image=tf.constant(np.asarray(expected(Image.fromarray(_photo()))))))


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("Solarize_Only_BBoxes", 100.0, lambda image: ImageOps.solarize(image, 100)),
        ("Equalize_Only_BBoxes", 0.0, ImageOps.equalize),
    ],
)
def test_colours_in_a_box(name: str, argument: float, expected: Any) -> None:
    sample = coordinate_sample(26, 40, [(3, 4, 25, 36)])._replace(image=tf.constant(_photo()))
    image = _photo()
    image[3:25, 4:36] = expected(Image.fromarray(image[3:25, 4:36]))
    assert_equal(_run(name, sample, argument), sample._replace(image=tf.constant(image)))


@pytest.mark.parametrize("motion", MOTIONS)
def test_motions_go_either_way_and_keep_everything_together(motion: str) -> None:
    sample = coordinate_sample(80, 120, [(30, 40, 42, 70)])
    argument = {"Rotate": 20.0, "ShearX": 0.2, "ShearY": 0.2}.get(motion, 11.0)
    images = set()
    for number in range(8):
        moved = _run(f"{motion}_BBox", sample, argument, number)
        assert moved.masks is not None
        np.testing.assert_allclose(pixel_boxes(moved), mask_boxes(moved.masks.numpy()), atol=1.0)
        assert assert_points_show_their_origin(moved, {0: sample}, atol=1.1) == 2
        images.add(moved.image.numpy().tobytes())
    assert len(images) == 2


@pytest.mark.parametrize("motion", MOTIONS)
def test_motions_in_a_box_leave_the_box_and_what_is_outside(motion: str) -> None:
    sample = coordinate_sample(80, 120, [(20, 30, 50, 80)])._replace(keypoints=tf.constant([[[0.5, 0.5, 2.0]]]))
    argument = {"Rotate": 20.0, "ShearX": 0.2, "ShearY": 0.2}.get(motion, 11.0)
    moved = _run(f"{motion}_Only_BBoxes", sample, argument, 1)
    np.testing.assert_array_equal(moved.boxes_yxyx.numpy(), sample.boxes_yxyx.numpy())
    outside = np.ones((80, 120), bool)
    outside[20:50, 30:80] = False
    before, after = sample.image.numpy(), moved.image.numpy()
    np.testing.assert_array_equal(after[outside], before[outside])
    assert (after[~outside] == 128).all(-1).sum() > 20
    assert moved.masks is not None
    # The mask is 1 in the whole box, so it is 0 now just where nothing of the box has gone.
    np.testing.assert_array_equal(moved.masks.numpy()[0] == 1, ~outside & ~(after == 128).all(-1))
    assert moved.keypoints is not None
    y, x = (moved.keypoints.numpy()[0, 0, :2] * [80, 120]).astype(int)
    np.testing.assert_allclose(after[y, x, :2], [40, 60], atol=1)


def test_the_middle_of_a_box_stays_when_its_content_turns() -> None:
    sample = coordinate_sample(60, 60, [(10, 20, 31, 51)])
    turned = _run("Rotate_Only_BBoxes", sample, 90.0)
    np.testing.assert_array_equal(turned.image.numpy()[20, 35], sample.image.numpy()[20, 35])
    across = {tuple(turned.image.numpy()[20, 35 + step, :2]) for step in (-4, 4)}
    assert across == {(16, 35), (24, 35)}


def test_a_flip_in_a_box() -> None:
    sample = coordinate_sample(26, 40, [(3, 4, 12, 20)])
    assert sample.masks is not None
    whole = tf.concat([sample.masks[:, :, :10], tf.zeros([1, 26, 30], tf.uint8)], axis=2)
    flipped = _run("Flip_Only_BBoxes", sample._replace(masks=whole), 0.0)
    expected = sample.image.numpy()
    expected[3:12, 4:20] = expected[3:12, 4:20][:, ::-1]
    np.testing.assert_array_equal(flipped.image.numpy(), expected)
    np.testing.assert_array_equal(flipped.boxes_yxyx.numpy(), sample.boxes_yxyx.numpy())
    assert flipped.masks is not None
    assert flipped.keypoints is not None
    np.testing.assert_array_equal(mask_boxes(flipped.masks.numpy()), [[3, 14, 12, 20]])
    # A left eye would be a right one now.
    np.testing.assert_array_equal(flipped.keypoints.numpy(), np.zeros((1, 2, 3)))


@pytest.mark.parametrize(("name", "argument"), [("Cutout", 6.0), ("BBox_Cutout", 0.5), ("Cutout_Only_BBoxes", 4.0)])
def test_cutouts_leave_the_objects(name: str, argument: float) -> None:
    sample = coordinate_sample(60, 90, [(10, 30, 50, 80)])
    cut = _run(name, sample, argument)
    assert_equal(cut._replace(image=sample.image), sample)
    changed = (cut.image.numpy() != sample.image.numpy()).any(-1)
    assert changed.any()
    assert (cut.image.numpy()[changed] == 128).all()
    if name == "Cutout_Only_BBoxes":
        assert not np.delete(changed[10:50], np.s_[30:80], axis=1).any()


@pytest.mark.usefixtures("op_determinism")
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_a_step_acts_on_a_third_of_the_boxes_or_on_the_image(name: str) -> None:
    """A probability is given, but only operations on single boxes look at it: 0.9 makes 0.3 of the boxes."""
    edges = np.linspace(0, 1, 9, dtype=np.float32)
    boxes = np.array([[y, x, y + 0.125, x + 0.125] for y in edges[:-1] for x in edges[:-1]], np.float32)
    image = np.random.default_rng(0).integers(30, 120, (160, 160, 3), np.uint8)
    sample = Sample(tf.constant(image), tf.constant(boxes), tf.zeros([64], tf.int32))
    argument = max(OPERATIONS[name].argument(6.0), 0.01)
    argument = 60.0 if name == "Solarize_Only_BBoxes" else argument
    changed = 0
    for number in range(2):
        draw = Draw(tf.constant(argument), tf.constant(0.9), tf.constant([number, 4]))
        after = OPERATIONS[name].run(sample, draw).image.numpy()
        tiles = (after != image).any(-1).reshape(8, 20, 8, 20).any((1, 3))
        changed += int(tiles.sum())
    if name.endswith("_Only_BBoxes"):
        assert abs(changed / 128 - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 128)
    elif "Cutout" in name or name == "Solarize":
        assert changed < 128
    else:
        assert changed == 128


@pytest.mark.parametrize(
    "name",
    ["SolarizeAdd", "Cutout", "BBox_Cutout", "Cutout_Only_BBoxes"]
    + [motion + kind for motion in MOTIONS for kind in ("_BBox", "_Only_BBoxes")],
)
def test_level_0_leaves_the_pixels(name: str) -> None:
    sample = coordinate_sample(26, 40, [(3, 4, 12, 20), (10, 12, 25, 39)])
    same = _run(name, sample, OPERATIONS[name].argument(0.0))
    np.testing.assert_array_equal(same.image.numpy(), sample.image.numpy())
    np.testing.assert_allclose(same.boxes_yxyx.numpy(), sample.boxes_yxyx.numpy(), atol=1e-6)
    assert same.masks is not None
    assert sample.masks is not None
    np.testing.assert_array_equal(same.masks.numpy(), sample.masks.numpy())
