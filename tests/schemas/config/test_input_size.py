import re

import pytest

from schemas.config.config_io import from_yaml, load_config, to_yaml
from schemas.config.input_size import height_and_width
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"), [("320", (320, 320)), ("[384, 640]", (384, 640)), ("[640,384]", (640, 384))]
)
def test_a_side_or_height_and_width(text: str, expected: tuple[int, int]) -> None:
    config = load_config(None, [f"model.image_size={text}"])
    assert config.model.image_size is not None
    assert config.model.image_size != "auto"
    assert height_and_width(config.model.image_size) == expected
    assert from_yaml(to_yaml(config)) == config


@pytest.mark.parametrize("text", ["0", "-3", "12.5", "true", "[1, 2, 3]", "[3]", "[4, 0]", "wide", "{a: 1}"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.image_size: .* is neither a positive integer \(pixels\) nor"):
        load_config(None, [f"model.image_size={text}"])


def test_the_text_of_the_original_is_width_by_height() -> None:
    with pytest.raises(ConfigError, match=re.escape("google/automl writes width x height; use [384, 640]")):
        load_config(None, ["model.image_size=640x384"])


@pytest.mark.parametrize(
    ("resize", "message"),
    [
        ("{short_side: 600}", "model.resize: short_side = 600 does nothing under mode = fit"),
        ("{mode: stretch, long_side: 600}", "model.resize: long_side = 600 does nothing under mode = stretch"),
        ("{mode: short_side, short_side: 1400}", "short_side = 1400 is above long_side = 1333"),
        ("{mode: crop}", "Input should be 'fit', 'stretch' or 'short_side'"),
    ],
)
def test_keys_of_resize_act_or_are_refused(resize: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, [f"model.resize={resize}"])


def test_the_input_is_set_once() -> None:
    with pytest.raises(
        ConfigError, match=r"image_size and overrides\.image_size are the same setting; remove the second"
    ):
        load_config(None, ["model.image_size=64", "model.overrides={image_size: [64, 64]}"])
