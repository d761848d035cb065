"""Augmentation: which keys go together."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.config.config_io import from_yaml, parse_config, to_yaml
from schemas.config.train.augmentation import AugmentConfig
from schemas.config.train.augmentation_steps import REFUSED_STEPS, STEPS
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scale_min": 3, "scale_max": 2}, "scale_min = 3.0 is above scale_max = 2.0"),
        ({"scale_min": 1.1}, "scale_min = 1.1 is above scale_max = auto"),
        (
            {"mosaic": {"image_size": 512}},
            "image_size = 512 does nothing while probability = 0 switches this off; set probability too",
        ),
        ({"mixup": {"alpha": 8.0}}, r"alpha = \S+ does nothing while probability = 0"),
        ({"grid_mask": {"ratio": 0.5}}, r"ratio = \S+ does nothing while probability = 0"),
        ({"randaugment": {"magnitude": 10}}, r"magnitude = \S+ does nothing while layers = 0"),
        ({"grid_mask": {"probability": 1.5}}, "less than or equal to 1"),
        ({"mosaic": {"probability": 1, "min_share": 0.6}}, "less than or equal to 0.5"),
        ({"autoaugment": "v0", "randaugment": {"layers": 1}}, "set one"),
        ({"autoaugment": "v9"}, "'v0', 'v1', 'v2' or 'v3'"),
    ],
)
def test_a_contradiction_is_refused_with_the_reason(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AugmentConfig(**keys)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"autoaugment": "v3", "scale_min": 0.3, "scale_max": 1.0},
        {"randaugment": {"layers": 2, "magnitude": 10.0}, "mosaic": {"probability": 1.0, "image_size": 512}},
        {"mixup": {"probability": 0.5, "alpha": 8.0}, "grid_mask": {"probability": 0.5}, "horizontal_flip": False},
    ],
)
def test_what_goes_together_is_taken(keys: dict[str, Any]) -> None:
    config = AugmentConfig(**keys)
    assert AugmentConfig.model_validate(config.model_dump(mode="json")) == config


def test_only_flip_and_scale_jitter_are_on_by_default() -> None:
    config = AugmentConfig()
    assert (config.horizontal_flip, config.scale_min, config.scale_max) == ("auto",) * 3
    assert config.autoaugment is None
    sections = (config.mosaic, config.mixup, config.grid_mask)
    assert {section.probability for section in sections} == {0.0}
    assert config.randaugment.layers == 0


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("random_crop_imag", "unknown step random_crop_imag. The nearest is random_crop_image"),
        ({"random_crop_image": {"min_aria": 0.1}}, r"field random_crop_image\.min_aria\. The nearest is min_area"),
        ({"random_crop_image": {"min_area": 0.9, "max_area": 0.2}}, "min_area = 0.9 is above max_area = 0.2"),
        ({"random_crop_image": {"clip_boxes": False}}, "boxes are always clipped"),
        ({"random_image_scale": {"max_scale_ratio": "x"}}, r"random_image_scale\.max_scale_ratio = 'x': Input should"),
        ({"random_crop_image": {}, "random_image_scale": {}}, "begin each step with its own '-'"),
        (3, "a step is a name or"),
        ("normalize_image", "Set model.overrides.pixel_mean and pixel_std"),
        ("subtract_channel_mean", "pixel_mean"),
        ("rgb_to_gray", "Use random_rgb_to_gray"),
        ("scale_boxes_to_pixel_coordinates", "Remove the step"),
        ("convert_class_logits_to_softmax", "one category each"),
        ({"remap_labels": {"new_label": 1}}, r"remap_labels\.original_labels is missing"),
        ({"ssd_random_crop": {"operations": [{"min_area": 0.1}]}}, r"operations\.0\.min_aspect_ratio is missing"),
        (
            {"ssd_random_crop_pad": {"operations": [{"pad_colour_r": 1.0}]}},
            r"ssd_random_crop_pad\.operations\.0\.pad_colour_r\. The nearest is pad_color_r",
        ),
    ],
)
def test_a_wrong_step_is_refused_with_the_reason(step: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"train": {"augment": {"steps": ["random_rotation90", step]}}})


def test_steps_are_written_with_all_fields_and_read_back() -> None:
    steps = ["random_vertical_flip", {"ssd_random_crop": None}, {"random_pad_image": {"max_image_width": 900}}]
    config = parse_config({"train": {"augment": {"steps": steps}}})
    assert config.train.augment.steps[0] == {
        "random_vertical_flip": {"keypoint_flip_permutation": [], "probability": 0.5}
    }
    assert from_yaml(to_yaml(config)) == config


def test_all_39_steps_are_built_or_refused() -> None:
    assert len({*STEPS, *REFUSED_STEPS}) == 39
