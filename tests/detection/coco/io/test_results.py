"""Rows to a results file and back; detections in sorted files, merged into one results file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.coco.io import blocks
from detection.coco.io.blocks import Block, find_blocks, merge_blocks, write_blocks
from detection.coco.io.results import blocks_of, write_list, write_results
from detection.storage.files import read_range
from tests.storage_emulator.fixture import Bucket


def rows(seed: int, image_ids: list[int]) -> Any:
    """Detections of images in random order, three each on average."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(0, 100, (3 * len(image_ids), 7))
    drawn[:, 0], drawn[:, 6] = rng.choice(image_ids, len(drawn)), rng.integers(1, 9, len(drawn))
    return drawn


@pytest.mark.parametrize("open_files", [2, 3, 256])
def test_merged_files_are_the_whole_sorted(tmp_path: Path, open_files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_FILES", open_files)
    ids = [int(i) for i in np.random.default_rng(0).permutation(200) * 3 + 2**52]
    partitions = [rows(number, ids[number::7]) for number in range(7)]
    paths = [str(tmp_path / f"blocks-{number}") for number in range(7)]
    for path, partition in zip(paths, partitions, strict=True):
        write_blocks(path, sorted(blocks_of(partition)))
    with (tmp_path / "merged.json").open("wb") as file:
        write_list(file, (block.content for block in merge_blocks(paths, tmp_path)))
    whole = np.concatenate(partitions)
    write_results(tmp_path / "whole.json", whole[np.argsort(whole[:, 0], kind="stable")])
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_results_are_kept_as_they_are() -> None:
    results = [
        {"image_id": 2, "category_id": 1, "score": 0.1, "segmentation": {"size": [2, 2], "counts": 'a"\\é'}},
        {"image_id": 1, "category_id": 1, "score": 1e-300, "keypoints": [0.1] * 51},
        {"image_id": 2, "category_id": 3, "score": 0.1, "segmentation": [[1, 2.5]], "more": None},
    ]
    made = blocks_of(results)
    assert [block.image_id for block in made] == [2, 1]
    assert json.loads(b"[%b]" % made[0].content) == [results[0], results[2]]
    with pytest.raises(ValueError, match="not JSON compliant"):
        blocks_of([{"image_id": 1, "score": float("nan")}])


def test_without_detections(tmp_path: Path) -> None:
    assert blocks_of(np.zeros((0, 7))) == []
    assert list(merge_blocks([], tmp_path)) == []
    write_blocks(tmp_path / "empty", [])
    assert list(merge_blocks([str(tmp_path / "empty")], tmp_path)) == []
    assert Block(1, b"x") < Block(2, b"a")


@pytest.mark.parametrize("remote", [False, True])
def test_blocks_are_found_without_reading_them(tmp_path: Path, gcs: Bucket, remote: bool) -> None:
    path = f"{gcs.path}/blocks" if remote else str(tmp_path / "blocks")
    contents = {9: b"nine", 3: b"", 2**40: b"x" * 1000}
    write_blocks(path, [Block(*item) for item in contents.items()])
    places = dict(find_blocks(path))
    assert list(places) == list(contents)
    assert {image_id: read_range(*place) for image_id, place in places.items()} == contents


def test_too_many_remote_files_are_merged_beside_them(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_FILES", 2)
    paths = [f"{gcs.path}/work/{number}" for number in range(5)]
    for number, path in enumerate(paths):
        write_blocks(path, [Block(number, b"a"), Block(10 - number, b"b")])
    merged = [block.image_id for block in merge_blocks(paths, f"{gcs.path}/work")]
    assert merged == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_every_bit_survives(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((50, 7))
    rows[:, 0], rows[:, 6] = np.arange(50), 2**40
    write_results(tmp_path / "detections.json", rows)
    content = json.loads((tmp_path / "detections.json").read_text())
    back = [[r["image_id"], *r["bbox"], r["score"], r["category_id"]] for r in content]
    np.testing.assert_array_equal(np.array(back), rows)
    assert all(type(r["image_id"]) is type(r["category_id"]) is int for r in content)


def test_no_rows(tmp_path: Path) -> None:
    write_results(tmp_path / "detections.json", np.zeros((0, 7)))
    assert json.loads((tmp_path / "detections.json").read_text()) == []


def test_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float values"):
        write_results(tmp_path / "detections.json", np.full((1, 7), 1.0) * [1, np.nan, 1, 1, 1, 1, 1])
