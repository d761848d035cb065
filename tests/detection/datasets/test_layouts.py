import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from detection.datasets.layouts import find_splits, given_splits
from detection.datasets.sampling import hash_fraction, key_hash
from detection.datasets.splits import Division, SplitFiles
from schemas.errors import ConfigError, DataError


def _data_set(root: Path, files: dict[str, str], images: tuple[str, ...] = ()) -> None:
    """Writes annotation files that name one image each, and image files."""
    for name, file_name in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"images": [{"id": 1, "file_name": file_name}]}))
    for image in images:
        (root / image).parent.mkdir(parents=True, exist_ok=True)
        (root / image).touch()


def _relative(root: Path) -> dict[str, tuple[str, str]]:
    splits = find_splits(root)
    return {
        name: (str(Path(files.annotations).relative_to(root)), str(Path(str(files.images)).relative_to(root)))
        for name, files in splits.items()
    }


@pytest.mark.parametrize(
    ("files", "images", "expected"),
    [
        pytest.param(
            {"annotations/instances_train.json": "a.jpg", "annotations/instances_val.json": "b.jpg"},
            ("images/a.jpg", "images/b.jpg"),
            {
                "train": ("annotations/instances_train.json", "images"),
                "eval": ("annotations/instances_val.json", "images"),
            },
            id="one images folder",
        ),
        pytest.param(
            {"instances_train.json": "a.jpg", "instances_valid.json": "b.jpg", "pixelwise_instances.json": "a.jpg"},
            ("a.jpg", "b.jpg"),
            {"train": ("instances_train.json", "."), "eval": ("instances_valid.json", ".")},
            id="everything beside",
        ),
        pytest.param(
            {
                "annotations/instances_train2017.json": "a.jpg",
                "annotations/instances_val2017.json": "b.jpg",
                "annotations/captions_val2017.json": "b.jpg",
            },
            ("train2017/a.jpg", "val2017/b.jpg"),
            {
                "train": ("annotations/instances_train2017.json", "train2017"),
                "eval": ("annotations/instances_val2017.json", "val2017"),
            },
            id="COCO",
        ),
        pytest.param(
            {"annotations/instances_train.json": "train/a.jpg", "annotations/instances_val.json": "val/b.jpg"},
            ("images/train/a.jpg", "images/val/b.jpg"),
            {
                "train": ("annotations/instances_train.json", "images"),
                "eval": ("annotations/instances_val.json", "images"),
            },
            id="sub-folders in file_name",
        ),
        pytest.param(
            {"annotations/instances_train.json": "a.jpg", "annotations/instances_val.json": "b.jpg"},
            ("images/train/a.jpg", "images/val/b.jpg", "a.txt"),
            {
                "train": ("annotations/instances_train.json", "images/train"),
                "eval": ("annotations/instances_val.json", "images/val"),
            },
            id="a folder per split in images",
        ),
        pytest.param(
            {
                "train/_annotations.coco.json": "a.jpg",
                "valid/_annotations.coco.json": "b.jpg",
                "test/_annotations.coco.json": "c.jpg",
            },
            ("train/a.jpg", "valid/b.jpg", "test/c.jpg"),
            {
                "train": ("train/_annotations.coco.json", "train"),
                "eval": ("valid/_annotations.coco.json", "valid"),
                "test": ("test/_annotations.coco.json", "test"),
            },
            id="Roboflow",
        ),
        pytest.param(
            {"annotations/instances_default.json": "a.jpg"},
            ("images/default/a.jpg",),
            {
                "train": ("annotations/instances_default.json", "images/default"),
                "eval": ("annotations/instances_default.json", "images/default"),
            },
            id="CVAT",
        ),
        pytest.param(
            {"annotations/instances_val.json": "a.jpg"},
            ("val/other.jpg",),
            {"eval": ("annotations/instances_val.json", "val")},
            id="images absent",
        ),
    ],
)
def test_layouts(
    tmp_path: Path, files: dict[str, str], images: tuple[str, ...], expected: dict[str, tuple[str, str]]
) -> None:
    _data_set(tmp_path, files, images)
    assert _relative(tmp_path) == expected


def test_keypoints_beside_the_instances_are_found(tmp_path: Path) -> None:
    names = ["instances_train2017", "instances_val2017", "person_keypoints_val2017"]
    _data_set(tmp_path, {f"annotations/{name}.json": "a.jpg" for name in names})
    splits = find_splits(tmp_path)
    assert splits["train"].keypoints is None
    assert splits["eval"].keypoints == str(tmp_path / "annotations/person_keypoints_val2017.json")
    annotations, images = splits["eval"].annotations, splits["eval"].images
    assert given_splits({"test": (annotations, images)}) == {"test": replace(splits["eval"], root="", notes=())}


def _images(count: int) -> list[dict[str, str]]:
    return [{"file_name": f"{number}.jpg"} for number in range(count)]


def test_only_one_file_is_divided_by_the_name() -> None:
    low, high = SplitFiles("a", "b", None, (0.0, 0.25)), SplitFiles("a", "b", None, (0.25, 1.0))
    assert all(low.holds(image) != high.holds(image) for image in _images(4000))
    assert sum(map(low.holds, _images(4000))) == pytest.approx(1000, abs=90)
    assert SplitFiles("a", "b").holds({"file_name": "5.jpg"})
    # Fixed for good: other numbers would move images of existing data sets to the other split.
    assert hash_fraction(key_hash("1")) == pytest.approx(0.42002406436877493, abs=1e-12)
    assert low.holds({"id": 1, "file_name": "3.jpg"}) == low.holds({"id": 2, "file_name": "3.jpg"})


def test_a_train_file_alone_gives_train_and_eval(tmp_path: Path) -> None:
    _data_set(tmp_path, {"instances_train.json": "a.jpg"})
    splits = find_splits(tmp_path, Division(eval_fraction=0.2))
    assert {name: files.hash_range for name, files in splits.items()} == {"train": (0.2, 1.0), "eval": (0.0, 0.2)}


def test_an_unknown_folder_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent: no such data set folder\. Check --data"):
        find_splits(tmp_path / "absent")
    with pytest.raises(DataError, match="no data set recognised") as caught:
        find_splits(tmp_path)
    for part in (str(tmp_path), "There are no images", "--set data.splits.train.annotations=FILE"):
        assert part in str(caught.value)


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    _data_set(tmp_path, {"instances_train2014.json": "a.jpg", "instances_train2017.json": "a.jpg"})
    message = r"train2014\.json and .*train2017\.json are both the split train.*data\.splits\.train\.annotations"
    with pytest.raises(DataError, match=message):
        find_splits(tmp_path)


def test_specified_splits(tmp_path: Path) -> None:
    _data_set(tmp_path, {"my.json": "a.jpg", "your.json": "b.jpg"}, ("x/a.jpg", "y/b.jpg"))
    my, your, x, y = (str(tmp_path / name) for name in ("my.json", "your.json", "x", "y"))
    splits = given_splits({"train": (my, x), "val": (your, y), "night": (your, x)})
    assert splits == {"train": SplitFiles(my, x), "eval": SplitFiles(your, y), "night": SplitFiles(your, x)}


@pytest.mark.parametrize(
    ("name", "annotations", "images", "message"),
    [
        ("train", "absent.json", ".", "absent.json: no such annotation file. Check data.splits.train.annotations"),
        ("train", "my.json", "absent", "absent: no such image folder. Check data.splits.train.images"),
        ("a/b", "my.json", ".", "data.splits.a/b: the name of a split may have letters"),
    ],
)
def test_invalid_specified_splits_are_named(
    tmp_path: Path, name: str, annotations: str, images: str, message: str
) -> None:
    _data_set(tmp_path, {"my.json": "a.jpg"})
    with pytest.raises(DataError, match=re.escape(message)):
        given_splits({name: (str(tmp_path / annotations), str(tmp_path / images))})


def test_ratios_divide_one_file_and_growing_train_moves_no_other_image(tmp_path: Path) -> None:
    _data_set(tmp_path, {"instances_default.json": "a.jpg"})
    splits = find_splits(tmp_path, Division(ratios={"train": 0.5, "eval": 0.2, "test": 0.3}))
    more = find_splits(tmp_path, Division(ratios={"train": 0.3, "eval": 0.2, "test": 0.3, "spare": 0.2}))
    images = _images(4000)
    members = {name: [image for image in images if files.holds(image)] for name, files in splits.items()}
    assert sum(map(len, members.values())) == 4000
    assert {name: round(len(group) / 4000, 1) for name, group in members.items()} == {
        "train": 0.5,
        "eval": 0.2,
        "test": 0.3,
    }
    for name in ("eval", "test"):
        assert [image for image in images if more[name].holds(image)] == members[name]


def test_divisions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    _data_set(tmp_path, {"instances_train.json": "a.jpg", "instances_val.json": "b.jpg"})
    with pytest.raises(
        ConfigError, match=r"data\.split_ratios divides a data set of one file; this one has eval, train"
    ):
        find_splits(tmp_path, Division(ratios={"train": 1.0}))
    with pytest.raises(ConfigError, match=r"data\.sample_1_of_n names the split 'test'; splits are eval, train"):
        find_splits(tmp_path, Division(sample_1_of_n={"test": 3}))
    assert {name: files.every for name, files in find_splits(tmp_path, Division(sample_1_of_n=5)).items()} == {
        "train": 5,
        "eval": 5,
    }
    assert find_splits(tmp_path, Division(sample_1_of_n={"train": 5}))["eval"].every == 1


def test_person_keypoints_alone_are_a_data_set(tmp_path: Path) -> None:
    _data_set(tmp_path, {"annotations/person_keypoints_train2017.json": "a.jpg"})
    files = find_splits(tmp_path)["train"]
    assert Path(files.annotations).name == "person_keypoints_train2017.json"
    assert files.keypoints is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["coco_train.record-00000-of-00002", "coco_train.record-00001-of-00002", "coco_val.record"],
            {"train": "coco_train.record-*-of-*", "eval": "coco_val.record"},
        ),
        (
            ["train-00000-of-00001.tfrecord.gz", "test.tfrecord"],
            {"train": "train-*-of-*.tfrecord.gz", "eval": "test.tfrecord"},
        ),
        (["valid/a.tfrecords", "train/a.tfrecords"], {"train": "train/a.tfrecords", "eval": "valid/a.tfrecords"}),
        (["raccoons.record", "label_map.pbtxt"], {"train": "raccoons.record", "eval": "raccoons.record"}),
        (["Split-train/x", "Split-eval/x", "dataset.json"], {"train": "Split-train", "eval": "Split-eval"}),
    ],
)
def test_tfrecords_are_found_by_their_names(tmp_path: Path, names: list[str], expected: dict[str, str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x" if name != "dataset.json" else "{}")
    splits = find_splits(tmp_path)
    assert {name: str(Path(files.annotations).relative_to(tmp_path)) for name, files in splits.items()} == expected
    assert {files.images for files in splits.values()} == {None}


@pytest.mark.parametrize("beside", [".work/plan", ".unfinished"])
def test_records_whose_writer_has_not_ended_are_refused(tmp_path: Path, beside: str) -> None:
    for name in ("Split-train/a", "Split-eval/a", beside):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=r"incomplete examples: no dataset\.json"):
        find_splits(tmp_path)
    (tmp_path / "dataset.json").write_text("{}")
    assert find_splits(tmp_path).keys() == {"train", "eval"}
    (tmp_path / "dataset.json").unlink()
    (tmp_path / beside).unlink()
    if beside == ".work/plan":
        (tmp_path / ".work").rmdir()
    assert find_splits(tmp_path).keys() == {"train", "eval"}, "records of another program"


def test_a_path_that_is_too_long_is_not_there(tmp_path: Path) -> None:
    name = str(tmp_path / ("x" * 5000))
    with pytest.raises(DataError, match="no such data set folder"):
        find_splits(name)
    with pytest.raises(DataError, match="no such annotation file"):
        given_splits({"train": (name, str(tmp_path))})
