"""COCO files as exports leave them, and folders in no known format."""

import json
from pathlib import Path
from typing import Any

import pytest

from detection.datasets.annotations.annotation_file import index_annotations, scan_categories
from detection.datasets.layouts import find_splits
from detection.datasets.readers.converted import as_coco
from schemas.errors import DataError


def _tree(**changes: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
        "annotations": [{"id": 5, "image_id": 2, "category_id": 1, "bbox": [1, 2, 3, 4]}],
        "categories": [{"id": 1, "name": "nut"}, {"id": 2, "name": "bolt"}],
    }
    return tree | changes


def _write(root: Path, name: str, tree: dict[str, Any], *images: str) -> None:
    for path in (root / name, *(root / image for image in images)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (root / name).write_text(json.dumps(tree))


def _entries(root: Path, split: str = "train") -> tuple[list[tuple[dict[str, Any], list[dict[str, Any]]]], list[str]]:
    files, _ = as_coco(find_splits(root)[split])
    index = index_annotations(files.annotations)
    assert not index.issues
    for image in index.images:
        assert isinstance(image, int)
    title, *notes = files.notes
    assert title.startswith("COCO (")
    return list(index.entries()), notes


def test_texts_become_numbers_and_other_texts_stay(tmp_path: Path) -> None:
    annotations = [
        {"id": "5", "image_id": "2", "category_id": "1", "bbox": ["1.0", 2, "3.5", "4e0"], "area": "12.5", "note": "7"}
    ]
    images = [{"id": "1", "file_name": "1.jpg"}, {"id": "2", "file_name": "2.jpg", "width": "96", "height": "80"}]
    _write(tmp_path, "train.json", _tree(images=images, annotations=annotations), "1.jpg", "2.jpg")
    [_, (image, [annotation])], notes = _entries(tmp_path)
    assert image == {"id": 2, "file_name": "2.jpg", "width": 96, "height": 80}
    assert annotation == {
        "id": 5, "image_id": 2, "category_id": 1, "bbox": [1, 2, 3.5, 4], "area": 12.5, "note": "7"
    }  # fmt: skip
    assert notes == ["train.json: 11 numbers are texts: read as numbers"]


def test_text_that_is_no_number_stays_an_issue(tmp_path: Path) -> None:
    tree = _tree()
    tree["annotations"][0]["bbox"] = ["1", "2", "wide", "4"]
    _write(tmp_path, "train.json", tree, "1.jpg", "2.jpg")
    files, _ = as_coco(find_splits(tmp_path)["train"])
    [issue] = index_annotations(files.annotations, shown=str(tmp_path / "train.json")).issues
    assert (issue.kind, issue.where) == ("entry", str(tmp_path / "train.json"))


def test_ids_that_are_names_are_numbered(tmp_path: Path) -> None:
    tree = _tree(
        images=[{"id": "b.jpg", "file_name": "b.jpg"}, {"id": "001", "file_name": "a.jpg"}],
        categories=[{"id": "nut", "name": "nut"}],
        annotations=[{"id": 1, "image_id": "001", "category_id": "nut", "bbox": [1, 2, 3, 4]}],
    )
    _write(tmp_path, "train.json", tree, "a.jpg", "b.jpg")
    entries, notes = _entries(tmp_path)
    assert [(image["id"], image["file_name"], len(found)) for image, found in entries] == [
        (1, "b.jpg", 0),
        (2, "a.jpg", 1),
    ]
    assert len(notes) == 2


def test_images_are_found_by_their_only_name(tmp_path: Path) -> None:
    names = ["..\\..\\label-studio\\media\\upload\\1\\1.jpg", "/data/upload/1/2.jpg", "4.jpg"]
    images = [{"id": number, "file_name": name} for number, name in enumerate(names, start=1)]
    files = ("photos/a/1.jpg", "photos/b/2.jpg", "photos/a/4.jpg", "photos/b/4.jpg")
    _write(tmp_path, "result.json", _tree(images=images), *files)
    entries, [found, ambiguous] = _entries(tmp_path)
    assert [image["file_name"] for image, _ in entries] == ["photos/a/1.jpg", "photos/b/2.jpg", "4.jpg"]
    assert found == "2 images were found by their names in other folders"
    assert ambiguous == "1 missing images have a name that several have: 4.jpg (photos/a/4.jpg, photos/b/4.jpg)"


def test_names_of_this_machine_are_no_way_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    names = [str(tmp_path / "data/photos/1.jpg"), "../elsewhere/2.jpg", str(tmp_path / "elsewhere/3.jpg")]
    for name in names[1:]:
        (tmp_path / "data" / name).resolve().touch()
    images = [{"id": number, "file_name": name} for number, name in enumerate(names, start=1)]
    _write(tmp_path / "data", "result.json", _tree(images=images), "photos/1.jpg", "photos/2.jpg")
    entries, _ = _entries(tmp_path / "data")
    assert [image["file_name"] for image, _ in entries] == ["photos/1.jpg", "photos/2.jpg", names[2]]


def test_files_and_folders_named_for_splits(tmp_path: Path) -> None:
    _write(tmp_path, "train.json", _tree(), "train/1.jpg", "train/2.jpg")
    _write(tmp_path, "val.json", _tree(), "val/1.jpg", "val/2.jpg")
    images = {name: files.images for name, files in find_splits(tmp_path).items()}
    assert images == {"train": str(tmp_path / "train"), "eval": str(tmp_path / "val")}


def test_a_clean_file_is_read_where_it_is(tmp_path: Path) -> None:
    _write(tmp_path, "instances_train.json", _tree(), "1.jpg", "2.jpg")
    files, faults = as_coco(find_splits(tmp_path)["train"])
    assert (files.annotations, files.images, faults) == (str(tmp_path / "instances_train.json"), str(tmp_path), [])


@pytest.mark.parametrize(
    ("categories", "roots"),
    [
        ([(0, "parts", "none"), (1, "nut", "parts"), (2, "bolt", "parts")], [0]),
        ([(0, "nut", "none"), (1, "nut", "nut")], [0]),
        ([(5, "parts", "none"), (1, "nut", "parts")], []),  # 5 has an annotation
        ([(0, "parts", "none"), (1, "nut", "parts"), (2, "bolt", "none")], []),
        ([(0, "none", "none"), (1, "nut", "none")], []),
        ([(0, "nut", "none")], []),
    ],
)
def test_the_root_of_an_export_is_no_class(
    tmp_path: Path, categories: list[tuple[int, str, str]], roots: list[int]
) -> None:
    entries = [{"id": number, "name": name, "supercategory": above} for number, name, above in categories]
    used = [{"id": 9, "image_id": 1, "category_id": number, "bbox": [1, 2, 3, 4]} for number in (1, 5)]
    known = {number for number, _, _ in categories}
    used = [one for one in used if one["category_id"] in known]
    _write(tmp_path, "a.json", _tree(categories=entries, annotations=used[-1:]))
    index = index_annotations(tmp_path / "a.json")
    assert [root["id"] for root in index.roots] == roots
    assert [one["id"] for one in index.categories] == [number for number, _, _ in categories if number not in roots]
    assert scan_categories(tmp_path / "a.json") == index.categories


UNKNOWN = {
    "labelme": ({"a/1.json": '{"version": "5", "shapes": [], "imagePath": "1.jpg"}', "a/1.jpg": ""}, "labelme's JSON"),
    "via": ({"via.json": '{"_via_settings": {}}', "1.jpg": ""}, "the project of VIA"),
    "cvat": ({"annotations.xml": "<annotations><version>1.1</version></annotations>", "1.jpg": ""}, "CVAT's XML"),
    "hub": ({"data/train-00000.parquet": "PAR1"}, "a data set of the Hugging Face hub"),
    "csv": ({"labels.csv": "image,x,y\n", "1.jpg": ""}, "a CSV with other columns"),
    "fiftyone": ({"samples.json": '{"samples": [{"_id": {"$oid": "6"}}]}', "1.jpg": ""}, "FiftyOne's data set"),
    "label studio": ({"a.csv": 'image,label\n1.jpg,"[{""rectanglelabels"": []}]"', "1.jpg": ""}, "Label Studio's own"),
    "kitti": ({"1.jpg": "", "labels/1.txt": "cat 0 0 0 63 38 81 68 0 0 0 0 0 0 0"}, "KITTI's texts"),
    "labels": ({"labels/1.txt": "0 0.5 0.5 0.1 0.1"}, "There are no images beside the labels. Copy them there"),
    "images": ({"1.jpg": "", "2.jpg": ""}, "These are images without labels: 1.jpg, 2.jpg"),
    "nothing": ({}, "There are no images"),
    "texts": ({"1.jpg": "", "other.txt": "0 0.5 0.5 0.1 0.1"}, "There are texts, but none has the name of an image"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_folder_is_refused_with_what_it_looks_like(tmp_path: Path, name: str) -> None:
    files, likeness = UNKNOWN[name]
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    with pytest.raises(DataError) as caught:
        find_splits(tmp_path)
    lines = str(caught.value).splitlines()
    assert likeness in lines[1]
    assert len(lines) <= 6
    assert max(map(len, lines[1:])) <= 120


def test_folders_of_other_systems_are_nothing(tmp_path: Path) -> None:
    _write(tmp_path, "train/_annotations.coco.json", _tree(), "train/1.jpg", "train/2.jpg", "__MACOSX/train/._1.jpg")
    (tmp_path / "train/._annotations.coco.json").write_bytes(bytes(4096))
    (tmp_path / "__MACOSX/train/._annotations.coco.json").write_bytes(bytes(4096))
    assert set(find_splits(tmp_path)) == {"train", "eval"}


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, "train/first.json", _tree(), "train/1.jpg")
    _write(tmp_path, "train/second.json", _tree())
    with pytest.raises(DataError, match=r"train/first\.json and train/second\.json are COCO files of the split train"):
        find_splits(tmp_path)
