"""The metrics file and the table."""

import io

from rich.console import Console

from detection.coco import evaluate
from detection.coco.summary import summary_table
from tests.detection.coco.generated_cases import generate


def test_table_shows_every_metric() -> None:
    metrics = evaluate({**generate(0)[0], "annotations": []}, [])
    text = io.StringIO()
    Console(file=text, width=100).print(summary_table(metrics))
    lines = text.getvalue().splitlines()
    assert sum("undefined" in line for line in lines) == 12
    assert any(line.split("│")[1:5] == [" AR10   ", " 0.50:0.95 ", " all    ", "       10 "] for line in lines)
