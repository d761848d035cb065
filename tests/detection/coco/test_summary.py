"""The metrics file and the table."""

import io
import json
from pathlib import Path

import numpy as np
from rich.console import Console

from detection.coco import evaluate
from detection.coco.summary import metrics_to_json, summary_table
from detection.storage.atomic import write_json
from tests.detection.coco.generated_cases import generate


def test_file_has_the_contracts_keys(tmp_path: Path) -> None:
    metrics = evaluate(*generate(0))
    write_json(tmp_path / "deep" / "metrics.json", metrics_to_json(metrics))
    content = json.loads((tmp_path / "deep" / "metrics.json").read_text())
    assert content["iou_type"] == "bbox"
    np.testing.assert_array_equal(content["stats"], metrics.stats)
    assert content["metrics"]["AR10"] == metrics.stats[7]
    assert {"id", "name", "AP", "AP50"} == set(content["per_category"][0])


def test_table_shows_every_metric() -> None:
    metrics = evaluate({**generate(0)[0], "annotations": []}, [])
    text = io.StringIO()
    Console(file=text, width=100).print(summary_table(metrics))
    lines = text.getvalue().splitlines()
    assert sum("undefined" in line for line in lines) == 12
    assert any(line.split("│")[1:5] == [" AR10   ", " 0.50:0.95 ", " all    ", "       10 "] for line in lines)
