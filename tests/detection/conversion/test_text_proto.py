"""Protocol buffer text as people write it, and as they should not."""

import re
from pathlib import Path

import pytest

from detection.conversion.od_api import convert_pipeline_config
from detection.conversion.od_api_schema import MESSAGES
from schemas.errors import ConfigError
from tests.detection.conversion.test_od_api import SSD, with_lines, zoo_texts


def _other_style(text: str) -> str:
    """The same message in another style: angle brackets, colons, commas, comments with braces, split strings."""
    text = re.sub(r"(\w+):? \{", r"\1: < # }", text).replace("}\n", ">\n")
    text = re.sub(r"(num_steps: \d+)", r"\1;", text)
    return re.sub(r'"PATH_TO_BE_CONFIGURED', r"'PATH_TO_' # {" + '\n  "BE_CONFIGURED', text)


@pytest.mark.parametrize(
    "name", ["ssd_mobilenet_v2_320x320_coco17_tpu-8", "ssd_efficientdet_d6_1408x1408_coco17_tpu-32"]
)
def test_another_style_has_the_same_meaning(name: str, oracle_dir: Path) -> None:
    text = zoo_texts(oracle_dir)[name]
    other = _other_style(text)
    assert "<" in other
    first, second = convert_pipeline_config(text), convert_pipeline_config(other)
    assert second.keys == first.keys
    assert [remark.field for remark in second.notes] == [remark.field for remark in first.notes]
    for remark in second.notes:
        name_there = remark.field.rpartition(".")[2]
        assert name_there in other.splitlines()[(remark.line or 0) - 1] or name_there not in text


@pytest.mark.parametrize(
    "planted", ["planted_field: 1", "planted_field { a { b: [1, 2] } c: 'x' }", "[my.planted_field]: 3"]
)
def test_an_unknown_field_is_listed_wherever_it_is(planted: str, oracle_dir: Path) -> None:
    lines = zoo_texts(oracle_dir)["ssd_efficientdet_d0_512x512_coco17_tpu-8"].splitlines()
    without_fields = {name for name, fields in MESSAGES.items() if not fields}
    assert without_fields == {"Other"}
    places = [number for number, line in enumerate(lines) if line.rstrip().endswith("{")]
    assert len(places) > 40
    for place in places:
        text = "\n".join([*lines[: place + 1], planted, *lines[place + 1 :]])
        if "iou_similarity" in lines[place]:
            continue
        found = [remark for remark in convert_pipeline_config(text).unsupported if "planted_field" in remark.field]
        assert [(remark.line, remark.text) for remark in found] == [(place + 2, "unknown field")], lines[place]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("activation: RELU_6", "activation: RELU_7", "RELU_7"),
        ("num_classes: 3", "num_classes: three", "three"),
        ("num_classes: 3", "num_classes: 3.5", "3.5"),
        ("num_classes: 3", "num_classes: 3 num_classes: 4", "num_classes"),
        ("num_classes: 3", "num_classes: 99999999999999", "99999999999999"),
        ("num_classes: 3", "num_classes 3", "num_classes"),
        ("num_classes: 3", "num_classes: 3 {", ""),
        ("use_dropout: false", "use_dropout: maybe", "maybe"),
        ("num_classes: 3", 'num_classes: "3"', "3"),
        ("model {", "model { faster_rcnn {}", "ssd"),
        ("fixed_shape_resizer {}", "fixed_shape_resizer {} identity_resizer {}", "identity_resizer"),
    ],
)
def test_an_invalid_text_is_an_error_with_its_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^pipeline\.config:\d+:\d+ .*") as error:
        convert_pipeline_config(with_lines(old, new))
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "# nothing\n", "train_config {}", "}", "model", "model { ssd", "\x00\x01", "{" * 10, '"', "é: 1"),
        *("model {" * 5000, "<html><body></body></html>", "a: b\nc:\n  - d", '{"model": {"ssd": {}}}'),
    ],
)
def test_what_is_no_pipeline_config_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^pipeline\.config:"):
        convert_pipeline_config(text)


def test_an_unknown_model_is_an_error_with_its_line() -> None:
    text = with_lines("ssd_mobilenet_v2_keras", "ssd_inception_v2")
    with pytest.raises(ConfigError, match=r"line 7: model\.ssd\.feature_extractor\.type: ssd_inception_v2: no such"):
        convert_pipeline_config(text)
    with pytest.raises(ConfigError, match=r"line 1: model\.experimental_model: no such model here"):
        convert_pipeline_config("model { experimental_model {} }")
    with pytest.raises(ConfigError, match=r"model\.model: missing"):
        convert_pipeline_config("model {}")
    assert SSD.splitlines()[6].strip().startswith("type")
