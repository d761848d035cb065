import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from components.beam.progress import ImageCounter
from components.coco_example_gen import shards
from components.coco_example_gen.shards import read_results, write_plans, write_shard
from components.coco_example_gen.sources import CocoSource
from components.coco_example_gen.spans.fingerprint import data_state, fingerprint
from detection.datasets.annotations.annotation_file import index_annotations
from detection.datasets.annotations.packed_entries import unpack_entries
from detection.datasets.encode_record import Rules
from detection.datasets.groups import group_of
from detection.datasets.layouts import find_splits
from detection.datasets.sampling import hash_fraction, key_hash
from detection.datasets.splits import Division, SplitFiles
from schemas import features
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from schemas.errors import DataError
from tests.components.coco_example_gen.data_set import write_data_set


def _records(path: Path) -> list[tf.train.Example]:
    return [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]


def _value(example: tf.train.Example, key: str) -> bytes:
    [value] = example.features.feature[key].bytes_list.value
    assert isinstance(value, bytes)
    return value


def _convert(splits: Mapping[str, SplitFiles], out: Path) -> dict[str, shards.SplitResult]:
    names = {4: "cat", 2: "dog", 9: "none of these"}
    rules = Rules(policies=IssuePolicies({}), max_pixels=MAX_PIXELS, category_names=names, keypoints={})
    work = out / "work"
    work.mkdir(parents=True)
    sources = {name: CocoSource(files, index_annotations(files.annotations)) for name, files in splits.items()}
    plans = write_plans(sources, rules, records=out, work=work)
    counter = ImageCounter(str(work / "progress"))
    for paths in plans.values():
        for path in reversed(paths):
            write_shard(path, counter)
            write_shard(path, counter)  # as after a failure
    return {name: read_results(paths) for name, paths in plans.items()}


def _bytes(out: Path) -> dict[str, bytes]:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in sorted(out.glob("Split-*/*"))}


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 4)


def test_every_image_is_in_one_record_of_a_shuffled_shard(tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", images=10)
    results = _convert(find_splits(tmp_path / "data"), tmp_path / "out")
    written = _bytes(tmp_path / "out")
    assert list(written) == [
        "Split-eval/data_tfrecord-00000-of-00001",
        *(f"Split-train/data_tfrecord-0000{number}-of-00003" for number in range(3)),
    ]
    ids = [
        int(_value(example, features.SOURCE_ID))
        for name in list(written)[1:]
        for example in _records(tmp_path / "out" / name)
    ]
    assert sorted(ids) == list(range(1, 11))
    assert ids != sorted(ids)
    assert (results["train"].images, results["train"].annotations, results["train"].issues) == (10, 20, [])
    assert (results["eval"].images, results["eval"].annotations, results["eval"].issues) == (1, 2, [])
    assert [image.image_id for image in results["train"].seen] == ids


def test_equal_data_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_data_set(tmp_path / name, images=6)
        _convert(find_splits(tmp_path / name), tmp_path / f"{name}.out")
    assert _bytes(tmp_path / "a.out") == _bytes(tmp_path / "b.out")


def test_records_hold_the_files_and_the_entries(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_data_set(root)
    _convert(find_splits(root), tmp_path / "out")
    tree = json.loads((root / "annotations/instances_val.json").read_text())
    [example] = _records(tmp_path / "out/Split-eval/data_tfrecord-00000-of-00001")
    assert unpack_entries(_value(example, features.COCO)) == (tree["images"][0], tree["annotations"])
    assert _value(example, features.ENCODED) == (root / "images/val/0/100.png").read_bytes()
    assert list(example.features.feature[features.CLASS_TEXT].bytes_list.value) == [b"cat", b"dog"]


def test_issues_come_with_the_result(tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", broken=True)
    result = _convert(find_splits(tmp_path / "data"), tmp_path / "out")["train"]
    assert (result.images, result.annotations) == (4, 8)
    assert {(issue.kind, issue.image_id, issue.annotation_id) for issue in result.issues} == {
        ("box_outside", 1, 2),
        ("image_missing", 2, None),
    }


def test_one_file_is_divided(tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", images=30)
    (tmp_path / "data/annotations/instances_val.json").unlink()
    splits = find_splits(tmp_path / "data", Division(eval_fraction=0.3))
    results = _convert(splits, tmp_path / "out")
    images = json.loads((tmp_path / "data/annotations/instances_train.json").read_text())["images"]
    in_eval = sum(hash_fraction(key_hash(group_of(image))) < 0.3 for image in images)
    assert (results["train"].images, results["eval"].images) == (30 - in_eval, in_eval)


def test_a_split_without_images_is_refused(tmp_path: Path) -> None:
    write_data_set(tmp_path / "data", images=1)
    splits = find_splits(tmp_path / "data")
    nothing = replace(splits["train"], hash_range=(0.0, 0.0))
    with pytest.raises(DataError, match=r"no image for the split train\. Add images: one image, or copies of one"):
        _convert({"train": nothing}, tmp_path / "out")
    (tmp_path / "data/empty.json").write_text('{"images": [], "annotations": [], "categories": []}')
    empty = replace(splits["train"], annotations=str(tmp_path / "data/empty.json"))
    with pytest.raises(DataError, match=r"empty\.json: no image for the split test\. Add images"):
        _convert({"test": empty}, tmp_path / "out2")


def test_the_fingerprint_follows_the_files_that_are_used(tmp_path: Path) -> None:
    write_data_set(tmp_path)
    splits = find_splits(tmp_path).values()
    (tmp_path / "images/train/0/notes.txt").write_text("not used")
    first = fingerprint(splits)
    (tmp_path / "images/train/0/notes.txt").write_text("still not used")
    assert fingerprint(splits) == first

    annotations = tmp_path / "annotations/instances_val.json"
    before, text = annotations.stat(), annotations.read_text()
    annotations.write_text(text)
    assert fingerprint(splits) == first
    corrected = text.replace("1", "2", 1)
    annotations.write_text(corrected)
    os.utime(annotations, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert annotations.stat()[6:9] == before[6:9]
    seen = {first, fingerprint(splits)}
    annotations.write_text(text)
    picture = tmp_path / "images/train/1/3.png"
    picture.write_bytes(picture.read_bytes() + b"\0")
    seen.add(fingerprint(splits))
    picture.unlink()
    seen.add(fingerprint(splits))
    annotations.write_text(text + " ")
    seen.add(fingerprint(splits))
    (tmp_path / "annotations/person_keypoints_val.json").write_text("{}")
    seen.add(fingerprint(find_splits(tmp_path).values()))
    assert len(seen) == 6


def test_the_size_is_that_of_the_files_that_the_records_hold(tmp_path: Path) -> None:
    write_data_set(tmp_path)
    (tmp_path / "images/train/0/notes.txt").write_text("not used")
    splits = find_splits(tmp_path)
    used = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "notes.txt"]
    assert data_state(splits.values()).size == sum(path.stat().st_size for path in used)
    half = replace(splits["train"], hash_range=(0.0, 0.5))
    assert data_state([half])[:2] == (fingerprint([splits["train"]]), 0), "of a part, the size is not known"


def test_the_fingerprint_takes_any_name_that_json_can_hold(tmp_path: Path) -> None:
    """The checks of the data tell of such names, and leave their images out."""
    write_data_set(tmp_path)
    path = tmp_path / "annotations/instances_train.json"
    tree = json.loads(path.read_text())
    names = ["null\0.png", "half \ud800.png", "caf\udce9.png", "x" * 5000, "", "/", "..", "\n"]
    tree["images"] += [{"id": 1000 + number, "file_name": name} for number, name in enumerate(names)]
    path.write_text(json.dumps(tree))
    splits = find_splits(tmp_path).values()
    first = fingerprint(splits)
    assert fingerprint(splits) == first
