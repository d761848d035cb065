"""The categories of the annotations that issues concern."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.coco_example_gen import report
from components.coco_example_gen.examination import examine
from components.coco_example_gen.report import concerned_annotations
from detection.datasets.layouts import SplitFiles
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from tests.components.coco_example_gen.data_set import write_data_set


def test_annotations_with_an_issue_and_those_of_images_with_one_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, work = tmp_path / "data", tmp_path / "work"
    write_data_set(root, broken=True)  # annotation 2 (cat) lies outside; the file of image 2 (cat, dog) is absent
    path = root / "annotations/instances_train.json"
    tree: dict[str, Any] = json.loads(path.read_text())
    tree["annotations"][7]["bbox"][2] = 0  # a dog of image 4
    tree["annotations"][5]["category_id"] = 77  # in no category
    path.write_text(json.dumps(tree))
    work.mkdir()
    examination = examine(
        {"train": SplitFiles(str(path), str(root / "images"))},
        policies=IssuePolicies(),
        max_pixels=MAX_PIXELS,
        work=work,
        records=None,
    )
    assert {issue.kind for issue in examination.all_issues} == {
        *("box_outside", "image_missing", "box_empty", "entry", "category_empty")
    }
    assert concerned_annotations(examination) == {4: 2, 2: 2}
    monkeypatch.setattr(report, "MOST_IMAGES", 1)
    assert sum(concerned_annotations(examination).values()) < 4
