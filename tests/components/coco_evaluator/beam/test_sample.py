"""The records that workers keep for the analysis."""

import random
from pathlib import Path

import apache_beam as beam
import pytest

from components.coco_evaluator.beam import sample as sample_files
from components.coco_evaluator.beam.sample import SampleChoice, SampleRecords, keep_sample
from detection.analysis.instances import sample_ids
from detection.coco.io.blocks import Block, write_blocks
from detection.datasets.encode_record import encode_example
from detection.images.inspect import inspect_image
from detection.storage.atomic import write_text
from detection.storage.paths import join
from tests.components.coco_evaluator.generated_records import NAMES
from tests.detection.fake_detector import write_images
from tests.storage_emulator.fixture import Bucket


@pytest.mark.parametrize(("count", "of"), [(1, 5_000), (50, 5_000), (4_900, 5_000), (5_000, 5_000), (9_000, 5_000)])
@pytest.mark.parametrize("seed", range(4))
def test_a_choice_holds_the_sample_and_little_else(count: int, of: int, seed: int) -> None:
    ids = range(0, 7 * of, 7)
    choice = SampleChoice(count, of, seed)
    held = {image_id for image_id in ids if choice.holds(image_id)}
    assert held >= set(sample_ids(ids, count, seed))
    assert len(held) <= min(of, count + 16 * count**0.5)


@pytest.mark.parametrize("remote", [False, True])
def test_what_is_kept_is_read(tmp_path: Path, gcs: Bucket, remote: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_files, "_FILE_BYTES", 1_000)
    kept = f"{gcs.path}/kept" if remote else str(tmp_path / "kept")
    entries = write_images(tmp_path / "images", 9)
    boxes = [{"id": entry["id"], "image_id": entry["id"], "category_id": 7, "bbox": [1, 2, 3, 4]} for entry in entries]
    ground_truth = {box["image_id"]: [box] for box in boxes}
    records = {
        entry["id"]: encode_example(
            inspect_image((tmp_path / "images" / entry["file_name"]).read_bytes(), max_pixels=10_000),
            entry,
            ground_truth[entry["id"]],
            category_names=NAMES,
        ).SerializeToString()
        for entry in entries
    }
    choice = SampleChoice(4, len(entries), seed=1)
    shuffled = random.Random(0).sample(list(records.values()), len(records))
    with beam.Pipeline() as pipeline:
        # As where a bundle is tried again.
        pipeline | beam.Create([*shuffled, *shuffled[:3]]) | keep_sample(choice, kept)
    write_text(join(kept, ".unfinished.tmp"), "of a killed worker")
    sample = SampleRecords(choice, kept)
    ids = sample_ids(records, 4, 1)
    assert sorted(sample.image_ids) == ids
    by_id = {entry["id"]: entry for entry in entries}
    assert sample.ground_truth([{"id": 7}]) == {
        "images": [by_id[image_id] for image_id in ids],
        "annotations": [ground_truth[image_id][0] for image_id in ids],
        "categories": [{"id": 7}],
    }
    assert list(sample.records()) == [records[image_id] for image_id in ids]
    picture = sample.picture(ids[0])
    assert picture is not None
    assert picture.size == (by_id[ids[0]]["width"], by_id[ids[0]]["height"])


def test_a_picture_that_pillow_cannot_read(tmp_path: Path) -> None:
    [entry] = write_images(tmp_path / "images", 1)
    file = inspect_image((tmp_path / "images" / entry["file_name"]).read_bytes(), max_pixels=10_000)
    example = encode_example(file._replace(data=file.data[:60]), entry, [], category_names=NAMES)
    write_blocks(tmp_path / "kept" / "file", [Block(entry["id"], example.SerializeToString())])
    assert SampleRecords(SampleChoice(1, 1, 0), tmp_path / "kept").picture(entry["id"]) is None


def test_no_image_no_sample(tmp_path: Path) -> None:
    assert not SampleRecords(SampleChoice(5, 0, 0), tmp_path / "none").image_ids
