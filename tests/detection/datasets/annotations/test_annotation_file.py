import json
import os
import re
import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detection.coco import evaluate
from detection.datasets.annotations import json_stream
from detection.datasets.annotations import packed_entries as packing
from detection.datasets.annotations.annotation_file import (
    AnnotationFile,
    index_annotations,
    merge_categories,
    scan_categories,
    scan_file_names,
)
from detection.datasets.annotations.entry_rules import is_crowd
from schemas.config.issues import IssuePolicies
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


def _entries(file: AnnotationFile) -> list[dict[str, Any]]:
    return [annotation for _, group in file.entries() for annotation in group]


def test_entries_keep_their_order_and_every_image_has_a_list(tmp_path: Path) -> None:
    path = _write(tmp_path, _tree())
    read = index_annotations(path)
    assert read.path == str(path)
    assert list(read.images) == [7, 0]
    assert list(read.entries()) == [(_tree()["images"][0], _tree()["annotations"]), (_tree()["images"][1], [])]
    assert read.issues == []
    assert read.categories == _tree()["categories"]
    assert (read.info, read.licenses) == ({}, [])


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(_tree()).encode())
    assert len(index_annotations(path).images) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n "images": [}', r"not JSON: images\[0\], line 2, column 13: Expecting value"),
        ('{"images": [], "type": 1}', "expected a list `annotations`; keys are images, type"),
        ('{"images": [], "categories": []}', "expected a list `annotations`"),
        ('{"images": [1 2]}', r"images\[0\], line 1, column 15: expected ',' or '\]'"),
        ('{"images": [{"id": 3, "a": }]}', r"images\[0\] \(id 3\), line 1, column 28: Expecting value"),
        ("{images: []}", "the file, line 1, column 2: expected a key in double quotes"),
    ],
)
def test_what_is_no_coco_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        index_annotations(path)
    assert str(path) in str(caught.value)


def test_a_long_key_is_cut_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not JSON: in\[+\.\.\. \(2,922 more characters\)") as caught:
        index_annotations(_write(tmp_path, f'{{"in{"[" * 3000}" 1}}'))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("window", [30, 31, 32, 33, 1 << 20])
def test_places_are_told_in_lines_and_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(json_stream, "WINDOW", window)
    image = '{"id": 1,\n "file_name": "ねこ 🐈.jpg", "width": "é", "height": x}'
    text = f'{{"info": "é",\n\n"images": [{image}]}}'
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)
    place = f"line {expected.value.lineno}, column {expected.value.colno}"
    with pytest.raises(DataError, match=rf"images\[0\] \(id 1\), {place}: Expecting value"):
        index_annotations(_write(tmp_path, text))


@pytest.mark.parametrize("policy", ["repair", "fix", "drop"])
def test_annotations_of_one_id_are_numbered_anew_unless_they_are_the_same(tmp_path: Path, policy: str) -> None:
    tree = _tree()
    first, second = tree["annotations"][:2]
    copy = dict(first)
    tree["annotations"] = [first, second | {"id": first["id"]}, copy, *tree["annotations"][2:]]
    policies = IssuePolicies.model_validate({"duplicate_id": policy})
    read = index_annotations(_write(tmp_path, tree), policies=policies)
    highest = max(one["id"] for one in tree["annotations"])
    renumbered = [] if policy == "drop" else [second | {"id": highest + 1}]
    assert [issue.policy for issue in read.issues] == (["drop", "drop"] if policy == "drop" else ["fix", "drop"])
    assert sorted(_entries(read), key=lambda one: one["id"]) == sorted(
        [first, *renumbered, *tree["annotations"][3:]], key=lambda one: one["id"]
    )


@pytest.mark.parametrize(
    ("where", "change", "kind", "message"),
    [
        ("images[1]", {"id": "x"}, "entry", 'images[1]: invalid id: "x". Write an integer from 0 to 2^53.'),
        ("images[1]", {"id": True}, "entry", "images[1]: invalid id: true. Write an integer from 0 to 2^53."),
        ("images[1]", {"id": 2**63}, "entry", f"images[1]: invalid id: {2**63}. Write an integer from 0 to 2^53."),
        ("images[1]", {"id": 7}, "duplicate_id", "images[1]: duplicate id. Give each entry a unique id."),
        ("images[1]", {"file_name": None}, "entry", "images[1]: invalid file_name: null. Write a text."),
        ("images[1]", {"width": -4}, "entry", "images[1]: invalid width: -4. Write the size in whole pixels."),
        ("images[1]", {"height": 2.5}, "entry", "images[1]: invalid height: 2.5. Write the size in whole pixels."),
        ("annotations[1]", {"image_id": 70}, "entry", "unknown image_id: 70. Correct it, add the image"),
        (
            "annotations[1]",
            {"image_id": "7"},
            "entry",
            'annotations[1]: invalid image_id: "7". Write an integer from 0 to 2^53.',
        ),
        (
            "annotations[0]",
            {"image_id": "\ud800"},
            "entry",
            'annotations[0]: invalid image_id: "\\\\ud800". Write an integer',
        ),
        (
            "annotations[0]",
            {"category_id": 90},
            "entry",
            "unknown category_id: 90. The known ids are [0, 9]. Correct it",
        ),
        ("annotations[0]", {"bbox": [1, 2, 3]}, "entry", "annotations[0]: invalid bbox: [1, 2, 3]. Write four finite"),
        (
            "annotations[0]",
            {"bbox": [1, 2, 3, None]},
            "entry",
            "annotations[0]: invalid bbox: [1, 2, 3, null]. Write four",
        ),
        (
            "annotations[0]",
            {"bbox": "1,2,3,4"},
            "entry",
            'annotations[0]: invalid bbox: "1,2,3,4". Write four finite numbers: x, y, width, height in pixels.',
        ),
    ],
)
def test_an_invalid_entry_is_left_out_and_told(
    tmp_path: Path, where: str, change: dict[str, Any], kind: str, message: str
) -> None:
    tree = _tree()
    key, position = where[:-3], int(where[-2])
    tree[key][position].update(change)
    path = _write(tmp_path, tree)
    read = index_annotations(path)
    [issue] = read.issues
    assert (issue.kind, issue.policy, issue.where) == (kind, "drop", str(path))
    assert issue.message.startswith(message)
    left = tree[key][:position] + tree[key][position + 1 :]
    assert (_entries(read) if key == "annotations" else [image for image, _ in read.entries()]) == left


def test_annotations_of_an_invalid_image_point_to_it(tmp_path: Path) -> None:
    tree = _tree()
    tree["images"][0]["width"] = 0
    read = index_annotations(_write(tmp_path, tree), policies=IssuePolicies({"entry": "drop"}))
    assert [(issue.image_id, issue.annotation_id, issue.policy) for issue in read.issues] == [
        (7, None, "drop"),
        (7, 3, "drop"),
        (7, 1, "drop"),
    ]
    assert "its image's entry is invalid" in read.issues[1].message


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("images", "id"),
        ("images", "file_name"),
        ("annotations", "id"),
        ("annotations", "image_id"),
        ("annotations", "category_id"),
        ("annotations", "bbox"),
    ],
)
def test_a_missing_field_is_named(tmp_path: Path, key: str, field: str) -> None:
    tree = _tree()
    del tree[key][1][field]
    [issue] = index_annotations(_write(tmp_path, tree)).issues
    assert issue.message.startswith(f"{key}[1]: missing {field}. Write ")


_MOVED = {
    "images": {"images": ["id"], "annotations": ["image_id"]},
    "annotations": {"annotations": ["id"]},
    "categories": {"categories": ["id"], "annotations": ["category_id"]},
}


@pytest.mark.parametrize("key", _MOVED)
@pytest.mark.parametrize(
    "identity",
    [
        -(2**63),
        -1,
        0,
        1,
        2**31,
        2**53 - 1,
        2**53,
        2**53 + 1,
        2**63 - 1,
        2**63,
        10**30,
        1.0,
        True,
        "1",
        None,
        float("nan"),
    ],
)
def test_ids_are_valid_where_the_evaluator_takes_them(tmp_path: Path, key: str, identity: Any) -> None:
    """Else a data set passes all checks, and its evaluation fails after the whole training."""
    entry = {"id": 5, "image_id": 5, "category_id": 5, "bbox": [1, 1, 2, 2]}
    tree = {
        "images": [{"id": 5, "file_name": "a.jpg"}],
        "annotations": [entry],
        "categories": [{"id": 5, "name": "cat"}],
    }
    for place, fields in _MOVED[key].items():
        tree[place][0].update(dict.fromkeys(fields, identity))
    try:
        evaluate(tree, [])
        measurable = True
    except DataError:
        measurable = False
    try:
        valid = index_annotations(_write(tmp_path, tree)).issues == []
    except DataError:
        valid = False
    assert valid == measurable == (type(identity) is int and 0 <= identity <= 2**53)


def test_a_missing_file_tells_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No such file or directory\. JSON files in .*: none"):
        index_annotations(tmp_path / "x.json")
    _write(tmp_path, {}, "instances_train.json")
    with pytest.raises(DataError, match=f"JSON files in {re.escape(str(tmp_path))}: instances_train.json"):
        index_annotations(tmp_path / "x.json")


def test_keypoints_are_merged_by_annotation_id(tmp_path: Path) -> None:
    points = {
        "annotations": [{"id": 1, "keypoints": [1, 2, 2], "num_keypoints": 1, "bbox": [9, 9, 9, 9]}],
        "categories": [{"id": 0, "name": "dog", "keypoints": ["nose"], "skeleton": []}],
    }
    keypoints = _write(tmp_path, points, "person_keypoints.json")
    read = index_annotations(_write(tmp_path, _tree()), keypoints)
    expected = [_tree()["annotations"][0], _tree()["annotations"][1] | {"keypoints": [1, 2, 2], "num_keypoints": 1}]
    assert _entries(read) == expected
    assert read.categories[1] == {"id": 0, "name": "dog", "keypoints": ["nose"], "skeleton": []}


def test_keypoints_of_an_unknown_annotation_are_told(tmp_path: Path) -> None:
    keypoints = _write(tmp_path, {"annotations": [{"id": 5}], "categories": []}, "person_keypoints.json")
    [issue] = index_annotations(_write(tmp_path, _tree()), keypoints).issues
    assert re.match(r".*person_keypoints\.json \(annotation 5\): not in .*instances\.json", str(issue))


def test_categories_of_several_files_are_united() -> None:
    first = [{"id": 2, "name": "x"}, {"id": 1, "name": "y"}]
    second = [{"id": 1, "name": "y", "extra": 1}, {"id": 0, "name": "z"}]
    assert merge_categories([("a.json", first), ("b.json", second)]) == [*first, {"id": 0, "name": "z"}]
    with pytest.raises(DataError, match=r"category 2 is 'x' in a\.json but 'q' in c\.json"):
        merge_categories([("a.json", first), ("c.json", [{"id": 2, "name": "q"}])])
    with pytest.raises(DataError, match=r"category 'x' has the id 2 in a\.json but 3 in c\.json"):
        merge_categories([("a.json", first), ("c.json", [{"id": 3, "name": "x"}])])


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


def test_a_long_file_name_is_found_without_memory_per_character(tmp_path: Path) -> None:
    name = "x/" * 1_000_000 + "\\n" * 1000
    path = _write(tmp_path, json.dumps({"images": [{"file_name": name}]}))
    tracemalloc.start()
    try:
        assert list(scan_file_names(path)) == [name]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(name)


@pytest.mark.parametrize("indent", [None, 1])
def test_categories_are_found_without_parsing(tmp_path: Path, indent: int | None) -> None:
    categories = [{"id": 1, "name": 'ä "categories": ['}, {"id": 2, "name": "]", "keypoints": ["a"]}]
    tree = {"images": [], "annotations": [{"id": 1, "segmentation": [[1, 2]]}], "categories": categories}
    text = json.dumps(tree, indent=indent, ensure_ascii=False)
    assert scan_categories(_write(tmp_path, text)) == categories
    assert scan_categories(_write(tmp_path, json.dumps({"categories": [], "images": []}))) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"categories": [',
        '{"categories": [{"id": 1}]}',
        '{"categories": ["cat"]}',
        '{"categories": [{"id": [1], "name": "cat"}]}',
        '{"categories": [{"id": -1, "name": "cat"}]}',
        '{"info": {"categories": []}, "categories": [{"id": 1, "name": "cat"}]}',
        '{"categories": [' + "[" * 100_000,
    ],
)
def test_categories_that_only_reading_tells_are_not_guessed(tmp_path: Path, text: str) -> None:
    assert scan_categories(_write(tmp_path, text)) is None
    assert scan_categories(tmp_path / "absent.json") is None


def test_categories_of_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = threading.Thread(target=lambda: read.append(scan_categories(tmp_path / "pipe")), daemon=True)
    read: list[object] = []
    reader.start()
    reader.join(30)
    assert read == [None]


def test_a_file_name_that_is_no_json_text_ends_the_scan(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"file_name": "a.jpg"}, {"file_name": "\\q.jpg"}')
    assert list(scan_file_names(path)) == ["a.jpg"]


def test_real_oddities_are_read(shared_data: Path) -> None:
    dali = index_annotations(shared_data / "dali_masks/instances_train.json")
    assert next(iter(dali.images)) == 0
    assert dali.categories[0] == {"supercategory": "Apple", "id": 0, "name": "Apple"}
    assert (len(dali.images), len(_entries(dali))) == (49, 73)
    pixelwise = _entries(index_annotations(shared_data / "dali_masks/pixelwise_instances.json"))
    assert Counter(map(is_crowd, pixelwise)) == {False: 12}
    assert sum("is_crowd" in entry for entry in pixelwise) == 3


def test_real_keypoints_are_merged(shared_data: Path) -> None:
    folder = shared_data / "coco2017_ccby"
    read = index_annotations(folder / "instances_val.json", folder / "person_keypoints_val.json")
    annotations = _entries(read)
    persons = json.loads((folder / "person_keypoints_val.json").read_text())["annotations"]
    assert len(annotations) == 263
    merged = {entry["id"]: entry for entry in annotations if "keypoints" in entry}
    assert {key: (entry["keypoints"], entry["num_keypoints"]) for key, entry in merged.items()} == {
        person["id"]: (person["keypoints"], person["num_keypoints"]) for person in persons
    }
    assert len(read.categories[0]["skeleton"]) == 19


_TEXT = st.text(max_size=6)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(
    tree=st.dictionaries(_TEXT, _JSON | st.lists(_JSON, max_size=6), max_size=5),
    window=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_a_stream_gives_what_a_whole_parse_gives(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any], window: int, indent: int | None, ascii_only: bool
) -> None:
    path = tmp_path_factory.mktemp("stream") / "tree.json"
    path.write_text(json.dumps(tree, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    members: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch, path.open("rb") as file:
        patch.setattr(json_stream, "WINDOW", window)
        for member in json_stream.stream_members(path):
            assert json_stream.read_entry(file, member.place) == member.value
            if member.position is None:
                members[member.key] = member.value
            else:
                assert member.position == len(members.setdefault(member.key, []))
                members[member.key].append(member.value)
    assert members == tree


def test_an_entry_that_is_too_large_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "WINDOW", 1000)
    monkeypatch.setattr(json_stream, "MAX_ENTRY", 1 << 20)
    tree = _tree()
    tree["annotations"][1]["segmentation"] = [[1.5] * 300_000]
    with pytest.raises(
        DataError, match=r"annotations\[1\] \(id 1\), line 1, column \d+: larger than 1 MB. Simplify its polygons"
    ):
        index_annotations(_write(tmp_path, tree))


def test_memory_does_not_grow_with_the_polygons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "WINDOW", 1 << 16)
    annotation = {"id": 0, "image_id": 7, "category_id": 9, "bbox": [0, 0, 1, 1], "segmentation": [[0.5] * 20_000]}
    path = _write(tmp_path, _tree() | {"annotations": [annotation | {"id": number} for number in range(50)]})
    tracemalloc.start()
    index_annotations(path)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < path.stat().st_size / 2


def test_an_image_whose_annotations_fill_no_record_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = _tree()
    tree["annotations"].append({"id": 4, "image_id": 0, "category_id": 9, "bbox": [0, 0, 2, 1]})
    monkeypatch.setattr(packing, "MAX_IMAGE_ENTRIES", 100)  # one annotation
    read = index_annotations(_write(tmp_path, tree))
    assert [(image["id"], [each["id"] for each in annotations]) for image, annotations in read.entries()] == [(0, [4])]
    [issue] = read.issues
    assert (issue.kind, issue.image_id) == ("entry", 7)
    assert re.match(r"the image's annotations have 1\d\d bytes of JSON, more than 100\. Simplify", issue.message)
