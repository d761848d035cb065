"""The whole conversion without TFX."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from components.beam import progress
from components.coco_example_gen.conversion import convert
from detection.datasets.layouts import find_splits
from detection.datasets.splits import Division
from detection.datasets.statistics import SplitSummary
from schemas.config.config import DataConfig
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError
from tests.components.coco_example_gen.data_set import written_entries
from tests.components.coco_example_gen.remote_data import DROP

CATEGORIES = [{"id": 4, "name": "cat"}, {"id": 2, "name": "dog"}]


def _data(root: Path, images: dict[str, dict[int, int]]) -> Path:
    """Splits of images: id -> seed of its pixels; each has one box."""
    for split, seeds in images.items():
        entries = [{"id": n, "file_name": f"{split}{n}.png", "width": 20, "height": 10} for n in seeds]
        boxes = [{"id": n, "image_id": n, "category_id": 4, "bbox": [n, 0, 3, 4], "area": 12.5} for n in seeds]
        for number, seed in seeds.items():
            pixels = np.random.default_rng(seed).integers(0, 256, (10, 20, 3), np.uint8)
            (root / "images").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / "images" / f"{split}{number}.png", compress_level=number % 10)
        _write(root, split, {"images": entries, "annotations": boxes, "categories": CATEGORIES})
    return root


def _write(root: Path, split: str, tree: dict[str, Any]) -> None:
    (root / f"instances_{split}.json").write_text(json.dumps(tree))


def _convert(root: Path, out: Path, **policies: str) -> dict[str, list[int]]:
    """Ids of the images of each split."""
    out.mkdir()
    convert(find_splits(root), out, DataConfig(on_fault=IssuePolicies.model_validate(policies)))
    return {
        split: sorted(image["id"] for image, _ in written_entries(out, split))
        for split in (folder.name.removeprefix("Split-") for folder in out.glob("Split-*"))
    }


def _quarantine(out: Path) -> list[tuple[str, int | None]]:
    lines = (out / "quarantine.jsonl").read_text().splitlines()
    return [(issue["kind"], issue["image_id"]) for issue in map(json.loads, lines)]


def test_the_data_set_is_described_by_all_its_files(tmp_path: Path) -> None:
    root = _data(tmp_path / "data", {"train": {1: 1}, "val": {2: 2}})
    tree = json.loads((root / "instances_val.json").read_text())
    more = {"id": 7, "name": "person", "keypoints": ["nose"], "skeleton": []}
    _write(root, "val", tree | {"categories": [*CATEGORIES, more], "licenses": [{"id": 1}], "info": {"year": 1}})
    _convert(root, tmp_path / "out")
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    statistics = {name: SplitSummary.from_dict(split.pop("statistics")) for name, split in described["splits"].items()}
    assert {name: summary.instances.total() for name, summary in statistics.items()} == {"train": 1, "eval": 1}
    assert described == {
        "info": {},
        "licenses": [{"id": 1}],
        "categories": [*CATEGORIES, more],
        "splits": {"train": {"images": 1, "annotations": 1}, "eval": {"images": 1, "annotations": 1}},
    }


def test_images_that_are_there_twice_are_told_or_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = _data(tmp_path / "data", {"train": {1: 1, 2: 2, 3: 2, 4: 9}, "val": {5: 9, 6: 6}, "test": {7: 6}})
    with caplog.at_level("INFO", "cocoflow.example_gen"):
        assert _convert(root, tmp_path / "a") == {"train": [1, 2, 3, 4], "eval": [5, 6], "test": [7]}
    assert "kept as they are: 2 image_leak, 1 category_empty, 1 image_duplicate" in caplog.messages
    assert _quarantine(tmp_path / "a") == []
    assert _convert(root, tmp_path / "b", image_duplicate="drop") == {"train": [1, 2, 4], "eval": [5, 6], "test": [7]}
    assert _quarantine(tmp_path / "b") == [("image_duplicate", 3)]
    counts = json.loads((tmp_path / "b/dataset.json").read_text())["splits"]
    assert {name: count["images"] for name, count in counts.items()} == {"train": 3, "eval": 2, "test": 1}
    with pytest.raises(DataError, match=r"train4\.png \(image 4\): the same pixels as eval: val5\.png \(image 5\)"):
        _convert(root, tmp_path / "c", image_leak="fail")
    root = _data(tmp_path / "data", {"test": {7: 7, 8: 6}})
    assert _convert(root, tmp_path / "d", image_leak="drop") == {"train": [1, 2, 3], "eval": [5, 6], "test": [7]}
    assert sorted(_quarantine(tmp_path / "d")) == [("image_leak", 4), ("image_leak", 8)]


def test_issues_of_the_structure_stop_before_any_image_is_read(tmp_path: Path) -> None:
    root = _data(tmp_path / "data", {"train": {1: 1, 2: 2}, "val": {3: 3}})
    tree = json.loads((root / "instances_train.json").read_text())
    tree["annotations"].append({"id": 9, "image_id": 1, "category_id": 5, "bbox": [1, 1, 2, 2]})
    tree["annotations"].append({"id": 1, "image_id": 1, "category_id": 4, "bbox": [1, 1, 2, 2]})
    _write(root, "train", tree)
    (root / "images/train1.png").unlink()
    with pytest.raises(DataError) as caught:
        _convert(root, tmp_path / "a", duplicate_id="fail")
    lines = str(caught.value).splitlines()
    more = f"{root}/instances_train.json: 1 of 3 annotations, more than 2%"
    assert lines[0] == f"2 issues in the data set ({more}):"
    assert lines[1].startswith(f"  {root}/instances_train.json (image 1, annotation 9): unknown category_id: 5")
    assert lines[2].startswith(f"  {root}/instances_train.json (image 1, annotation 1): duplicate id.")
    assert "data.on_fault.entry=drop" in lines[3]
    assert _convert(root, tmp_path / "b", entry="drop", duplicate_id="drop", image_missing="drop")["train"] == [2]
    assert sorted(_quarantine(tmp_path / "b")) == [("duplicate_id", 1), ("entry", 1), ("image_missing", 1)]


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path: Path) -> None:
    root = _data(tmp_path / "data", {"train": {1: 1}, "val": {2: 2}})
    (root / "images/val2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="1 issue in the data set"):
        _convert(root, tmp_path / "a")
    assert list((tmp_path / "a").iterdir()) == []
    with pytest.raises(DataError, match="split eval: no valid image, 1 issues"):
        _convert(root, tmp_path / "b", image_broken="drop")
    assert list((tmp_path / "b").iterdir()) == []


def test_a_category_without_annotations_is_told_or_refused(tmp_path: Path) -> None:
    root = _data(tmp_path / "data", {"train": {1: 1}, "val": {2: 2}})
    _convert(root, tmp_path / "a")
    with pytest.raises(DataError, match=r"instances_train\.json: category 2 \(dog\) has no annotation"):
        _convert(root, tmp_path / "b", category_empty="fail")


def test_the_report_shows_what_has_issues(tmp_path: Path) -> None:
    root = _data(tmp_path / "data", {"train": {1: 1, 2: 2}, "val": {3: 3}})
    tree = json.loads((root / "instances_train.json").read_text())
    tree["annotations"][1]["bbox"] = [15, 5, 10, 10]
    _write(root, "train", tree)
    _convert(root, tmp_path / "out", box_outside="drop")
    page = (tmp_path / "out/data_report.html").read_text()
    assert "train: train2.png" in page
    assert "is outside the 20x10 image" in page
    assert page.count("data:image/png") == 1


def test_every_image_of_files_and_records_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipeline in memory counts in this process."""
    caplog.set_level(logging.INFO, "cocoflow.beam")
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.01)
    root = _data(tmp_path / "data", {"train": {1: 1, 2: 2, 3: 3, 5: 5}, "val": {4: 4}})
    (root / "images/train2.png").write_bytes(b"broken")
    for name, source, every in (("files", "data", 1), ("records", "files", 1), ("some records", "files", 2)):
        splits = find_splits(tmp_path / source, Division(sample_1_of_n=every))
        progress._COUNTS.clear()
        caplog.clear()
        convert(splits, tmp_path / name, DataConfig(on_fault=DROP))
        written = json.loads((tmp_path / name / "dataset.json").read_text())["splits"].values()
        images = sum(split["images"] for split in written) + len(_quarantine(tmp_path / name))
        assert [count.images for count in progress._COUNTS.values()] == [images]
        ends = [record.getMessage() for record in caplog.records if " of " in record.getMessage()][-1:]
        assert ends == ([f"{images} of {images} images"] if every == 1 else [])  # of some, the number is not known


def test_records_of_two_splits_are_counted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = _data(tmp_path / "data", {"train": {number: number for number in range(1, 20)}})
    convert(find_splits(root, Division(ratios={"train": 1.0})), tmp_path / "whole", DataConfig())
    [shard] = (tmp_path / "whole/Split-train").iterdir()
    (tmp_path / "records").mkdir()
    shard.rename(tmp_path / "records/all.record.gz")
    caplog.set_level(logging.INFO, "cocoflow.example_gen")
    read = _convert(tmp_path / "records", tmp_path / "out")
    assert sorted([*read["train"], *read["eval"]]) == list(range(1, 20))
    assert any(message.split() == ["records:", "19", "with", "19", "objects"] for message in caplog.messages)
