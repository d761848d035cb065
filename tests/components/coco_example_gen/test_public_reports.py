"""Inputs rebuilt after public bug reports, each one of a kind: read as what they mean, or told; never "no issues"."""

import gzip
import json
from pathlib import Path

import pytest

from components.coco_example_gen.check_data import check_data, print_examination
from detection.datasets.layouts import find_splits
from schemas.config.config_io import load_config
from schemas.errors import DataError
from tests.components.coco_example_gen.data_set import write_data_set

# Case -> exit code, kinds of issues with their policy, and what is printed.
CASES: dict[str, tuple[int, set[tuple[str, str]], str]] = {
    "reports/02-every-object-a-crowd/data": (1, set(), "train has no annotation besides 24 crowds"),
    "reports/04-exif-half-turn/data": (3, {("image_tagged", "keep")}, "boxes refer to the stored pixels"),
    "reports/06-boxes-as-fractions/data": (1, {("box_fractions", "fail"), ("category_empty", "keep")}, "fractions"),
    "reports/08-empty-export/data": (1, set(), "there is no category"),
    "reports/09-no-split-train/data": (0, set(), "Yes, you can train on this: no issues"),
    "reports/13-names-from-elsewhere/data": (0, set(), "images were found by their names"),
    "reports2/01-thermal-pictures/thermal": (3, {("image_contrast", "keep")}, "2 of 256 levels are left"),
    "reports2/01-thermal-pictures/twelve_bits": (3, {("image_contrast", "keep")}, "of 256 levels are left"),
    "reports2/01-thermal-pictures/sixteen_bits": (0, set(), "no issues"),
    "reports2/03-objects-to-ignore/data": (3, {("ignored", "fix")}, "treated like a crowd"),
    "reports2/04-no-keypoint-counted/data": (3, {("keypoints_count", "fix")}, "but 3 keypoints are labelled"),
    "reports2/08-one-name-in-two-spellings/data": (3, {("category_alike", "keep")}, "('bar') and 4 ('bar ')"),
    "reports2/14-polygons-as-pairs/pairs": (3, {("mask_broken", "fix")}, "a list x, y of its own"),
    "reports2/14-polygons-as-pairs/two_corners": (3, {("mask_broken", "fix")}, "so there is no mask"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_told(shared_data: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, kinds, said = CASES[case]
    config = load_config(shared_data / "folders/small.yaml", [f"data.root={json.dumps(str(shared_data / case))}"])
    examination = check_data(config, None)
    assert print_examination(examination, config) == code
    assert {(issue.kind, issue.policy) for issue in examination.all_issues} == kinds
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_detector_of_masks_is_told_that_there_are_none(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = shared_data / "reports2/14-polygons-as-pairs/two_corners"
    config = load_config(shared_data / "reports2/mask.yaml", [f"data.root={json.dumps(str(root))}"])
    assert print_examination(check_data(config, None), config) == 1
    assert "No, you cannot train on this: the detector learns masks, and train has none" in capsys.readouterr().out


def test_names_of_keypoints_may_be_numbers(shared_data: Path) -> None:
    root = shared_data / "reports2/02-left-eye-in-one-word/numbers"
    config = load_config(shared_data / "reports2/keypoints.yaml", [f"data.root={json.dumps(str(root))}"])
    examination = check_data(config, None)
    assert print_examination(examination, config) == 0
    assert [one["keypoints"] for one in examination.dataset["categories"]] == [["1", "2", "3"]] * 2


def test_pairs_are_read_as_the_polygons_that_they_are(shared_data: Path) -> None:
    root = shared_data / "reports2/14-polygons-as-pairs/pairs"
    config = load_config(shared_data / "folders/small.yaml", [f"data.root={json.dumps(str(root))}"])
    assert {result.summary.masks for result in check_data(config, None).results.values()} == {16, 8}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04rest", "this is a ZIP archive"),
        (gzip.compress(b"{}", mtime=0), "this is a gzip file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "this is a Git LFS pointer"),
    ],
)
def test_what_is_named_json_and_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    write_data_set(tmp_path)
    (tmp_path / "annotations/instances_train.json").write_bytes(content)
    config = load_config(None, [f"data.root={json.dumps(str(tmp_path))}"])
    with pytest.raises(DataError, match=message):
        check_data(config, None)


@pytest.mark.parametrize("name", ["Train", "training", "trainval", "TRAIN"])
def test_names_of_the_training_split(tmp_path: Path, name: str) -> None:
    write_data_set(tmp_path)
    annotations = tmp_path / "annotations"
    (annotations / "instances_train.json").rename(annotations / f"instances_{name}.json")
    (annotations / "instances_val.json").rename(annotations / "instances_Validate.json")
    assert find_splits(tmp_path).keys() == {"train", "eval"}
