"""Folders as people have them, rebuilt after public data sets; the right answers are in each folder's README."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.coco_example_gen.check_data import check_data, print_examination
from components.coco_example_gen.examination import Examination
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import DataError

TRAIN, EVAL = 27, 6  # objects of most folders
NOTES = {
    "03-numbers-as-text": ["COCO (", "18 numbers are texts", "4 numbers are texts"],
    "05-names-of-tutorials": ["COCO (", "12 images were found by their names", "4 images were found"],
    "07-deeper": ["COCO (", "found in project/exports/v3/, the one data set below"],
    "09-a-second-file": ["COCO (", "train/_annotations.coco.json is read; train/_train_anno.json beside it is not"],
    "11-ids-as-text": ["COCO (", "12 images are numbered in the order of the file", "4 images are numbered"],
    "20-yolo-of-roboflow": ["YOLO (data.yaml)", "names test: ../test/images, which is not there"],
    "21-yolo-of-ultralytics": ["YOLO (parts.yaml)", "1 of 13 images of train have no text with labels"],
    "22-yolo-polygons": ["YOLO (data.yaml)", "21 labels are boxes and 12 polygons: a mixture"],
    "26-yolo-of-another-machine": ["YOLO (data.yaml)"],
    "30-voc": ["PASCAL VOC", "pixels counted from 1", "6 objects are marked as difficult"],
    "31-voc-of-roboflow": ["PASCAL VOC", "edges of the boxes (some begin at 0)", "6 objects are marked as difficult"],
    "33-voc-with-less-xml": [
        "PASCAL VOC",
        "3 images of the lists have no XML, and are left out: 800, 801, 802",
        "edges of the boxes (some begin at 0)",
        "6 objects are marked as difficult",
    ],
    "40-csv-of-the-api": ["CSV of the Object Detection API", "test serves as eval"],
}


def _config(folder: Path, *assignments: str) -> Config:
    return load_config(folder.parent / "small.yaml", [f"data.root={json.dumps(str(folder / 'data'))}", *assignments])


def _examine(folder: Path, *assignments: str) -> tuple[Examination, int]:
    config = _config(folder, *assignments)
    examination = check_data(config, None)
    return examination, print_examination(examination, config)


def _annotations(examination: Examination) -> dict[str, int]:
    return {name: result.annotations for name, result in examination.results.items()}


def _names(examination: Examination) -> list[str]:
    return sorted(category["name"] for category in examination.dataset["categories"])


@pytest.mark.parametrize(
    "name", [*("01-root-category", "04-pictures-a-folder-below", "06-other-names-of-the-file"), *NOTES]
)
def test_it_is_read_without_an_issue(shared_data: Path, name: str) -> None:
    examination, code = _examine(shared_data / "folders" / name)
    assert (_annotations(examination), _names(examination)) == ({"train": TRAIN, "eval": EVAL}, ["bolt", "nut"])
    assert (code, examination.all_issues) == (0, [])
    notes = list(examination.notes)
    for note, part in zip(notes, NOTES.get(name, ["COCO ("]), strict=True):
        assert part in note


def test_the_root_of_the_same_name_is_no_class(shared_data: Path) -> None:
    examination, code = _examine(shared_data / "folders" / "02-root-of-the-same-name")
    assert (_annotations(examination), _names(examination), code) == ({"train": TRAIN, "eval": EVAL}, ["bolt"], 0)
    assert [root["id"] for root in examination.dataset["root_categories"]] == [0]


def test_two_data_sets_are_named(shared_data: Path) -> None:
    with pytest.raises(DataError, match=r"2 data sets are below this folder\. Choose one") as caught:
        _examine(shared_data / "folders" / "08-two-deeper")
    lines = str(caught.value).splitlines()
    assert [line.endswith(f"data/exports/{version}") for line, version in zip(lines[1:], ("v2", "v3"), strict=True)]
    assert all(line.strip().startswith("--data ") for line in lines[1:])


@pytest.mark.parametrize(
    ("name", "kind", "left_out"),
    [("10-two-pictures-missing", "image_missing", 2), ("12-one-box-on-the-border", "box_outside", 1)],
)
def test_little_is_left_out_and_told(shared_data: Path, name: str, kind: str, left_out: int) -> None:
    examination, code = _examine(shared_data / "folders" / name)
    assert code == 3
    assert [(issue.kind, issue.policy) for issue in examination.all_issues] == [(kind, "drop")] * left_out


def test_five_missing_pictures_of_120_stop(shared_data: Path, tmp_path: Path) -> None:
    root = tmp_path / "10"
    source = shared_data / "folders" / "10-two-pictures-missing"
    (root / "data" / "train").mkdir(parents=True)
    for path in sorted((source / "data").rglob("*")):
        if path.is_file():
            target = root / path.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    (tmp_path / "small.yaml").write_bytes((source.parent / "small.yaml").read_bytes())
    for picture in sorted((root / "data/train").glob("*.jpg"))[:3]:
        picture.unlink()
    examination, code = _examine(root)
    assert code == 1
    assert [issue.policy for issue in examination.all_issues] == ["fail"] * 5
    assert list(examination.reasons) == ["train: 5 of 120 images, more than 2%"]


def test_copies_stay_on_one_side_of_our_split(shared_data: Path) -> None:
    examination, code = _examine(shared_data / "folders" / "13-copies-in-one-split")
    assert code == 0
    assert examination.notes[-1] == "90 images are 30 pictures, up to 3 copies of one"
    names = {
        split: {image.file_name.partition("_jpg.rf.")[0] for image in result.seen}
        for split, result in examination.results.items()
    }
    assert len(names["train"] | names["eval"]) == 30
    assert names["eval"]
    assert not names["train"] & names["eval"]


def test_copies_on_both_sides_are_told_and_move_by_a_key(shared_data: Path) -> None:
    folder = shared_data / "folders" / "14-copies-on-both-sides"
    examination, code = _examine(folder)
    assert code == 3
    assert {issue.kind for issue in examination.all_issues} == {"image_leak"}
    assert "5 of 10 images of eval have copies in train" in examination.notes[-1]
    examination, code = _examine(folder, "data.on_fault.image_leak=move")
    assert code == 0
    images = {name: result.images for name, result in examination.results.items()}
    assert images == {"train": 80, "eval": 5}
    ids = [image.image_id for image in examination.results["train"].seen]
    assert len(set(ids)) == 80


def test_a_class_that_the_file_lacks_is_told_with_its_line(shared_data: Path) -> None:
    examination, code = _examine(shared_data / "folders" / "24-yolo-wrong-class")
    assert (code, _annotations(examination)) == (1, {"train": TRAIN, "eval": EVAL})
    [issue] = examination.all_issues
    assert issue.where.endswith("train/labels/001.txt:3")
    assert issue.message.startswith("class 7 of 2.")


@pytest.mark.parametrize("name", ["23-yolo-of-labelimg", "25-yolo-one-folder-twice", "32-voc-of-labelimg"])
def test_a_set_without_a_split_is_divided(shared_data: Path, name: str) -> None:
    examination, code = _examine(shared_data / "folders" / name)
    assert code == 0
    assert sum(_annotations(examination).values()) == TRAIN
    assert all(_annotations(examination).values())
    images: list[Any] = [image.file_name for result in examination.results.values() for image in result.seen]
    assert len(images) == len(set(images)) == 12
