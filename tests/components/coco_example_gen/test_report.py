"""The categories of the annotations that issues concern, and the samples of ground truth."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from components.coco_example_gen import examination, report
from components.coco_example_gen.examination import examine
from components.coco_example_gen.report import concerned_annotations, write_data_report
from detection.datasets.splits import SplitFiles
from schemas.config.config import DataConfig
from tests.components.coco_example_gen.data_set import write_data_set
from tests.html_page import HtmlPage


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
    examined = examine({"train": SplitFiles(str(path), str(root / "images"))}, DataConfig(), work=work, records=None)
    assert {issue.kind for issue in examined.all_issues} == {
        *("box_outside", "image_missing", "box_empty", "entry", "category_empty")
    }
    assert concerned_annotations(examined) == {4: 2, 2: 2}
    monkeypatch.setattr(report, "MOST_IMAGES", 1)
    assert sum(concerned_annotations(examined).values()) < 4


def test_samples_are_valid_images_whatever_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "data"
    write_data_set(root, broken=True)  # the file of image 2 is absent
    pages = []
    for number, images_per_shard in enumerate((256, 2)):
        monkeypatch.setattr(examination, "IMAGES_PER_SHARD", images_per_shard)
        work = tmp_path / f"work{number}"
        work.mkdir()
        splits = {"train": SplitFiles(str(root / "annotations/instances_train.json"), str(root / "images"))}
        found = examine(splits, DataConfig(), work=work, records=None)
        write_data_report(found, tmp_path / f"{number}.html")
        pages.append(HtmlPage((tmp_path / f"{number}.html").read_text()))
    captions = [re.findall(r"train: \S+ \(image (\d+)\)", page.texts["samples"]) for page in pages]
    assert captions[0] == captions[1]
    assert sorted(captions[0]) == ["1", "3", "4", "5"]
