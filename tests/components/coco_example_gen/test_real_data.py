"""Whole conversions of real data: nothing is lost, and old records become Examples."""

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from pycocotools.coco import COCO

from components.coco_example_gen.conversion import convert
from detection.datasets.layouts import find_splits
from detection.datasets.splits import Division, SplitFiles
from detection.images.decode import decode_rgb
from schemas import features
from schemas.config.config import DataConfig
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError
from tests.components.coco_example_gen.data_set import written_entries
from tests.detection.coco.generated_cases import pycocotools_eval

Rebuilt = dict[str, dict[str, Any]]


def _convert(splits: dict[str, SplitFiles], out: Path, **policies: str) -> Path:
    out.mkdir()
    convert(splits, out, DataConfig(on_fault=IssuePolicies.model_validate(policies)))
    return out


def _examples(out: Path) -> list[tuple[str, tf.train.Example]]:
    return [
        (folder.name.removeprefix("Split-"), tf.train.Example.FromString(record))
        for folder in sorted(out.glob("Split-*"))
        for shard in sorted(folder.iterdir())
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator()
    ]


def _value(example: tf.train.Example, key: str) -> bytes:
    value: bytes = example.features.feature[key].bytes_list.value[0]
    return value


def _rebuilt(out: Path) -> Rebuilt:
    """A COCO file of each split, entries by id."""
    head = json.loads((out / "dataset.json").read_text())
    trees: Rebuilt = {}
    for folder in sorted(out.glob("Split-*")):
        split = folder.name.removeprefix("Split-")
        entries = written_entries(out, split)
        trees[split] = {
            "images": sorted((image for image, _ in entries), key=itemgetter("id")),
            "annotations": sorted((one for _, some in entries for one in some), key=itemgetter("id")),
            "categories": head["categories"],
        }
    return trees


def _sorted(path: Path, key: str) -> list[dict[str, Any]]:
    return sorted(json.loads(path.read_text())[key], key=lambda entry: entry["id"])


@pytest.fixture(scope="module")
def ccby(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """The data set's folder and its Examples."""
    root = request.getfixturevalue("shared_data") / "coco2017_ccby"
    return root, _convert(find_splits(root), tmp_path_factory.mktemp("ccby") / "out")


@pytest.mark.parametrize("name", ["raccoon", "dali_masks"])
def test_converting_and_back_gives_the_same_annotations(shared_data: Path, tmp_path: Path, name: str) -> None:
    trees = _rebuilt(_convert(find_splits(shared_data / name), tmp_path / "out"))
    for split, file in (("train", "train"), ("eval", "val")):
        given = {key: _sorted(shared_data / name / f"instances_{file}.json", key) for key in ("images", "annotations")}
        for one in given["annotations"]:
            if one["area"] == 0:  # a polygon of two points is no mask, and its area that of no object
                assert max(map(len, one["segmentation"])) < 6
                one |= {"segmentation": [], "area": one["bbox"][2] * one["bbox"][3]}
        for key, entries in given.items():
            # As text: every float to the last bit, every field, in its order.
            assert json.dumps(trees[split][key]) == json.dumps(entries)


def test_coco_entries_come_back_with_keypoints_merged(ccby: tuple[Path, Path]) -> None:
    root, out = ccby
    trees = _rebuilt(out)
    for split, file in (("train", "train"), ("eval", "val")):
        persons = {entry["id"]: entry for entry in _sorted(root / f"person_keypoints_{file}.json", "annotations")}
        expected = _sorted(root / f"instances_{file}.json", "annotations")
        for entry in expected:
            entry.update(
                {key: persons[entry["id"]][key] for key in ("keypoints", "num_keypoints") if entry["id"] in persons}
            )
        assert json.dumps(trees[split]["annotations"]) == json.dumps(expected)
        assert json.dumps(trees[split]["images"]) == json.dumps(_sorted(root / f"instances_{file}.json", "images"))


def test_images_in_the_records_decode_as_pillow_decodes_the_files(ccby: tuple[Path, Path]) -> None:
    root, out = ccby
    for _, example in _examples(out):
        with Image.open(root / "images" / _value(example, features.FILENAME).decode()) as image:
            expected = np.asarray(image.convert("RGB"))
        np.testing.assert_array_equal(decode_rgb(tf.constant(_value(example, features.ENCODED))), expected)


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
def test_pycocotools_finds_the_rebuilt_ground_truth_equal(ccby: tuple[Path, Path], iou_type: str) -> None:
    root, out = ccby
    original = json.loads(
        (root / ("person_keypoints_val.json" if iou_type == "keypoints" else "instances_val.json")).read_text()
    )
    rebuilt = _rebuilt(out)["eval"]
    if iou_type == "keypoints":
        listed = {image["id"] for image in original["images"]}
        rebuilt["images"] = [image for image in rebuilt["images"] if image["id"] in listed]
        rebuilt["annotations"] = [entry for entry in rebuilt["annotations"] if "keypoints" in entry]
    detections = []
    generator = np.random.default_rng(0)
    for entry in original["annotations"]:
        shift = generator.normal(0, 4, 2)
        detection = {
            "image_id": entry["image_id"],
            "category_id": entry["category_id"],
            "score": float(generator.random()),
        }
        detection["bbox"] = [entry["bbox"][0] + shift[0], entry["bbox"][1] + shift[1], *entry["bbox"][2:]]
        if iou_type == "segm":
            detection["segmentation"] = COCO.annToRLE(_Sized(original), entry)
            del detection["bbox"]
        if iou_type == "keypoints":
            detection["keypoints"] = [value + generator.normal(0, 2) for value in entry["keypoints"]]
        detections.append(detection)
    expected = pycocotools_eval(original, detections, iou_type).stats.tolist()
    assert max(expected) > 0.3
    assert pycocotools_eval(rebuilt, detections, iou_type).stats.tolist() == expected


class _Sized:
    """What pycocotools' annToRLE asks of a data set: the images by id."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self.imgs = {image["id"]: image for image in tree["images"]}


def test_one_image_of_n_is_taken(shared_data: Path, tmp_path: Path) -> None:
    splits = find_splits(shared_data / "raccoon", Division(sample_1_of_n={"train": 7}))
    trees = _rebuilt(_convert(splits, tmp_path / "out"))
    assert {name: len(tree["images"]) for name, tree in trees.items()} == {"train": 23, "eval": 40}


def test_records_of_the_od_api_become_the_same_examples_as_their_source(
    ccby: tuple[Path, Path], shared_data: Path, tmp_path: Path
) -> None:
    pattern = str(shared_data / "tfrecords/coco2017_ccby_odapi/coco_val.record-*")
    out = tmp_path / "out"
    out.mkdir()
    convert(
        {"eval": SplitFiles(pattern, None)},
        out,
        DataConfig(label_map=str(shared_data / "coco2017_ccby/instances_val.json")),
    )
    imported, original = _rebuilt(out)["eval"], _rebuilt(ccby[1])["eval"]
    assert [image["id"] for image in imported["images"]] == [image["id"] for image in original["images"]]

    def boxes(tree: dict[str, Any]) -> list[tuple[Any, ...]]:
        return sorted(
            (entry["image_id"], entry["category_id"], entry["iscrowd"], *entry["bbox"]) for entry in tree["annotations"]
        )

    np.testing.assert_allclose(boxes(imported), boxes(original), atol=1e-9)
    encoded = {_value(example, features.SOURCE_ID): example for split, example in _examples(ccby[1]) if split == "eval"}
    for _, example in _examples(out):
        twin = encoded[_value(example, features.SOURCE_ID)]
        assert _value(example, features.ENCODED) == _value(twin, features.ENCODED)


def test_our_own_examples_come_through_an_import_unchanged(ccby: tuple[Path, Path], tmp_path: Path) -> None:
    out = _convert(find_splits(ccby[1]), tmp_path / "out")
    assert _rebuilt(out) == _rebuilt(ccby[1])
    assert json.loads((out / "dataset.json").read_text()) == json.loads((ccby[1] / "dataset.json").read_text())


@pytest.mark.parametrize("name", ["git_lfs_pointer.tfrecord", "truncated_raccoon_test.record"])
def test_broken_records_are_refused_and_nothing_is_left(shared_data: Path, tmp_path: Path, name: str) -> None:
    files = SplitFiles(str(shared_data / "tfrecords/broken" / name), None)
    with pytest.raises(Exception, match=name):
        _convert({"train": files}, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_awkward_images_become_records_as_their_manifest_says(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "nasty_images"
    entries = json.loads((folder / "manifest.json").read_text())["files"]
    images = [{"id": number, "file_name": entry["file"]} for number, entry in enumerate(entries)]
    path = tmp_path / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    splits = {"train": SplitFiles(str(path), str(folder))}
    with pytest.raises(DataError, match="32 issues in the data set"):
        _convert(splits, tmp_path / "strict")
    whole = dict.fromkeys(("image_broken", "image_huge"), "drop")
    for unsupported, expected in (("drop", {"accept"}), ("fix", {"accept", "accept_if_reencoded_else_skip"})):
        out = _convert(splits, tmp_path / unsupported, image_unsupported=unsupported, **whole)
        sizes = {}
        for _, example in _examples(out):
            pixels = decode_rgb(tf.constant(_value(example, features.ENCODED))).numpy()
            sizes[_value(example, features.FILENAME).decode()] = [pixels.shape[1], pixels.shape[0]]
        assert sizes == {
            entry["file"]: entry["observed"]["stored_size"] for entry in entries if entry["expect"] in expected
        }
        dropped = [json.loads(line)["image_id"] for line in (out / "quarantine.jsonl").read_text().splitlines()]
        assert {entries[number]["file"] for number in dropped} == {entry["file"] for entry in entries} - set(sizes)


def test_a_report_is_a_page(ccby: tuple[Path, Path]) -> None:
    page = (ccby[1] / "data_report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert page.count('<svg id="') > 3
