"""From the configuration to training examples, through every augmentation at once."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import Augmentation, Batch, InputOptions, training_batches
from detection.models.detector import Capabilities, Detector
from detection.models.registry import detector_from_config
from detection.training.build_input import input_options_from_config
from schemas.errors import ConfigError
from tests.detection.synthetic import example, rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_detector import TinyConfig
from tests.detection.training.tiny_run import CATEGORIES, SMALL, tiny_config

tiny_detector.register()

ALL = (
    "train.augment.mosaic={probability: 0.5, image_size: 80}",
    "train.augment.mixup.probability=0.5",
    "train.augment.grid_mask.probability=0.5",
    "train.augment.autoaugment=v0",
    "train.augment.steps=[random_distort_color, ssd_random_crop]",
    "train.augment.scale_min=0.5",
    "train.augment.scale_max=1.0",
)
STEPS = (
    "train.augment.steps=[random_square_crop_by_scale, ssd_random_crop, {random_rotation90: {probability: 0.9}}, "
    "random_pad_image]"
)


@pytest.fixture(scope="module")
def detector() -> Detector:
    return detector_from_config(tiny_config().model, CATEGORIES)


def _options(detector: Detector, *assignments: str) -> InputOptions:
    return input_options_from_config(tiny_config(*assignments), detector, CATEGORIES)


def _arguments(step: Augmentation) -> dict[str, Any]:
    assert isinstance(step.apply, partial)
    return step.apply.keywords


def _batches(reader: RecordReader, options: InputOptions, start: int, stop: int) -> list[Batch]:
    return list(training_batches(reader, options, seed=5, start_step=start, stop_step=stop, batch_size=4))


def test_nothing_is_on_that_is_not_asked_for(detector: Detector) -> None:
    options = _options(detector)
    assert options.augmentations == []
    assert (options.horizontal_flip, options.scale_min, options.scale_max) == (True, 0.1, 2.0)
    assert (options.mask_size, options.num_keypoints, options.with_crowds) == (0, 0, False)
    assert options.category_ids == [3, 7, 40]
    assert _options(detector, "train.crowds=ignore").with_crowds


def test_phases_are_parts_of_the_steps(detector: Detector) -> None:
    """In images of the run, of 10 steps of 8; a length that is not known yet has none."""
    keys = (
        *("train.augment.mosaic={probability: 0.5, start: 0.1, end: 0.5}", "train.augment.mixup.probability=0.5"),
        *("train.augment.autoaugment=v0", "train.augment.end=0.9", "train.batch_size=4", "train.accumulate_steps=2"),
    )
    options = _options(detector, *keys, "train.steps=10")
    assert [(one.start, one.stop) for one in options.augmentations] == [(8, 40), (0, 72), (0, 72)]
    assert options.jitter_stop == 72
    assert {one.stop for one in _options(detector, *keys, "train.steps=auto").augmentations} == {None}
    with pytest.raises(ConfigError, match=r"start = 0\.5 is not below end = 0\.5"):
        _options(detector, "train.augment.mixup={probability: 1, start: 0.5, end: 0.5}")


def test_in_the_last_phase_the_scale_is_one(detector: Detector, tmp_path: Path) -> None:
    reader = RecordReader(write_shards(tmp_path, rectangles(10)))
    jittered = ("train.augment.scale_min=0.5", "train.augment.scale_max=0.5", "train.augment.horizontal_flip=false")
    keys = ("train.steps=4", "train.batch_size=4")
    phased, plain = (_options(detector, *keys, *jittered, f"train.augment.end={end}") for end in (0.5, 1.0))
    whole = _options(detector, *keys, "train.augment={horizontal_flip: false, scale_min: 1, scale_max: 1}")
    found, half, full = (_batches(reader, options, 0, 4) for options in (phased, plain, whole))
    for step, batch in enumerate(found):
        expected = (half if step < 2 else full)[step]
        np.testing.assert_array_equal(batch.images, expected.images)
        np.testing.assert_array_equal(batch.labels.boxes, expected.labels.boxes)


def test_each_key_reaches_its_function_and_seeds_keep_their_numbers(detector: Detector) -> None:
    """The numbers are written out: a run that goes on under a later version must draw the same."""
    steps = {step.number: step for step in _options(detector, *ALL).augmentations}
    assert list(steps) == [1, 2, 3, 4, 100, 101]
    assert [steps[number].probability for number in steps] == [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]
    assert [steps[number].partners for number in steps] == [3, 1, 0, 0, 0, 0]
    assert _arguments(steps[1]) == {"image_size": (80, 80), "min_share": 0.25}
    assert _arguments(steps[100])["hue"] == 0.2
    overlaps = [operation.min_object_covered for operation in _arguments(steps[101])["operations"]]
    assert overlaps == [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    (rand,) = _options(detector, "train.augment.randaugment={layers: 2, magnitude: 9}").augmentations
    assert (rand.number, _arguments(rand)) == (5, {"layers": 2, "magnitude": 9.0})


def test_the_input_s_size_and_the_mode_of_resizing_reach_training(tmp_path: Path) -> None:
    keys = ("model.image_size=[40, 56]", "model.resize={mode: stretch, pad_to_multiple: 16}")
    plain = ("train.augment={horizontal_flip: false, scale_min: 1, scale_max: 1}",)
    config = tiny_config(*SMALL, *keys, *plain, "train.augment.mosaic={probability: 1, image_size: [30, 70]}")
    detector = detector_from_config(config.model, CATEGORIES)
    options = input_options_from_config(config, detector, CATEGORIES)
    assert _arguments(options.augmentations[0])["image_size"] == (30, 70)
    reader = RecordReader(write_shards(tmp_path, rectangles(4)))
    (batch,) = _batches(reader, options, 0, 1)
    images = batch.images.numpy()
    assert images.shape == (4, 48, 64, 3)
    assert (images[:, :40, :56] != 0.0).any(axis=-1).all()  # stretched, whatever the aspect
    assert (images[:, 40:] == 0.0).all()
    assert (images[:, :, 56:] == 0.0).all()
    assert (batch.labels.boxes.numpy() <= [40.0, 56.0, 40.0, 56.0]).all()


def test_all_together_resume_exactly_and_give_valid_boxes(tmp_path: Path, detector: Detector) -> None:
    reader = RecordReader(write_shards(tmp_path, rectangles(10)))
    options = _options(detector, *ALL, STEPS)
    whole, late = _batches(reader, options, 0, 4), _batches(reader, options, 3, 4)
    for one, again in zip(whole[3:], late, strict=True):
        np.testing.assert_array_equal(one.images, again.images)
        np.testing.assert_array_equal(one.labels.boxes, again.labels.boxes)
    plain = _batches(reader, _options(detector), 0, 4)
    assert all((one.images.numpy() != other.images.numpy()).any() for one, other in zip(whole, plain, strict=True))
    for batch in whole:
        boxes, valid = batch.labels.boxes.numpy(), batch.labels.valid.numpy()
        assert np.isfinite(batch.images.numpy()).all()
        assert (boxes[valid][:, 2:] > boxes[valid][:, :2]).all()
        assert ((boxes >= 0) & (boxes <= 64)).all()


def test_switching_one_on_changes_no_other_s_draws(tmp_path: Path, detector: Detector) -> None:
    """Flip and scale jitter, seen in the boxes, are what they are without colour jitter and grid mask."""
    reader = RecordReader(write_shards(tmp_path, rectangles(6)))
    keys = ("train.augment.steps=[random_distort_color]", "train.augment.grid_mask.probability=1")
    colourful = _options(detector, *keys)
    for one, other in zip(_batches(reader, _options(detector), 0, 3), _batches(reader, colourful, 0, 3), strict=True):
        np.testing.assert_array_equal(one.labels.boxes, other.labels.boxes)
        assert (one.images.numpy() != other.images.numpy()).any()


class _WithKeypoints(Detector):
    capabilities = Capabilities(keypoints=True)


def _keypoint_detector() -> Detector:
    return _WithKeypoints(config=TinyConfig(image_size=(64, 64)), num_classes=3, name="points")


def test_keypoints_go_by_the_categories_names(detector: Detector) -> None:
    points = _keypoint_detector()
    categories = [*CATEGORIES[:2], CATEGORIES[2] | {"keypoints": ["left_a", "right_a", "b"]}]
    options = input_options_from_config(tiny_config(), points, categories)
    assert (options.num_keypoints, options.keypoint_flips) == (3, [[0, 1, 2], [0, 1, 2], [1, 0, 2]])
    unflipped = input_options_from_config(tiny_config("train.augment.horizontal_flip=false"), points, categories)
    assert (unflipped.num_keypoints, unflipped.keypoint_flips) == (3, None)
    assert _options(detector).num_keypoints == 0


def test_categories_that_a_mirror_exchanges_switch_the_flip_off(detector: Detector) -> None:
    names = ["stop", "Turn_Left", "Turn_Right"]
    categories = [category | {"name": name} for category, name in zip(CATEGORIES, names, strict=True)]
    for value, expected in (("auto", False), ("true", True), ("false", False)):
        config = tiny_config(f"train.augment.horizontal_flip={value}")
        assert input_options_from_config(config, detector, categories).horizontal_flip is expected


def test_what_a_detector_cannot_do_is_refused(detector: Detector) -> None:
    points = _keypoint_detector()
    categories = [CATEGORIES[0] | {"keypoints": ["a"]}]
    with pytest.raises(ConfigError, match=r"train\.crowds = ignore: .* does not support ignored crowds.*crowds=drop"):
        input_options_from_config(tiny_config("train.crowds=ignore"), points, categories)


def test_the_objects_own_weights_multiply_those_of_their_classes(detector: Detector, tmp_path: Path) -> None:
    image, boxes = np.zeros((64, 64, 3), np.uint8), [[2, 2, 40, 40], [20, 10, 60, 60]]
    records = [example(image, boxes, [3, 40], weights=weights) for weights in ([0.5, 0.0], [0.25], [])]
    reader = RecordReader(write_shards(tmp_path, records, shards=1))
    plain = ("train.augment={horizontal_flip: false, scale_min: 1, scale_max: 1}", "train.object_weights=true")
    options = _options(detector, *plain)
    for factors in (None, np.array([2.0, 1.0, 3.0], np.float32)):
        (batch,) = training_batches(
            reader, options._replace(class_weights=factors), seed=1, start_step=0, stop_step=1, batch_size=3
        )
        expected = np.array([[0.5, 0.0], [0.25, 1.0], [1.0, 1.0]]) * (1.0 if factors is None else [2.0, 3.0])
        weights = np.asarray(batch.labels.weights)
        assert sorted(weights[:, :2].tolist()) == sorted(expected.tolist())
    assert _options(detector).with_weights is False


def test_steps_come_after_the_sections(detector: Detector) -> None:
    options = _options(detector, "train.augment.grid_mask.probability=0.5", STEPS)
    assert [step.number for step in options.augmentations] == [3, 100, 101, 102, 103]
