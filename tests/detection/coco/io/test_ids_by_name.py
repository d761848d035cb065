"""Detections whose ids are another data set's: the names of files and categories beside them count."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.coco import evaluate
from detection.coco.io.ids_by_name import with_category_ids
from schemas.errors import DataError

NAMES = {1: "egg", 2: "stop sign", 3: "cup"}
OTHER = {1: "Stop  Sign", 2: "egg", 7: "cup", 8: "kite"}  # ids of another data set
GROUND_TRUTH: dict[str, list[dict[str, Any]]] = {
    "images": [{"id": 1, "file_name": "1.png", "width": 90, "height": 90}],
    "annotations": [
        {"id": n, "image_id": 1, "category_id": n, "bbox": [20 * n, 9, 15, 15], "area": 225, "iscrowd": 0}
        for n in NAMES
    ],
    "categories": [{"id": number, "name": name} for number, name in NAMES.items()],
}


def _detections(ids: dict[str, int], **more: Any) -> list[dict[str, Any]]:
    return [
        {"image_id": 1, "category_id": ids[NAMES[one["category_id"]]], "bbox": one["bbox"], "score": 0.9} | more
        for one in GROUND_TRUTH["annotations"]
    ]


OTHER_IDS = {"stop sign": 1, "egg": 2, "cup": 7}
KITE = {"image_id": 1, "category_id": 8, "bbox": [1, 1, 5, 5], "score": 0.95}


def _written(folder: Path, entries: Any, *, categories: dict[int, str]) -> Path:
    """Writes detections and their list as `predict` does."""
    (folder / "dt.json").write_text(json.dumps(entries))
    told = {"images": GROUND_TRUTH["images"], "categories": [{"id": n, "name": name} for n, name in categories.items()]}
    (folder / "dt_images.json").write_text(json.dumps(told))
    return folder / "dt.json"


def test_of_predict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = _written(tmp_path, _detections(OTHER_IDS), categories=OTHER)
    with caplog.at_level(logging.WARNING, "cocoflow.evaluate"):
        assert evaluate(GROUND_TRUTH, path).by_name["AP"] == pytest.approx(1.0)
    assert "the names count (Stop  Sign has 1 and 2, egg has 2 and 1, cup has 7 and 3)" in caplog.text
    with pytest.raises(DataError, match="unknown category_id"):
        evaluate(GROUND_TRUTH, _written(tmp_path, [*_detections(OTHER_IDS), KITE], categories=OTHER))


def test_of_sahi(tmp_path: Path) -> None:
    named = [one | {"category_name": OTHER[one["category_id"]]} for one in _detections(OTHER_IDS)]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(named))
    assert evaluate(GROUND_TRUTH, path).by_name["AP"] == pytest.approx(1.0)
    path.write_text(json.dumps([*named, named[0] | {"category_name": "cup"}]))
    with pytest.raises(DataError, match="category_id 2 has the names egg and cup"):
        evaluate(GROUND_TRUTH, path)


@pytest.mark.parametrize("names", [NAMES, NAMES | {8: "kite"}, {n: f"class {n}" for n in NAMES}, {1: "EGG"}, {}])
def test_names_that_contradict_nothing_change_nothing(names: dict[int, str]) -> None:
    rows = np.array([[1, 2, 3, 4, 5, 0.9, number] for number in (1, 2, 3, 8)])
    found = with_category_ids(rows, "dt.json", GROUND_TRUTH["categories"], names=names, where="gt.json")
    np.testing.assert_array_equal(found, rows)


def test_a_name_without_an_id_there_is_left_out_where_its_id_means_another() -> None:
    rows = np.array([[1, 2, 3, 4, 5, 0.9, number] for number in (1, 2, 3)])
    names = {1: "egg", 2: "kite", 3: "cup"}
    found = with_category_ids(rows, "dt.json", GROUND_TRUTH["categories"], names=names, where="gt.json")
    np.testing.assert_array_equal(found, rows[[0, 2]])


IMAGES = [{"id": number + 1, "file_name": f"{number:05}.png", "width": 90, "height": 90} for number in range(3)]
BOXES: list[dict[str, Any]] = [
    {"id": number, "image_id": number, "category_id": 1, "bbox": [9 * number, 9, 20, 20], "area": 400, "iscrowd": 0}
    for number in (1, 2, 3)
]
FRAMES = {"images": IMAGES, "annotations": BOXES, "categories": [{"id": 1, "name": "egg"}]}


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
        metrics = evaluate(FRAMES, _results(tmp_path / "r.json", number))
    assert metrics.by_name["AP"] == 1.0
    assert ("the file names count" in caplog.text) == (number(2) != 2)


def test_names_that_the_ground_truth_does_not_have_change_nothing(tmp_path: Path) -> None:
    assert evaluate(FRAMES, _results(tmp_path / "r.json", lambda n: n, file_name="x.png")).by_name["AP"] == 1.0


def test_some_names_that_contradict_are_refused(tmp_path: Path) -> None:
    path = _results(tmp_path / "r.json", lambda n: n - 1)
    entries = json.loads(path.read_text())
    del entries[-1]["file_name"]
    path.write_text(json.dumps(entries))
    with pytest.raises(DataError, match=r"2 detections have a file_name of another image than their image_id"):
        evaluate(FRAMES, path)
