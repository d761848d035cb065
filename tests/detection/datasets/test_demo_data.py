import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as rle_masks
from pycocotools.coco import COCO

from detection.datasets import demo_data
from detection.datasets.annotations.annotation_file import index_annotations
from detection.datasets.demo_data import CANVAS, make_demo_data
from detection.datasets.layouts import find_splits
from schemas.errors import DataError

TRAIN, EVAL = 24, 8


def _digests(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _entries(root: Path, split: str) -> list[dict[str, Any]]:
    annotations = json.loads((root / f"annotations/instances_{split}.json").read_text())["annotations"]
    assert isinstance(annotations, list)
    return annotations


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data") / "demo"
    make_demo_data(directory, train_images=TRAIN, eval_images=EVAL, seed=3)
    return directory


def test_it_is_a_data_set_like_any_other(demo: Path) -> None:
    splits = find_splits(demo)
    assert {name: Path(str(files.images)).name for name, files in splits.items()} == {"train": "train", "eval": "val"}
    for name, count in (("train", TRAIN), ("eval", EVAL)):
        read = index_annotations(splits[name].annotations)
        assert len(read.images) == count
        assert [(entry["id"], entry["name"]) for entry in read.categories] == [(n + 1, str(n)) for n in range(10)]
        assert all(1 <= len(group) <= demo_data.MAX_DIGITS for _, group in read.entries())
        for image, _ in read.entries():
            with Image.open(Path(str(splits[name].images), image["file_name"])) as picture:
                assert picture.size == (image["width"], image["height"]) == (CANVAS, CANVAS)
    assert {path.suffix for path in (demo / "train").iterdir()} == {".jpg", ".png"}


@pytest.mark.parametrize("split", ["train", "val"])
def test_boxes_and_areas_are_those_of_the_masks(demo: Path, split: str) -> None:
    coco = COCO(demo / f"annotations/instances_{split}.json")
    assert coco.anns
    for entry in coco.anns.values():
        rle = coco.annToRLE(entry)
        assert rle_masks.toBbox(rle).tolist() == entry["bbox"]
        assert float(rle_masks.area(rle)) == entry["area"]
        assert entry["iscrowd"] == 0


def test_masks_of_an_image_are_disjoint_and_stand_out(demo: Path) -> None:
    coco = COCO(demo / "annotations/instances_train.json")
    for image in coco.imgs.values():
        masks = np.stack([coco.annToMask(entry) for entry in coco.imgToAnns[image["id"]]])
        assert masks.sum(0).max() == 1
        with Image.open(demo / "train" / image["file_name"]) as picture:
            grey = np.asarray(picture.convert("L"), float)
        background = np.median(grey[masks.sum(0) == 0])
        assert all(abs(np.median(grey[mask > 0]) - background) > 30 for mask in masks)


def test_equal_seeds_give_equal_files_and_others_do_not(demo: Path, tmp_path: Path) -> None:
    make_demo_data(tmp_path / "again", train_images=TRAIN, eval_images=EVAL, seed=3)
    assert _digests(tmp_path / "again") == _digests(demo)
    make_demo_data(tmp_path / "other", train_images=1, eval_images=1, seed=4)
    assert _entries(tmp_path / "other", "train") != _entries(demo, "train")[:1]


def test_the_handwriting_of_eval_is_not_in_train() -> None:
    train, held_out = demo_data._samples(3)
    assert len(train.values) + len(held_out.values) == 1797
    assert len(np.unique(np.concatenate([train.images, held_out.images]).reshape(1797, -1), axis=0)) == 1797


def test_what_is_there_and_complete_is_not_written_again(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    make_demo_data(directory, train_images=2, eval_images=1)
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    make_demo_data(directory, train_images=2, eval_images=1)
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before

    digests = _digests(directory)
    (directory / "train/000002.png").unlink()
    make_demo_data(directory, train_images=2, eval_images=1)
    assert _digests(directory) == digests

    make_demo_data(directory, train_images=1, eval_images=1)
    assert [path.name for path in (directory / "train").iterdir()] == ["000001.jpg"]
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match="exists and is not the demo data"):
        make_demo_data(tmp_path, train_images=1, eval_images=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(DataError, match="cannot write: "):
        make_demo_data(tmp_path / "mine.txt" / "demo", train_images=1, eval_images=1)
