"""Label maps of the Object Detection API, and COCO files in their place."""

import json
from pathlib import Path

import pytest

from detection.data.foreign.label_map import LabelMap, read_label_map
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


def test_a_text_of_two_categories_names_none(tmp_path: Path) -> None:
    labels = write(tmp_path / "m.pbtxt", "item { id: 1 name: 'a' } item { id: 2 name: 'b' display_name: 'a' }")
    assert labels.id_of("a") is None
    assert labels.id_of("b") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no item"),
        ("items { id: 1 }", "it has no item"),
        ("item { id: 1 name: 'cat }", "line 1: a quote is not closed"),
        ("item { id: 1 name: 'cat'", "a block is not closed"),
        ("item { 'id': 1 }", "expected a key, found 'id'"),
        ("item { id: }", "id has no value"),
        ("item { " * 5000, "no label map: "),
        ("item { id: 1 }", "item 1 has no whole number as `id` and text as `name`"),
        ("item { id: 1.5 name: 'cat' }", "item 1 has no whole number"),
        ("item { id: 1 name: 'cat' } item { id: 1 name: 'dog' }", "item 2: id 1 is there twice"),
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
        ('{"categories": [7]}', "item 1 has no whole number"),
        ('{"categories": [{"id": true, "name": "a"}]}', "item 1 has no whole number"),
    ],
)
def test_no_coco_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        write(tmp_path / "m.json", text)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.pbtxt: cannot read the label map: .*--label-map"):
        read_label_map(tmp_path / "nowhere.pbtxt")
    (tmp_path / "m.pbtxt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot read the label map"):
        read_label_map(tmp_path / "m.pbtxt")
