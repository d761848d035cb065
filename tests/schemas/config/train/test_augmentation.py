"""Augmentation: which keys go together."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.config.train.augmentation import AugmentConfig


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scale_min": 3}, "scale_min = 3.0 is above scale_max = 1.5"),
        (
            {"mosaic": {"image_size": 512}},
            "image_size = 512 does nothing while probability = 0 switches this off; set probability too",
        ),
        ({"mixup": {"alpha": 8.0}}, r"alpha = \S+ does nothing while probability = 0"),
        ({"grid_mask": {"ratio": 0.5}}, r"ratio = \S+ does nothing while probability = 0"),
        ({"color": {"hue": 0.1}}, r"hue = \S+ does nothing while probability = 0"),
        ({"randaugment": {"magnitude": 10}}, r"magnitude = \S+ does nothing while layers = 0"),
        ({"ssd_crop": {"keep": "centre"}}, r"keep = \S+ does nothing while probability = 0"),
        ({"ssd_crop": {"probability": 0.85}}, r"scale_max = 1.5 would both crop the image.*set scale_max = 1"),
        ({"ssd_crop": {"probability": 1, "area_range": [0.5, 0.2]}}, r"range \[0\.5, 0\.2\] is not ascending"),
        ({"ssd_crop": {"probability": 1, "area_range": [0.0, 0.2]}}, "Input should be greater than 0"),
        ({"ssd_crop": {"probability": 1, "aspect_ratio_range": [0, 2]}}, "Input should be greater than 0"),
        ({"ssd_crop": {"probability": 1, "min_overlaps": []}}, "at least 1 item"),
        ({"ssd_crop": {"probability": 1, "min_overlaps": [1.5]}}, "less than or equal to 1"),
        ({"color": {"probability": 1, "contrast": [1.2, 0.8]}}, "is not ascending"),
        ({"color": {"probability": 1.5}}, "less than or equal to 1"),
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
        {"ssd_crop": {"probability": 0.85, "keep": "centre"}, "scale_min": 0.3, "scale_max": 1.0},
        {"autoaugment": "v3", "color": {"probability": 0.5, "hue": 0.0}},
        {"randaugment": {"layers": 2, "magnitude": 10.0}, "mosaic": {"probability": 1.0, "image_size": 512}},
        {"mixup": {"probability": 0.5, "alpha": 8.0}, "grid_mask": {"probability": 0.5}, "horizontal_flip": False},
    ],
)
def test_what_goes_together_is_taken(keys: dict[str, Any]) -> None:
    config = AugmentConfig(**keys)
    assert AugmentConfig.model_validate(config.model_dump(mode="json")) == config


def test_only_flip_and_scale_jitter_are_on_by_default() -> None:
    config = AugmentConfig()
    assert (config.horizontal_flip, config.scale_min, config.scale_max, config.autoaugment) == (True, 0.5, 1.5, None)
    sections = (config.mosaic, config.mixup, config.grid_mask, config.color, config.ssd_crop)
    assert {section.probability for section in sections} == {0.0}
    assert config.randaugment.layers == 0
