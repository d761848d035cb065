"""Detections whose category ids are another data set's: the names beside them count."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.coco import evaluate
from detection.coco.io.category_ids import with_category_ids
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
