"""One data set in four formats gives equal entries; broken files give issues, never a traceback."""

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.datasets.annotations.annotation_file import index_annotations
from detection.datasets.layouts import find_splits
from detection.datasets.readers.converted import as_coco
from detection.storage.atomic import write_bytes
from detection.web.archives import unpacked
from schemas.errors import DataError
from tests.components.coco_example_gen.remote_data import upload
from tests.detection.datasets.readers.data_sets import (
    NAMES,
    WRITERS,
    DataSet,
    Picture,
    read_data_set,
    write_csv,
    write_voc,
    write_yolo,
)
from tests.storage_emulator.fixture import Bucket


@st.composite
def _pictures(draw: st.DrawFn) -> list[Picture]:
    pictures = []
    for _ in range(draw(st.integers(1, 4))):
        width, height = draw(st.integers(4, 60)), draw(st.integers(4, 60))
        objects = []
        for _ in range(draw(st.integers(0, 4))):
            x, y = draw(st.integers(0, width - 2)), draw(st.integers(0, height - 2))
            edges = (x, y, draw(st.integers(x + 1, width)), draw(st.integers(y + 1, height)))
            objects.append((draw(st.integers(0, len(NAMES) - 1)), edges))
        pictures.append(Picture(width, height, objects))
    pictures.append(Picture(20, 10, [(0, (0, 0, 20, 10)), (1, (3, 2, 9, 7)), (2, (1, 1, 4, 4))]))  # all of it
    return pictures


@settings(max_examples=40, deadline=None)
@given(train=_pictures(), evaluation=_pictures())
def test_the_formats_of_one_data_set_give_equal_entries(train: list[Picture], evaluation: list[Picture]) -> None:
    data: DataSet = {"train": train, "eval": evaluation}
    with tempfile.TemporaryDirectory() as folder:
        read: dict[str, Any] = {}
        for name, write in WRITERS.items():
            write(Path(folder, name), data)
            read[name], faults, _ = read_data_set(Path(folder, name))
            assert not faults
    # A table of objects has no images without them.
    for split in data:
        read["csv"][split] |= {name: [] for name, objects in read["coco"][split].items() if not objects}
    for name in ("yolo", "voc", "csv"):
        assert read[name].keys() == read["coco"].keys()
        for split, images in read["coco"].items():
            assert read[name][split].keys() == images.keys()
            for image, objects in images.items():
                there = read[name][split][image]
                assert [kind for kind, _ in there] == [kind for kind, _ in objects]
                for (_, box), (_, expected) in zip(there, objects, strict=True):
                    assert box == pytest.approx(expected, abs=1e-6)


DATA: DataSet = {
    "train": [Picture(20, 10, [(0, (0, 0, 20, 10)), (1, (3, 2, 9, 7))]), Picture(8, 8, [(2, (1, 1, 4, 4))])],
    "eval": [Picture(20, 10, [(0, (2, 2, 6, 6))])],
}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7 0.5 0.5 0.2 0.2", "class 7 of 3."),
        ("-1 0.5 0.5 0.2 0.2", "class -1 of 3."),
        ("0.5 0.5 0.5 0.2 0.2", "class 0.5 of 3."),
        ("0 0.5 0.5 0.2", "3 numbers after the class"),
        ("0 0.5 0.5 0.2 0.2 0.9", "5 numbers after the class"),
        ("0 nan 0.5 0.2 0.2", "are not all finite numbers"),
        ("0 0.5 0.5 0.2 wide", "are not all finite numbers"),
        ("bolt 0.5 0.5 0.2 0.2", "are not all finite numbers"),
        ("0 12 5 4 3", "fractions of the image are expected"),
    ],
)
def test_a_faulty_line_is_told_and_no_other_object_is_lost(tmp_path: Path, line: str, message: str) -> None:
    write_yolo(tmp_path, DATA)
    labels = tmp_path / "train/labels/000.txt"
    labels.write_text(f"{labels.read_text()}\n{line}\n")
    read, [fault], _ = read_data_set(tmp_path)
    assert fault.where == f"{labels}:4"
    assert message in fault.message
    assert [len(objects) for objects in read["train"].values()] == [2, 1]


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><annotation><object><name>&b;</name></object></annotation>'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<annotation>", BOMB, "declares a document type or an entity"),
        ("<annotation>", '<!DOCTYPE x SYSTEM "file:///etc/passwd"><annotation>', "declares a document type"),
        ("</annotation>", "", "no XML"),
        ("<name>nut</name>", "", "has no name"),
        ("<xmin>4</xmin>", "<xmin>NaN</xmin>", "four finite numbers are expected"),
        ("<xmin>4</xmin>", "", "four finite numbers are expected"),
        ("<xmin>4</xmin>", "<xmin>left</xmin>", "four finite numbers are expected"),
    ],
)
def test_a_faulty_xml_is_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    write_voc(tmp_path, DATA)
    file = tmp_path / "Annotations/train-000.xml"
    file.write_text(file.read_text().replace(old, new))
    read, [fault], _ = read_data_set(tmp_path)
    assert fault.where.startswith(str(file))
    assert message in fault.message
    assert read["train"]["001.png"] == [("washer", (1, 1, 3, 3))]


@pytest.mark.parametrize(
    ("shift", "last", "said"),
    [((1, 1), 0, "counted from 1"), ((0, 0), -1, "counted from 0"), ((0, 0), 0, "edges of the boxes")],
)
def test_corners_are_found_out_by_those_on_the_border(
    tmp_path: Path, shift: tuple[int, int], last: int, said: str
) -> None:
    write_voc(tmp_path, DATA)
    for file in (tmp_path / "Annotations").iterdir():
        text = file.read_text()
        for number in range(30, 0, -1):
            for side in ("xmin", "ymin"):
                text = text.replace(f"<{side}>{number}<", f"<{side}>#{number - 1 + shift[0]}<")
            for side in ("xmax", "ymax"):
                text = text.replace(f"<{side}>{number}<", f"<{side}>#{number + last}<")
        file.write_text(text.replace("#", ""))
    read, _, notes = read_data_set(tmp_path)
    assert any(said in note for note in notes)
    assert read["train"]["000.png"] == [("bolt", (0, 0, 20, 10)), ("nut", (3, 2, 6, 5))]


@pytest.mark.parametrize(
    ("source", "tool"), [("Unknown", "LabelImg"), ("MyDatabase", "Label Studio"), ("", "FiftyOne")]
)
def test_tools_that_write_edges_are_known_where_no_box_is_at_the_border(tmp_path: Path, source: str, tool: str) -> None:
    write_voc(tmp_path, {"train": [Picture(20, 10, [(1, (4, 3, 9, 7))])], "eval": []})
    file = tmp_path / "Annotations/train-000.xml"
    for said in ("", f"<source><database>{source}</database></source>"):
        file.write_text(file.read_text().replace("<size>", f"{said}<size>"))
        read, _, notes = read_data_set(tmp_path)
        assert (tool in " ".join(notes)) == bool(said)
        box = (4, 3, 5, 4) if not said else (5, 4, 4, 3)  # from_1 and edges of 5, 4, 9, 7
        assert list(read["train"].values()) == [[("nut", box)]]


def test_classes_counted_from_1_are_told(tmp_path: Path) -> None:
    write_yolo(tmp_path, DATA)
    for file in tmp_path.glob("*/labels/*.txt"):
        lines = [line.partition(" ") for line in file.read_text().splitlines()]
        file.write_text("".join(f"{int(kind) + 1} {rest}\n" for kind, _, rest in lines))
    _, faults, notes = read_data_set(tmp_path)
    assert len(faults) == 1
    assert "classes seem to be counted from 1: none is 0, 1 are 3. Subtract 1 from all" in notes


@pytest.mark.parametrize(
    "description",
    [
        "path: /content/parts\ntrain: train/images\nval: valid/images\nnames: {0: bolt, 1: nut, 2: washer}\n",
        "path:\ntrain: ./train/images\nval: [valid/images]\nnames:\n- bolt\n- nut\n- washer\n",
        "path: ''\ntrain: C:\\data\\v2\\train\\images\nval: C:\\data\\v2\\valid\\images\nnames: [bolt, nut, washer]\n",
        "train: ../sets/v2/train/images/\nval: ../sets/v2/valid/images/\nnames: {'0': bolt, 1: nut, 2: washer}\n",
        "train: lists/train.txt\nval: lists/val.txt\nnc: 3\nnames: [bolt, nut, washer]\n",
        "train: train\nval: valid\ntest:\nnames: [bolt, nut, washer]\n",
    ],
)
def test_the_forms_of_a_description(tmp_path: Path, description: str) -> None:
    write_yolo(tmp_path, DATA)
    expected = read_data_set(tmp_path)[0]
    (tmp_path / "data.yaml").unlink()
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/train.txt").write_text("/home/me/v2/train/images/000.png\n./train/images/001.png\n")
    (tmp_path / "lists/val.txt").write_text("C:\\v2\\valid\\images\\000.png\n")
    (tmp_path / "parts.yaml").write_text(description)
    assert read_data_set(tmp_path)[0] == expected


def _move(root: Path, source: str, target: str) -> None:
    (root / target).parent.mkdir(parents=True, exist_ok=True)
    (root / source).rename(root / target)


def _counts(root: Path) -> dict[str, tuple[int, int]]:
    """Returns images and objects by split."""
    return {name: (len(images), sum(map(len, images.values()))) for name, images in read_data_set(root)[0].items()}


WHOLE = {"train": (2, 3), "eval": (1, 1)}


def test_voc_in_folders_of_any_name_and_beside_images_of_the_same_names(tmp_path: Path) -> None:
    write_voc(tmp_path, DATA)
    for stem in ("train-000", "train-001", "eval-000"):
        _move(tmp_path, f"Annotations/{stem}.xml", f"Annotations/7/{stem}.xml")
        for other in ("SegmentationObjectPNG", "Other/markers"):
            (tmp_path / other).mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / f"JPEGImages/{stem}.png", tmp_path / other / f"{stem}.png")
    assert _counts(tmp_path) == WHOLE


def test_a_whole_table_beside_those_of_the_splits_is_notread_data_set(tmp_path: Path) -> None:
    write_csv(tmp_path, DATA)
    tables = [(tmp_path / f"{name}_labels.csv").read_text() for name in ("train", "valid")]
    (tmp_path / "all_labels.csv").write_text("".join(tables))
    read, _, notes = read_data_set(tmp_path)
    assert {name: len(images) for name, images in read.items()} == {"train": 2, "eval": 1}
    assert "all_labels.csv beside the tables of the splits is not read" in notes


def test_a_table_without_lines_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "train_labels.csv").write_text("\nfilename,width,height,class,xmin,ymin,xmax,ymax\n")
    with pytest.raises(DataError, match="no data set recognised"):
        find_splits(tmp_path)


def test_the_owner_s_split_decides_between_two_formats(tmp_path: Path) -> None:
    write_csv(tmp_path, DATA)
    write_voc(tmp_path / "voc", {"train": DATA["train"]})
    shutil.rmtree(tmp_path / "voc/ImageSets")
    for path in (tmp_path / "voc/Annotations").iterdir():
        _move(tmp_path, str(path.relative_to(tmp_path)), f"annotations/{path.name}")
    for path in (tmp_path / "voc/JPEGImages").iterdir():
        if path.is_file():
            _move(tmp_path, str(path.relative_to(tmp_path)), f"images/{path.name}")
    shutil.rmtree(tmp_path / "voc")
    read, _, notes = read_data_set(tmp_path)
    assert {name: len(images) for name, images in read.items()} == {"train": 2, "eval": 1}
    assert "CSV of the Object Detection API; PASCAL VOC beside it is not read" in notes


def test_labels_in_capitals_and_images_without_labels(tmp_path: Path) -> None:
    write_yolo(tmp_path, DATA)
    (tmp_path / "valid/labels").rename(tmp_path / "valid/Labels")
    (tmp_path / "train/labels/001.txt").unlink()
    assert _counts(tmp_path) == {"train": (2, 2), "eval": (1, 1)}
    notes = read_data_set(tmp_path)[2]
    assert "1 of 2 images of train have no text with labels, and so no objects: train/images/001.png" in notes


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    write_yolo(tmp_path / "yolo", DATA)
    shutil.copytree(tmp_path / "yolo/valid", tmp_path / "yolo/test")
    (tmp_path / "yolo/train/labels/alone.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    write_csv(tmp_path / "csv", DATA)
    shutil.copy(tmp_path / "csv/images/train/000.png", tmp_path / "csv/images/train/007.png")
    for name, expected in {
        "yolo": {
            "1 images are not named by data.yaml, and are left out: test/images/000.png",
            "1 texts with labels have no image, and are left out: train/labels/alone.txt",
        },
        "csv": {"1 images are in no table, and are left out: images/train/007.png"},
    }.items():
        assert _counts(tmp_path / name) == WHOLE
        assert expected <= set(read_data_set(tmp_path / name)[2])


@pytest.mark.parametrize("kind", WRITERS)
def test_formats_and_archives_on_cloud_storage(
    tmp_path: Path, kind: str, gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    WRITERS[kind](tmp_path / "data", DATA)
    archive = shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path / "data")
    upload(tmp_path / "data", f"{gcs.path}/data")
    write_bytes(f"{gcs.path}/data.zip", Path(archive).read_bytes())
    here = read_data_set(tmp_path / "data")
    assert read_data_set(f"{gcs.path}/data") == here
    assert read_data_set(unpacked(f"{gcs.path}/data.zip")) == here


def test_keypoints_of_yolo(tmp_path: Path) -> None:
    write_yolo(tmp_path, DATA)
    (tmp_path / "data.yaml").write_text(f"{(tmp_path / 'data.yaml').read_text()}kpt_shape: [2, 3]\n")
    (tmp_path / "train/labels/000.txt").write_text("0 0.5 0.5 0.2 0.2 0.25 0.5 2 0 0 0\n")
    made, faults = as_coco(find_splits(tmp_path)["train"])
    index = index_annotations(made.annotations)
    [[_, [annotation]], _] = list(index.entries())
    assert annotation["keypoints"] == [5.0, 5.0, 2, 0, 0, 0]
    assert annotation["num_keypoints"] == 1
    assert index.categories[0]["keypoints"] == ["0", "1"]
    assert not faults, "a box without keypoints is a box"


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("seed", range(75))
def test_a_damaged_folder_is_read_or_refused(tmp_path: Path, kind: str, seed: int) -> None:
    WRITERS[kind](tmp_path, DATA)
    chance = random.Random(f"{kind} {seed}")
    named = [path for path in sorted(tmp_path.rglob("*")) if path.suffix in (".json", ".txt", ".yaml", ".xml", ".csv")]
    for path in chance.sample(named, min(2, len(named))):
        content = bytearray(path.read_bytes())
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(content) + 1)
            match chance.randrange(4):
                case 0:
                    del content[place : place + chance.randint(1, 30)]
                case 1:
                    content[place:place] = bytes(chance.choices(range(256), k=chance.randint(1, 8)))
                case 2:
                    content[place:place] = chance.choice(
                        [b"NaN", b"-", b"1e999", b"<", b'"', b"\0", b"\xff\xfe", b": ["]
                    )
                case _:
                    content += content[:place]
        path.write_bytes(content)
    refused = ""
    try:
        for files in find_splits(tmp_path).values():
            made, _ = as_coco(files)
            index_annotations(made.annotations, shown=files.annotations)
    except DataError as error:
        refused = str(error)
    assert not refused or str(tmp_path) in refused
