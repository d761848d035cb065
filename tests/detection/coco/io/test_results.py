"""Rows to a results file and back; detections in sorted files, merged into one results file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.coco.io import results
from detection.coco.io.results import Block, blocks_of, merge_blocks, write_blocks, write_list, write_results


def rows(seed: int, image_ids: list[int]) -> Any:
    """Detections of images in random order, three each on average."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(0, 100, (3 * len(image_ids), 7))
    drawn[:, 0], drawn[:, 6] = rng.choice(image_ids, len(drawn)), rng.integers(1, 9, len(drawn))
    return drawn


@pytest.mark.parametrize("open_files", [2, 3, 256])
def test_merged_files_are_the_whole_sorted(tmp_path: Path, open_files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_FILES", open_files)
    ids = [int(i) for i in np.random.default_rng(0).permutation(200) * 3 + 2**52]
    partitions = [rows(number, ids[number::7]) for number in range(7)]
    paths = [str(tmp_path / f"blocks-{number}") for number in range(7)]
    for path, partition in zip(paths, partitions, strict=True):
        write_blocks(path, sorted(blocks_of(partition)))
    with (tmp_path / "merged.json").open("wb") as file:
        write_list(file, (block.text for block in merge_blocks(paths, tmp_path)))
    whole = np.concatenate(partitions)
    write_results(tmp_path / "whole.json", whole[np.argsort(whole[:, 0], kind="stable")])
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_results_are_kept_as_they_are() -> None:
    results = [
        {"image_id": 2, "category_id": 1, "score": 0.1, "segmentation": {"size": [2, 2], "counts": 'a"\\é'}},
        {"image_id": 1, "category_id": 1, "score": 1e-300, "keypoints": [0.1] * 51},
        {"image_id": 2, "category_id": 3, "score": 0.1, "segmentation": [[1, 2.5]], "more": None},
    ]
    blocks = blocks_of(results)
    assert [block.image_id for block in blocks] == [2, 1]
    assert json.loads(b"[%b]" % blocks[0].text) == [results[0], results[2]]
    with pytest.raises(ValueError, match="not JSON compliant"):
        blocks_of([{"image_id": 1, "score": float("nan")}])


def test_without_detections(tmp_path: Path) -> None:
    assert blocks_of(np.zeros((0, 7))) == []
    assert list(merge_blocks([], tmp_path)) == []
    write_blocks(tmp_path / "empty", [])
    assert list(merge_blocks([str(tmp_path / "empty")], tmp_path)) == []
    assert Block(1, b"x") < Block(2, b"a")


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
