"""docs/tfma.md says what the code does, and its examples run."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from components.coco_evaluator.tfma import derived_features
from components.coco_evaluator.tfma.eval_config import params_of, parse_eval_config
from components.coco_evaluator.tfma.metric_options import MetricOptions
from tests.components.coco_evaluator.generated_records import generate_ground_truth, write_records
from tests.detection.fake_detector import save_fake_detector

PAGE = Path(__file__).parents[4].joinpath("docs/tfma.md").read_text(encoding="utf-8")
BUCKETS = {
    "brightness": derived_features.BRIGHTNESS,
    "num_objects": derived_features.NUM_OBJECTS,
    "image_size": derived_features.IMAGE_SIZE,
    "aspect_ratio": derived_features.ASPECT_RATIO,
}


def rows(header: str) -> dict[str, list[str]]:
    """First cell -> the others, of the table with this first cell in its header."""
    table = re.search(rf"^\| {header} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert table
    cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table[1].splitlines()]
    return {first.strip("`"): rest for first, *rest in cells}


def test_the_derived_features() -> None:
    told = rows("feature")
    assert list(told) == [*derived_features.DERIVED, f"{derived_features.IMAGE_ENTRY_PREFIX}<key>"]
    for name, buckets in BUCKETS.items():
        assert told[name][0].split(", ") == list(buckets.values())
    for name in ("brightness", "aspect_ratio"):
        assert told[name][1].endswith("from " + ", ".join(f"{least:g}" for least in BUCKETS[name]))


def test_the_options() -> None:
    assert list(rows("option")) == list(MetricOptions.model_fields)


@pytest.mark.slow  # importing TFMA
def test_the_config_is_honoured() -> None:
    config = parse_eval_config(code("slicing_specs"))
    assert params_of(config).max_dets == (1, 10, 100)
    assert len(config.slicing_specs) == 3
    count = re.search(r"`(metrics \{ class_name: \"ExampleCount\".*)`", PAGE)
    assert count
    parse_eval_config(f"metrics_specs {{ {count[1]} }}")


@pytest.mark.slow
def test_the_example_of_the_stock_evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_fake_detector(tmp_path / "model" / "Format-Serving")
    ground_truth = generate_ground_truth(tmp_path / "images", [model], seed=0)
    write_records(tmp_path / "examples", ground_truth, tmp_path / "images")
    script = code("import json") + code("import tensorflow_model_analysis")
    for name, path in {"EXAMPLES": "examples", "MODEL": "model", "ROOT": "root"}.items():
        script, count = re.subn(rf"^{name} = .*$", f'{name} = "{tmp_path / path}"', script, flags=re.MULTILINE)
        assert count == 1
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    names: dict[str, Any] = {}
    exec(script, names)  # our own page
    printed = capsys.readouterr().out.strip().splitlines()
    assert 0.2 < float(printed[-3]) < 1
    assert printed[-1] == "True"
    metrics = names["result"].get_metrics_for_slice((("brightness", "medium"),))
    assert printed[-2] == str(metrics)
    assert metrics["example_count"]["doubleValue"] >= 1
    assert not math.isnan(metrics["AP"]["doubleValue"])
    assert [path.name for path in (tmp_path / "root").glob("Evaluator/blessing/*/*")] == ["BLESSED"]


def code(start: str) -> str:
    """The block of code that starts so."""
    block = re.search(rf"^```\w*\n({re.escape(start)}.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert block
    return block[1]
