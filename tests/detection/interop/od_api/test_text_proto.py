"""Protocol buffer text as people write it, and as they should not."""

import re
from pathlib import Path

import pytest

from detection.interop.od_api.configuration.other_fields import NO_EFFECT
from detection.interop.od_api.configuration.pipeline_config import convert_pipeline_config
from schemas.errors import ConfigError
from tests.detection.interop.od_api.test_pipeline_config import SSD, with_lines, zoo_texts


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
    places = [number for number, line in enumerate(lines) if line.rstrip().endswith("{")]
    assert len(places) > 40
    for place in places:
        text = "\n".join([*lines[: place + 1], planted, *lines[place + 1 :]])
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n", "\r\n"),
        ("\n", " # \x0c } \u2028 {\n"),
        ("  ", "\t"),
        ("-4.6", "-4.6f"),
        ("4e-5", "0.4E-4"),
        ("RELU_6", "2"),
    ],
)
def test_white_space_comments_and_numbers(old: str, new: str) -> None:
    other, first = convert_pipeline_config(SSD.replace(old, new)), convert_pipeline_config(SSD)
    assert (other.keys, other.unsupported, other.notes) == (first.keys, (), first.notes)


def test_an_unknown_model_is_an_error_with_its_line() -> None:
    text = with_lines("ssd_mobilenet_v2_keras", "ssd_inception_v2")
    with pytest.raises(ConfigError, match=r"line 7: model\.ssd\.feature_extractor\.type: ssd_inception_v2: no such"):
        convert_pipeline_config(text)
    with pytest.raises(ConfigError, match=r"line 1: model\.experimental_model: no such model here"):
        convert_pipeline_config("model { experimental_model {} }")
    with pytest.raises(ConfigError, match=r"model\.model: missing"):
        convert_pipeline_config("model {}")
    assert SSD.splitlines()[6].strip().startswith("type")


def _changed(value: str) -> str:
    """Another value of the same type."""
    others = {"true": "false", "false": "true", "RELU_6": "RELU", "SWISH": "RELU", "SIGMOID": "SOFTMAX", "V2": "V1"}
    others |= {"CONV": "FC", "FC": "CONV", "SOFTMAX": "SIGMOID", "FAN_AVG": "FAN_IN"}
    if value in others:
        return others[value]
    if value[0] in "\"'":
        return f"{value[:-1]}_x{value[-1]}"
    if value[0] == "[":
        return f"{value[:-1]}, 7]"
    return str(int(value) + 2) if value.isdigit() else str(float(value) * 1.5 + 0.125)


def _lines_of(first: int, lines: list[str]) -> range:
    """The lines of the field or message that begins at a line; both count from 1."""
    depth = 0
    for number in range(first, len(lines) + 1):
        depth += lines[number - 1].count("{") - lines[number - 1].count("}")
        if depth <= 0:
            return range(first, number + 1)
    return range(first, len(lines) + 1)


@pytest.mark.parametrize(
    "name",
    [
        "ssd_mobilenet_v2_320x320_coco17_tpu-8",
        "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8",
        "ssd_efficientdet_d6_1408x1408_coco17_tpu-32",
        "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8",
        "faster_rcnn_resnet50_v1_fpn_640x640_coco17_tpu-8",
    ],
)
def test_no_field_is_dropped_in_silence(name: str, oracle_dir: Path) -> None:
    lines = zoo_texts(oracle_dir)[name].splitlines()
    before = convert_pipeline_config("\n".join(lines))
    silent, count = set(), 0
    for number, line in enumerate(lines):
        match = re.fullmatch(r"(\s*(\w+)\s*:\s*)([^\s{}]+|\[.*\])", line.rstrip(",; "))
        if match is None or match[2] == "type":
            continue
        count += 1
        changed = [*lines[:number], f"{match[1]}{_changed(match[3])}", *lines[number + 1 :]]
        after = convert_pipeline_config("\n".join(changed))
        remarks = (*after.notes, *after.unsupported)
        if after == before and not any(number + 1 in _lines_of(remark.line or 0, changed) for remark in remarks):
            silent.add(match[2])
    assert count > 40
    # Of evaluation, and those that act beside other values than those of these files.
    others = {"use_moving_averages", "max_detections_per_class", "encode_background_as_zeros"}
    assert silent - NO_EFFECT <= {"shuffle", "num_epochs"} | others


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("path", [r"D:\tf\new\label_map.pbtxt", r"C:\Users\me\x", r"D:\\tf\\new", "/data/a b"])
def test_a_windows_path_is_a_path(oracle_dir: Path, path: str, quote: str) -> None:
    """Its backslashes are no escapes of tabs, line feeds or characters."""
    text = zoo_texts(oracle_dir)["ssd_efficientdet_d0_512x512_coco17_tpu-8"]
    changed = re.sub(r'label_map_path: "[^"]*"', lambda _: f"label_map_path: {quote}{path}{quote}", text)
    assert changed != text
    keys = convert_pipeline_config(changed).keys
    expected = path.replace("\\\\", "/").replace("\\", "/")
    assert keys["data.label_map"] == expected
