"""Label maps of the Object Detection API, and COCO files in their place."""

import json
from pathlib import Path

import pytest

from detection.datasets.annotations import entries
from detection.datasets.importers import label_map
from detection.datasets.importers.label_map import LabelMap, read_label_map
from schemas.errors import DataError

TEXT = """
# comment with a { and a "quote
item {
  id: 1
  name: 'raccoon'
}
item: { name: "/m/01g317", id: 2 display_name: "person # not a comment"
  keypoints { id: 100 label: "nose" }
  keypoints: < id: 101, label: 'it\\'s \\"left\\"' >
}
item{id:90;name:'tooth \\'brush\\''}
"""


def write(path: Path, text: str) -> LabelMap:
    path.write_text(text)
    return read_label_map(path)


def test_the_text_format_in_all_its_liberties(tmp_path: Path) -> None:
    labels = write(tmp_path / "label_map.pbtxt", TEXT)
    assert labels.categories == [
        {"id": 1, "name": "raccoon"},
        {"id": 2, "name": "person # not a comment", "keypoints": ["nose", 'it\'s "left"']},
        {"id": 90, "name": "tooth 'brush'"},
    ]
    assert [labels.id_of(text) for text in ("raccoon", "/m/01g317", "person # not a comment")] == [1, 2, 2]
    assert labels.id_of("Raccoon") is None


def test_the_real_one(shared_data: Path) -> None:
    labels = read_label_map(shared_data / "tfrecords/raccoon/object-detection.pbtxt")
    assert labels.categories == [{"id": 1, "name": "raccoon"}]


def test_a_coco_file_gives_its_categories_whole(shared_data: Path) -> None:
    path = shared_data / "coco2017_ccby/person_keypoints_val.json"
    labels = read_label_map(path)
    assert labels.categories == json.loads(path.read_text())["categories"]
    assert labels.id_of("person") == 1


def test_the_labels_of_a_model_of_hugging_face(tmp_path: Path) -> None:
    labels = write(tmp_path / "config.json", '{"id2label": {"0": "cat", "1": "dog"}, "label2id": {"cat": 0, "dog": 1}}')
    assert labels.categories == [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]


def test_keypoints_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "item {{ id: 1 name: 'cat' keypoints {{ {} label: 'ear' }} keypoints {{ {} label: 'nose' }} }}"
    with_ids = write(tmp_path / "m.pbtxt", text.format("id: 7", "id: 2"))
    assert (with_ids.keypoints, with_ids.keypoint_ids) == ({1: ("ear", "nose")}, {1: (7, 2)})
    without = write(tmp_path / "n.pbtxt", text.format("", ""))
    assert (without.keypoints, without.keypoint_ids) == ({1: ("ear", "nose")}, {})


def test_a_text_of_two_categories_names_none(tmp_path: Path) -> None:
    labels = write(tmp_path / "m.pbtxt", "item { id: 1 name: 'a' } item { id: 2 name: 'b' display_name: 'a' }")
    assert labels.id_of("a") is None
    assert labels.id_of("b") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a label map: no item"),
        ("items { id: 1 }", "not a label map: no item"),
        ("item { id: 1 name: 'cat }", "1:20 : .*String missing ending quote"),
        ("item { id: 1 name: 'cat'", '1:20 : Expected "}"'),
        ("item { 'id': 1 }", "1:8 : .*Expected identifier or number, got 'id'"),
        ("item { id: }", "1:12 : .*Couldn't parse integer: }"),
        ("item { " * 5000, "not a label map: "),
        ("item { id: 1 }", "item 1.*: invalid name: null. Write a text"),
        ("item { id: 1 name: '' }", "item 1: name is empty. Write a text"),
        ("item { id: 1.5 name: 'cat' }", "1:12 : .*Couldn't parse integer: 1.5"),
        ("item { id: -1 name: 'cat' }", "item 1.*: invalid id: -1. Write an integer from 0"),
        (
            "item { id: 9007199254740993 name: 'cat' }",
            "item 1.*: invalid id: 9007199254740993. Write an integer from 0",
        ),
        (f"item {{ id: {'9' * 5001} name: 'cat' }}", "not a label map: 1:12 : 'item { id: 9999"),
        ("item { id: 1 name: 'cat' } item { id: 1 name: 'dog' }", "item 2 \\(id 1\\): duplicate id"),
        (
            "item { id: 1 name: 'cat' keypoints { id: 0 label: 'ear' } keypoints { id: 0 label: 'nose' } }",
            "keypoint id 0 is 'ear' and 'nose'. Count the ids of keypoints over all items",
        ),
        (
            "item { id: 1 name: 'a' keypoints { id: 0 label: 'ear' } } "
            "item { id: 2 name: 'b' keypoints { id: 0 label: 'nose' } }",
            "keypoint id 0 is 'ear' and 'nose'",
        ),
        (
            "item { id: 1 name: 'cat' keypoints { id: 0 label: 'ear' } keypoints { id: 1 label: 'ear' } }",
            "item 1: keypoint 'ear' twice",
        ),
        (
            "item { id: 1 name: 'cat' keypoints { id: 0 label: 'ear' } keypoints { label: 'nose' } }",
            "keypoint 'nose' has no id, others have",
        ),
    ],
)
def test_no_label_map(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"m.pbtxt: .*{message}"):
        write(tmp_path / "m.pbtxt", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no list `categories`"),
        ('{"categories": 3}', "no list `categories`"),
        ('{"id2label": ["cat"]}', "no list `categories`"),
        ('{"id2label": {"%s": "cat"}}' % ("1" * 5000), "no list `categories`"),
        ('{"id2label": {"0": 7}}', "item 1 .*name"),
        ('{"categories": [7]}', "item 1: not an object: 7"),
        ('{"categories": [{"id": true, "name": "a"}]}', "item 1.*: invalid id: true. Write an integer"),
        ('{"categories": [{"id": 1, "name": "half \\ud800"}]}', "item 1 .*: half a character"),
        ('{"categories": [{"id": 1, "name": "a", "weight": NaN}]}', "item 1.*: NaN"),
        ('{"categories": [{"id": 1%s, "name": "a"}]}' % ("0" * 5000), "digits"),
        ('{"categories": %s}' % ("[" * 65 + "]" * 65), "nested more than 64 deep"),
        ('{"categories": %s}' % ("[" * 100_000), "nested more than 64 deep"),
    ],
)
def test_no_coco_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        write(tmp_path / "m.json", text)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.pbtxt: cannot read the file: No such file"):
        read_label_map(tmp_path / "nowhere.pbtxt")
    with pytest.raises(DataError, match=r"this is a device or socket"):
        read_label_map("/dev/zero")
    (tmp_path / "m.pbtxt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot read the label map"):
        read_label_map(tmp_path / "m.pbtxt")


def test_a_label_map_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MAX_CATEGORIES", 2)
    items = [f"item {{ id: {number} name: 'c{number}' }}" for number in range(3)]
    assert len(write(tmp_path / "m.pbtxt", " ".join(items[:2])).categories) == 2
    with pytest.raises(DataError, match=r"m\.pbtxt: more than 2 categories\. Merge some"):
        write(tmp_path / "m.pbtxt", " ".join(items))
    monkeypatch.setattr(label_map, "MAX_LABEL_MAP", 10)
    with pytest.raises(DataError, match="more than 10 bytes"):
        write(tmp_path / "m.pbtxt", items[0])
