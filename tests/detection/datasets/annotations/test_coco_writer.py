"""COCO files written entry by entry."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detection.datasets.annotations.coco_writer import CocoWriter
from schemas.errors import DataError

HEAD: dict[str, Any] = {"info": {"année": 2024}, "licenses": [], "categories": [{"id": 3, "name": "chat \u2603"}]}


def write(path: Path, *images: tuple[dict[str, Any], list[dict[str, Any]]]) -> Any:
    with CocoWriter(path) as writer:
        for image, annotations in images:
            writer.add(image, annotations, where="here")
        writer.finish(HEAD)
    return json.loads(path.read_text())


def test_sorted_by_id_and_otherwise_as_given(tmp_path: Path) -> None:
    odd = {"id": -4, "z": 0.1 + 0.2, "a": [1e-320, 1e308, None, True], "name": "\ud800\u2603"}
    path = tmp_path / "new" / "out.json"
    written = write(path, ({"id": 9}, [{"id": 7, "of": 9}, odd]), ({"id": 2}, []), ({"id": 5}, [{"id": 6}]))
    assert written == {
        **HEAD,
        "images": [{"id": 2}, {"id": 5}, {"id": 9}],
        "annotations": [odd, {"id": 6}, {"id": 7, "of": 9}],
    }
    assert list(written["annotations"][0]) == list(odd)
    assert list(tmp_path.rglob("*")) == [path.parent, path]


def test_nothing_at_all_is_a_coco_file_too(tmp_path: Path) -> None:
    assert write(tmp_path / "out.json") == {**HEAD, "images": [], "annotations": []}


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_come_back_to_the_last_bit(tmp_path_factory: pytest.TempPathFactory, numbers: list[float]) -> None:
    path = tmp_path_factory.mktemp("floats") / "out.json"
    written = write(path, ({"id": 1, "numbers": numbers}, []))
    assert [number.hex() for number in written["images"][0]["numbers"]] == [number.hex() for number in numbers]


def test_without_finish_the_old_file_stays_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with CocoWriter(path) as writer:
        writer.add({"id": 1}, [], where="here")
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]
    assert path.read_text() == "old"


def test_counts(tmp_path: Path) -> None:
    with CocoWriter(tmp_path / "out.json") as writer:
        writer.add({"id": 1}, [{"id": 1}, {"id": 2}], where="here")
        assert (writer.images, writer.annotations) == (1, 2)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([({"id": 1}, []), ({"id": 1}, [])], "out.json: images: duplicate id 1"),
        ([({"id": 1}, [{"id": 8}]), ({"id": 2}, [{"id": 8}])], "out.json: annotations: duplicate id 8"),
        ([({"id": "1"}, [])], "here: an entry of images has the id '1'"),
        ([({"id": 1}, [{}])], "here: an entry of annotations has the id None"),
        ([({"id": 2**63}, [])], "not a 64-bit integer"),
        ([({"id": 1, "x": float("nan")}, [])], "here: images, id 1: Out of range float values"),
    ],
)
def test_what_no_coco_file_can_hold(tmp_path: Path, images: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        write(tmp_path / "out.json", *images)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"out.json: cannot write: .*Check that"):
        CocoWriter(tmp_path / "file" / "out.json")
    with pytest.raises(DataError, match="it is a folder"):
        CocoWriter(tmp_path)
