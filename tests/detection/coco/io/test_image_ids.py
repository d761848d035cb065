"""Detections that name their file: the name counts where the number contradicts it."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from detection.coco import evaluate
from schemas.errors import DataError

IMAGES = [{"id": number + 1, "file_name": f"{number:05}.png", "width": 90, "height": 90} for number in range(3)]
BOXES: list[dict[str, Any]] = [
    {"id": number, "image_id": number, "category_id": 1, "bbox": [9 * number, 9, 20, 20], "area": 400, "iscrowd": 0}
    for number in (1, 2, 3)
]
GROUND_TRUTH = {"images": IMAGES, "annotations": BOXES, "categories": [{"id": 1, "name": "egg"}]}


def _results(path: Path, number: Any, **more: Any) -> Path:
    """Writes the ground truth's boxes as detections, with the image ids that `number` makes of right ones."""
    entries = [
        {
            "image_id": number(box["image_id"]),
            "file_name": f"images/{box['image_id'] - 1:05}.png",
            "category_id": 1,
            "bbox": box["bbox"],
            "score": 0.9,
        }
        | more
        for box in BOXES
    ]
    path.write_text(json.dumps(entries))
    return path


@pytest.mark.parametrize("number", [lambda n: n, lambda n: n - 1, lambda n: f"frame_{n}", lambda n: 3 - n])
def test_the_file_name_counts(tmp_path: Path, number: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cocoflow.evaluate"):
        metrics = evaluate(GROUND_TRUTH, _results(tmp_path / "r.json", number))
    assert metrics.by_name["AP"] == 1.0
    assert ("the file names count" in caplog.text) == (number(2) != 2)


def test_names_that_the_ground_truth_does_not_have_change_nothing(tmp_path: Path) -> None:
    assert evaluate(GROUND_TRUTH, _results(tmp_path / "r.json", lambda n: n, file_name="x.png")).by_name["AP"] == 1.0


def test_some_names_that_contradict_are_refused(tmp_path: Path) -> None:
    path = _results(tmp_path / "r.json", lambda n: n - 1)
    entries = json.loads(path.read_text())
    del entries[-1]["file_name"]
    path.write_text(json.dumps(entries))
    with pytest.raises(DataError, match=r"2 detections have a file_name of another image than their image_id"):
        evaluate(GROUND_TRUTH, path)
