import json
import re
from pathlib import Path

import pytest

from detection.coco.layouts import SplitFiles, find_splits, given_splits, id_fraction
from schemas.errors import DataError


def _data_set(root: Path, files: dict[str, str], images: tuple[str, ...] = ()) -> None:
    """Writes annotation files that name one image each, and image files."""
    for name, file_name in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"images": [{"id": 1, "file_name": file_name}]}))
    for image in images:
        (root / image).parent.mkdir(parents=True, exist_ok=True)
        (root / image).touch()


def _found(root: Path) -> dict[str, tuple[str, str]]:
    splits = find_splits(root, eval_fraction=0.1)
    return {
        name: (str(Path(files.annotations).relative_to(root)), str(Path(files.images).relative_to(root)))
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
    assert _found(tmp_path) == expected


def test_keypoints_beside_the_instances_are_found(tmp_path: Path) -> None:
    names = ["instances_train2017", "instances_val2017", "person_keypoints_val2017"]
    _data_set(tmp_path, {f"annotations/{name}.json": "a.jpg" for name in names})
    splits = find_splits(tmp_path, eval_fraction=0.1)
    assert splits["train"].keypoints is None
    assert splits["eval"].keypoints == str(tmp_path / "annotations/person_keypoints_val2017.json")
    annotations, images = splits["eval"].annotations, splits["eval"].images
    assert given_splits({"test": (annotations, images)}, eval_fraction=0.1) == {"test": splits["eval"]}


def test_only_one_file_is_divided_by_the_id() -> None:
    low, high = SplitFiles("a", "b", None, (0.0, 0.25)), SplitFiles("a", "b", None, (0.25, 1.0))
    assert all(low.holds(number) != high.holds(number) for number in range(-50, 4000))
    assert sum(low.holds(number) for number in range(4000)) == pytest.approx(1000, abs=90)
    assert SplitFiles("a", "b").holds(5)
    # Fixed for good: other figures would move images of existing data sets to the other split.
    assert id_fraction(1) == pytest.approx(0.42002406436877493, abs=1e-12)


def test_a_train_file_alone_gives_train_and_eval(tmp_path: Path) -> None:
    _data_set(tmp_path, {"instances_train.json": "a.jpg"})
    splits = find_splits(tmp_path, eval_fraction=0.2)
    assert {name: files.hash_range for name, files in splits.items()} == {"train": (0.2, 1.0), "eval": (0.0, 0.2)}


def test_an_unknown_folder_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent: no such data set folder\. Check --data"):
        find_splits(tmp_path / "absent", eval_fraction=0.1)
    with pytest.raises(DataError, match="no COCO data set recognised") as caught:
        find_splits(tmp_path, eval_fraction=0.1)
    for part in (str(tmp_path), "_annotations.coco.json", "--set data.splits.train.annotations=FILE"):
        assert part in str(caught.value)


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    _data_set(tmp_path, {"instances_train2014.json": "a.jpg", "instances_train2017.json": "a.jpg"})
    message = r"train2014\.json and .*train2017\.json are both the split train.*data\.splits\.train\.annotations"
    with pytest.raises(DataError, match=message):
        find_splits(tmp_path, eval_fraction=0.1)


def test_splits_said_outright(tmp_path: Path) -> None:
    _data_set(tmp_path, {"my.json": "a.jpg", "your.json": "b.jpg"}, ("x/a.jpg", "y/b.jpg"))
    my, your, x, y = (str(tmp_path / name) for name in ("my.json", "your.json", "x", "y"))
    splits = given_splits({"train": (my, x), "val": (your, y), "night": (your, x)}, eval_fraction=0.1)
    assert splits == {"train": SplitFiles(my, x), "eval": SplitFiles(your, y), "night": SplitFiles(your, x)}


@pytest.mark.parametrize(
    ("name", "annotations", "images", "message"),
    [
        ("train", "absent.json", ".", "absent.json: no such annotation file. Check data.splits.train.annotations"),
        ("train", "my.json", "absent", "absent: no such image folder. Check data.splits.train.images"),
        ("a/b", "my.json", ".", "data.splits.a/b: a split's name is made of letters"),
    ],
)
def test_wrong_outright_splits_are_named(
    tmp_path: Path, name: str, annotations: str, images: str, message: str
) -> None:
    _data_set(tmp_path, {"my.json": "a.jpg"})
    with pytest.raises(DataError, match=re.escape(message)):
        given_splits({name: (str(tmp_path / annotations), str(tmp_path / images))}, eval_fraction=0.1)
