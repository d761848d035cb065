"""`to-coco` as a user calls it."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from detection.datasets.annotations.packed_entries import pack_entries
from pipelines.commands import to_coco
from schemas import features
from schemas.artifacts import DATASET_JSON, split_dir
from schemas.errors import ConfigError, DataError
from tests.detection.datasets.importers.builders import automl_record, encoded_image, example, write_shard

DATASET: dict[str, Any] = {
    "info": {"year": 2024},
    "licenses": [{"id": 1}],
    "categories": [
        {"id": 3, "name": "dog", "skeleton": [[1, 2]]},
        {"id": 17, "name": "cat"},
        {"id": 90, "name": "eel"},
    ],
}


def call(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    to_coco.add_arguments(parser)
    return to_coco.run(parser.parse_args([str(argument) for argument in arguments]))


def own_record(image: dict[str, Any], annotations: list[dict[str, Any]]) -> bytes:
    return example(
        {
            features.ENCODED: encoded_image(4, 6, seed=image["id"] % 100),
            features.FORMAT: "png",
            features.COCO: pack_entries(image, annotations),
        }
    )


def write_examples(root: Path, splits: dict[str, dict[str, Any]], *, shards: int = 2) -> Path:
    """An Examples artifact of COCO trees, images in reverse order."""
    for split, tree in splits.items():
        records = []
        for image in reversed(tree["images"]):
            mine = [each for each in tree["annotations"] if each["image_id"] == image["id"]]
            records.append(own_record(image, list(reversed(mine))))
        for number in range(shards):
            write_shard(root / split_dir(split) / f"data-{number:05d}-of-{shards:05d}", records[number::shards])
    categories = next(iter(splits.values())).get("categories", DATASET["categories"])
    (root / DATASET_JSON).write_text(json.dumps(DATASET | {"categories": categories}))
    return root


def tree_of(ids: Iterable[int], first_annotation: int) -> dict[str, Any]:
    images = [{"license": 1, "id": each, "file_name": f"sub/{each}.png", "height": 4, "width": 6} for each in ids]
    annotations = [
        {
            "area": 0.1 + 0.2,
            "id": first_annotation + number,
            "image_id": image["id"],
            "category_id": 17,
            "bbox": [1, 2.0, 1 / 3, 1e-9],
            "segmentation": {"counts": [0, 24], "size": [4, 6]},
            "iscrowd": 1,
        }
        for number, image in enumerate(images[1:] + images[1:])
    ]
    return {**DATASET, "images": images, "annotations": annotations}


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    train, val = tree_of([2, 30, 2**40], 5), tree_of([7, 8], 900100204805)
    return write_examples(tmp_path / "examples", {"train": train, "eval": val}), train, val


def test_our_examples_come_back_as_they_were(
    own: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    examples, train, val = own
    out = tmp_path / "out"
    call("--examples", examples, "--output", out / "back.json", "--images", out / "images")
    content = json.loads((out / "back_train.json").read_text())
    assert content == train
    assert list(content) == list(train)
    assert list(content["images"][0]) == list(train["images"][0])
    assert json.loads((out / "back_eval.json").read_text()) == val
    for image in [*train["images"], *val["images"]]:
        assert (out / "images" / image["file_name"]).read_bytes() == encoded_image(4, 6, seed=image["id"] % 100)
    assert sorted(path.name for path in out.iterdir()) == ["back_eval.json", "back_train.json", "images"]
    assert capfd.readouterr().out.splitlines() == [
        f"{out}/back_eval.json: 2 images, 2 annotations",
        f"{out}/back_train.json: 3 images, 4 annotations",
        f"{out}/images: 5 image files",
    ]


@pytest.mark.parametrize(
    "file",
    [
        "raccoon/instances_val.json",
        "dali_masks/instances_train.json",
        "dali_masks/pixelwise_instances.json",
        "coco2017_ccby/instances_val.json",
        "coco2017_ccby/person_keypoints_val.json",
    ],
)
def test_real_entries_come_back_to_the_last_bit(shared_data: Path, tmp_path: Path, file: str) -> None:
    source = json.loads((shared_data / file).read_text())
    examples = write_examples(tmp_path / "examples", {"val": source}, shards=3)
    call("--examples", examples, "--output", tmp_path / "back.json")
    content = json.loads((tmp_path / "back.json").read_text())
    for key in ("images", "annotations"):
        # As text: == holds 1 and 1.0 for equal.
        expected = [json.dumps(entry) for entry in sorted(source[key], key=lambda entry: entry["id"])]
        assert [json.dumps(entry) for entry in content[key]] == expected


def test_one_split_is_the_file_itself(own: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    examples, _, val = own
    call("--examples", examples, "--split", "eval", "--output", tmp_path / "back.json")
    assert json.loads((tmp_path / "back.json").read_text()) == val
    assert not (tmp_path / "back_eval.json").exists()


def test_a_pattern_finds_our_dataset_file(own: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    examples, train, _ = own
    call("--examples", examples / "Split-train" / "data-*", "--output", tmp_path / "back.json")
    assert json.loads((tmp_path / "back.json").read_text()) == train


def test_our_records_without_the_dataset_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    image = {"id": 4, "file_name": "a.png"}
    record = automl_record(4, coco__annotations=pack_entries(image, []))
    call("--examples", write_shard(tmp_path / "s", [record]), "--output", tmp_path / "back.json")
    content = json.loads((tmp_path / "back.json").read_text())
    assert content["images"] == [image]
    assert content["categories"] == [{"id": 3, "name": "dog"}, {"id": 17, "name": "cat"}]
    assert "source:" not in capfd.readouterr().out


def test_an_artifact_with_an_empty_split(tmp_path: Path) -> None:
    nothing = {**DATASET, "images": [], "annotations": []}
    examples = write_examples(tmp_path / "examples", {"test": nothing})
    call("--examples", examples, "--output", tmp_path / "back.json")
    assert json.loads((tmp_path / "back.json").read_text()) == nothing


def test_records_of_other_tools_with_a_report(
    shared_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = shared_data / "coco2017_ccby"
    call(
        *("--examples", shared_data / "tfrecords/coco2017_ccby_odapi", "--output", tmp_path / "back.json"),
        *("--label-map", source / "instances_val.json", "--images", tmp_path / "images"),
    )
    content = json.loads((tmp_path / "back.json").read_text())
    original = json.loads((source / "instances_val.json").read_text())
    assert [image["id"] for image in content["images"]] == sorted(image["id"] for image in original["images"])
    assert [each["id"] for each in content["annotations"]] == list(range(1, 264))
    by_image = [(each["image_id"], *each["bbox"], each["category_id"]) for each in content["annotations"]]
    assert sorted(by_image) == sorted(
        (each["image_id"], *each["bbox"], each["category_id"]) for each in original["annotations"]
    )
    for image in original["images"]:
        name = image["file_name"]
        assert (tmp_path / "images" / name).read_bytes() == (source / "images" / name).read_bytes()
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "source:     TF Object Detection API (od_api)"
    assert lines[-2:] == [f"{tmp_path}/back.json: 25 images, 263 annotations", f"{tmp_path}/images: 25 image files"]


def test_splits_of_other_tools_share_ids_and_categories(tmp_path: Path) -> None:
    for number, split in enumerate(("a", "b")):
        record = automl_record("x", seed=number, image__object__class__label=None, objects=number + 1)
        write_shard(tmp_path / "tfx" / split_dir(split) / "data.gz", [record], compression="GZIP")
    call("--examples", tmp_path / "tfx", "--output", tmp_path / "back.json")
    trees = [json.loads((tmp_path / f"back_{split}.json").read_text()) for split in ("a", "b")]
    assert [[image["id"] for image in tree["images"]] for tree in trees] == [[1], [2]]
    assert [[each["id"] for each in tree["annotations"]] for tree in trees] == [[1], [2, 3]]
    assert trees[0]["categories"] == trees[1]["categories"] == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    call("--examples", tmp_path / "tfx", "--output", tmp_path / "only.json", "--split", "b")
    assert json.loads((tmp_path / "only.json").read_text()) == trees[1]


@pytest.mark.parametrize("name", ["../escaped.png", "/escaped.png", "a/../../b.png", "", ".", "nul\0.png"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: Any) -> None:
    shard = write_shard(tmp_path / "shards" / "s", [own_record({"id": 1, "file_name": name}, [])])
    (tmp_path / "shards" / DATASET_JSON).write_text(json.dumps(DATASET))
    with pytest.raises(DataError, match=r"s, record 0: file_name .* is outside of the folder"):
        call("--examples", shard, "--output", tmp_path / "out" / "x.json", "--images", tmp_path / "out" / "images")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_name_of_two_images_is_refused(tmp_path: Path) -> None:
    records = [own_record({"id": number, "file_name": name}, []) for number, name in ((1, "a.png"), (2, "./a.png"))]
    write_shard(tmp_path / "shards" / "s", records)
    (tmp_path / "shards" / DATASET_JSON).write_text(json.dumps(DATASET))
    with pytest.raises(DataError, match=r"s, record 1: file_name './a.png' is also the name of another"):
        call("--examples", tmp_path / "shards", "--output", tmp_path / "x.json", "--images", tmp_path / "images")
    assert not (tmp_path / "images").exists()


def test_a_name_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    write_shard(tmp_path / "shards" / "s", [own_record({"id": 1, "file_name": "n" * 300}, [])])
    (tmp_path / "shards" / DATASET_JSON).write_text(json.dumps(DATASET))
    with pytest.raises(DataError, match=r"record 0: cannot write the image 'nnn.*name too long"):
        call("--examples", tmp_path / "shards", "--output", tmp_path / "x.json", "--images", tmp_path / "images")


def test_an_image_folder_with_content_is_refused_at_once(
    own: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="--images requires a new or empty folder"):
        call("--examples", own[0], "--output", tmp_path / "x.json", "--images", own[0])
    with pytest.raises(ConfigError, match=r"x.json is in --images"):
        call("--examples", own[0], "--output", tmp_path / "new" / "x.json", "--images", tmp_path / "new")


def test_splits_that_are_not_there(own: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--split test: no such split in .*splits: eval, train"):
        call("--examples", own[0], "--output", tmp_path / "x.json", "--split", "test")
    shard = write_shard(tmp_path / "s", [automl_record()])
    for split in ("test", ""):
        with pytest.raises(ConfigError, match=r"no such split in .*there are no Split-<name> folders"):
            call("--examples", shard, "--output", tmp_path / "x.json", "--split", split)


@pytest.mark.parametrize(
    ("shard", "parts"),
    [
        ("broken/truncated_raccoon_test.record", ["truncated_raccoon_test.record: truncated after"]),
        ("broken/git_lfs_pointer.tfrecord", ["git_lfs_pointer.tfrecord: no TFRecord file but a Git LFS pointer"]),
        ("nowhere*", ["no TFRecord file there"]),
    ],
)
def test_what_cannot_be_read_is_one_message_and_leaves_nothing(
    shared_data: Path, tmp_path: Path, shard: str, parts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["to-coco", "--examples", str(shared_data / "tfrecords" / shard), "--output", str(tmp_path / "x.json")]
    assert pipeline_runner.main(arguments) == 1
    captured = capfd.readouterr()
    assert captured.err.startswith("error: ")
    assert all(part in captured.err for part in parts)
    assert list(tmp_path.iterdir()) == []
