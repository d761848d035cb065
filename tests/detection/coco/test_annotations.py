import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from detection.coco.annotations import CocoAnnotations, is_crowd, merge_categories, read_annotations, scan_file_names
from schemas.errors import DataError


def _tree() -> dict[str, Any]:
    return {
        "images": [{"id": 7, "file_name": "b.jpg", "width": 4, "height": 3}, {"id": 0, "file_name": "a.jpg"}],
        "annotations": [
            {"id": 3, "image_id": 7, "category_id": 9, "bbox": [0, 0.5, 2, 1]},
            {"id": 1, "image_id": 7, "category_id": 0, "bbox": [1, 1, 1, 1]},
        ],
        "categories": [{"id": 9, "name": "cat"}, {"id": 0, "name": "dog"}],
    }


def _write(folder: Path, tree: Any, name: str = "instances.json") -> Path:
    path = folder / name
    path.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return path


def test_entries_keep_their_order_and_every_image_has_a_list(tmp_path: Path) -> None:
    path = _write(tmp_path, _tree())
    read = read_annotations(path)
    assert read.path == str(path)
    assert [image["id"] for image in read.images] == [7, 0]
    assert read.annotations == {7: _tree()["annotations"], 0: []}
    assert read.categories == _tree()["categories"]
    assert (read.info, read.licenses) == ({}, [])


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(_tree()).encode())
    assert len(read_annotations(path).images) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n "images": [}', "not JSON: Expecting value at line 2, column 13"),
        ("", "not JSON: Expecting value at line 1, column 1"),
        ("[1]", "expected an object with `images`, not a list"),
        ("{}", "it needs a list `images`; this one has keys none"),
        ('{"images": {}}', "it needs a list `images`; this one images is no list"),
        ('{"images": [], "type": 1}', "it needs a list `categories`; this one has keys images, type"),
        ('{"images": [], "categories": []}', "it needs a list `annotations`"),
        ('{"images": [3]}', r"images\[0\] has no integer `id`: 3"),
        ("[" * 100_000, "not a JSON text file"),
    ],
)
def test_what_is_no_coco_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        read_annotations(path)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.json"
    path.write_bytes(b"\x89PNG\r\n\xff\xfe")
    with pytest.raises(DataError, match="not a JSON text file"):
        read_annotations(path)


@pytest.mark.parametrize(
    ("key", "position", "change", "message"),
    [
        ("images", 1, {"id": "x"}, r'images\[1\] has no integer `id`: \{"id": "x"'),
        ("images", 1, {"id": True}, r"images\[1\] has no integer `id`"),
        ("images", 1, {"id": 7}, r"images\[1\]: id 7 is there twice"),
        ("images", 1, {"file_name": None}, "image 0: file_name is null. Write a text"),
        ("annotations", 1, {"id": 3}, r"annotations\[1\]: id 3 is there twice"),
        ("annotations", 1, {"image_id": 70}, "annotation 1: there is no image with id 70"),
        ("annotations", 1, {"image_id": "7"}, 'annotation 1: image_id is "7". Write an integer'),
        ("annotations", 0, {"category_id": 90}, r"annotation 3: category_id 90 does not exist; known ids: \[0, 9\]"),
        ("annotations", 0, {"bbox": [1, 2, 3]}, r"annotation 3: bbox is \[1, 2, 3\]. Write four numbers"),
        ("annotations", 0, {"bbox": [1, 2, 3, None]}, "annotation 3: bbox is .* four numbers: x, y, width, height"),
        ("annotations", 0, {"bbox": "1,2,3,4"}, "annotation 3: bbox is .* Write a list"),
        ("categories", 1, {"id": 9}, r"categories\[1\]: id 9 is there twice"),
        ("categories", 1, {"name": 5}, "category 0: name is 5. Write a text"),
    ],
)
def test_a_faulty_entry_is_named(tmp_path: Path, key: str, position: int, change: dict[str, Any], message: str) -> None:
    tree = _tree()
    tree[key][position].update(change)
    path = _write(tmp_path, tree)
    with pytest.raises(DataError, match=message) as caught:
        read_annotations(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("images", "id"),
        ("images", "file_name"),
        ("annotations", "id"),
        ("annotations", "image_id"),
        ("annotations", "category_id"),
        ("annotations", "bbox"),
        ("categories", "id"),
        ("categories", "name"),
    ],
)
def test_a_missing_field_is_named(tmp_path: Path, key: str, field: str) -> None:
    tree = _tree()
    del tree[key][1][field]
    with pytest.raises(DataError, match=rf"{field} is missing|no integer `{field}`"):
        read_annotations(_write(tmp_path, tree))


def test_a_missing_file_tells_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No such file or directory\. There is no JSON file in"):
        read_annotations(tmp_path / "x.json")
    with pytest.raises(DataError, match=r"The folder .*none does not exist either"):
        read_annotations(tmp_path / "none" / "x.json")
    _write(tmp_path, {}, "instances_train.json")
    with pytest.raises(DataError, match=f"JSON files in {re.escape(str(tmp_path))}: instances_train.json"):
        read_annotations(tmp_path / "x.json")


def test_keypoints_are_merged_by_annotation_id(tmp_path: Path) -> None:
    points = {
        "annotations": [{"id": 1, "keypoints": [1, 2, 2], "num_keypoints": 1, "bbox": [9, 9, 9, 9]}],
        "categories": [{"id": 0, "name": "dog", "keypoints": ["nose"], "skeleton": []}],
    }
    keypoints = _write(tmp_path, points, "person_keypoints.json")
    read = read_annotations(_write(tmp_path, _tree()), keypoints)
    expected = [_tree()["annotations"][0], _tree()["annotations"][1] | {"keypoints": [1, 2, 2], "num_keypoints": 1}]
    assert read.annotations[7] == expected
    assert read.categories[1] == {"id": 0, "name": "dog", "keypoints": ["nose"], "skeleton": []}


def test_keypoints_of_an_unknown_annotation_are_refused(tmp_path: Path) -> None:
    keypoints = _write(tmp_path, {"annotations": [{"id": 5}], "categories": []}, "person_keypoints.json")
    with pytest.raises(DataError, match=r"person_keypoints\.json: annotation 5 is not in .*instances\.json"):
        read_annotations(_write(tmp_path, _tree()), keypoints)


def test_categories_of_several_files_are_united() -> None:
    def file(path: str, categories: list[dict[str, Any]]) -> CocoAnnotations:
        return CocoAnnotations(path, [], {}, categories, {}, [])

    first = file("a.json", [{"id": 2, "name": "x"}, {"id": 1, "name": "y"}])
    second = file("b.json", [{"id": 1, "name": "y", "extra": 1}, {"id": 0, "name": "z"}])
    assert merge_categories([first, second]) == [*first.categories, {"id": 0, "name": "z"}]
    with pytest.raises(DataError, match=r"category 2 is 'x' in a\.json but 'q' in c\.json"):
        merge_categories([first, file("c.json", [{"id": 2, "name": "q"}])])


@pytest.mark.parametrize(
    ("annotation", "crowd"),
    [({}, False), ({"iscrowd": 1}, True), ({"iscrowd": 0, "is_crowd": 1}, False), ({"is_crowd": 1}, True)],
)
def test_is_crowd(annotation: dict[str, Any], crowd: bool) -> None:
    assert is_crowd(annotation) is crowd


def test_file_names_are_found_without_parsing(tmp_path: Path) -> None:
    names = ["a.jpg", 'ä "b"\\c.jpg', "d/e.png"]
    text = json.dumps({"images": [{"file_name": name} for name in names]})
    assert list(scan_file_names(_write(tmp_path, text))) == names
    assert list(scan_file_names(_write(tmp_path, json.dumps(json.loads(text), indent=1, ensure_ascii=False)))) == names
    assert list(scan_file_names(_write(tmp_path, text[:-3]))) == names
    assert list(scan_file_names(_write(tmp_path, ""))) == []
    assert list(scan_file_names(tmp_path / "absent.json")) == []


def test_a_file_name_that_is_no_json_text_ends_the_scan(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"file_name": "a.jpg"}, {"file_name": "\\q.jpg"}')
    assert list(scan_file_names(path)) == ["a.jpg"]


def test_real_oddities_are_read(shared_data: Path) -> None:
    dali = read_annotations(shared_data / "dali_masks/instances_train.json")
    assert dali.images[0]["id"] == 0
    assert dali.categories[0] == {"supercategory": "Apple", "id": 0, "name": "Apple"}
    assert (len(dali.images), sum(map(len, dali.annotations.values()))) == (49, 73)
    pixelwise = read_annotations(shared_data / "dali_masks/pixelwise_instances.json")
    entries = [annotation for group in pixelwise.annotations.values() for annotation in group]
    assert Counter(map(is_crowd, entries)) == {False: 12}
    assert sum("is_crowd" in entry for entry in entries) == 3


def test_real_keypoints_are_merged(shared_data: Path) -> None:
    folder = shared_data / "coco2017_ccby"
    read = read_annotations(folder / "instances_val.json", folder / "person_keypoints_val.json")
    entries = [annotation for group in read.annotations.values() for annotation in group]
    persons = json.loads((folder / "person_keypoints_val.json").read_text())["annotations"]
    assert len(entries) == 263
    merged = {entry["id"]: entry for entry in entries if "keypoints" in entry}
    assert {key: (entry["keypoints"], entry["num_keypoints"]) for key, entry in merged.items()} == {
        person["id"]: (person["keypoints"], person["num_keypoints"]) for person in persons
    }
    assert len(read.categories[0]["skeleton"]) == 19
