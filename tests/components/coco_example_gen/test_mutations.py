"""A thousand mutations of a valid COCO file: what they mean stays the same, or the user is told."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from components.coco_example_gen import examination
from components.coco_example_gen.examination import examine
from components.coco_example_gen.spans.dataset_files import files_of
from detection.datasets.annotations.packed_entries import unpack_entries
from detection.storage.tfrecord import find_shards, read_shard
from schemas import features
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError
from tests.components.coco_example_gen.mutations import SPLIT, Mutation, Tree, base_tree, mutations, write_images
from tests.components.coco_example_gen.without_beam import read_without_beam

# Other valid files: nothing in them says that something else was meant.
UNKNOWABLE = {
    "one of annotations: image_id scaled by 1.3",
    "one of annotations: image_id shifted by 1",
    "one of annotations: keypoints shifted by 20",
    "all of annotations: iscrowd dropped",
    "one of categories: name doubled",
    "second of categories: name doubled",
    "all of categories: name doubled",
    "one of categories: name and supercategory swapped",
    "second of categories: name and supercategory swapped",
}
TOLERANCE = 2.0  # pixels: tools round

Meaning = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(autouse=True)
def _without_beam(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(examination, "_read", read_without_beam)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_images(tmp_path / "data" / SPLIT, base_tree())
    (tmp_path / "data/annotations").mkdir()
    return tmp_path / "data"


def _examined(data: Path, tree: Tree, work: Path) -> tuple[list[str], Meaning]:
    """What the user is told, and what the records mean."""
    (data / f"annotations/instances_{SPLIT}.json").write_text(json.dumps(tree))
    config = load_config(None, [f"data.root={json.dumps(str(data))}"])
    splits = {SPLIT: files_of(config.data)[SPLIT]}
    found = examine(splits, config.data, work=work / "work", records=work / "records")
    told = [issue.kind for issue in found.all_issues] + [*found.notes, *found.reasons]
    return told, _meaning(work / f"records/Split-{SPLIT}", found.dataset["categories"])


def _meaning(folder: Path, categories: list[Mapping[str, Any]]) -> Meaning:
    """Objects by a digest of their image: category, crowd, keypoints' names, box, keypoints."""
    by_id = {category["id"]: category for category in categories}
    meaning: Meaning = {}
    for data in (record for shard in find_shards(folder) for record in read_shard(shard)):
        values = tf.train.Example.FromString(data).features.feature
        _, annotations = unpack_entries(values[features.COCO].bytes_list.value[0])
        digest = hashlib.sha256(values[features.ENCODED].bytes_list.value[0]).hexdigest()
        meaning[digest] = sorted(
            (
                by_id[one["category_id"]]["name"],
                bool(one.get("iscrowd") or one.get("is_crowd")),
                tuple(by_id[one["category_id"]].get("keypoints") or ()),
                tuple(one["bbox"]),
                tuple(one.get("keypoints") or ()),
            )
            for one in annotations
        )
    return meaning


def _is_same(some: Meaning, others: Meaning) -> bool:
    if {key: len(rows) for key, rows in some.items()} != {key: len(rows) for key, rows in others.items()}:
        return False
    pairs = [pair for key, rows in some.items() for pair in zip(rows, others[key], strict=True)]
    return all(
        one[:3] == other[:3]
        and len(one[4]) == len(other[4])
        and all(
            abs(first - second) <= TOLERANCE for first, second in zip(one[3] + one[4], other[3] + other[4], strict=True)
        )
        for one, other in pairs
    )


def _require_same_or_told(data: Path, tmp_path: Path, some: list[Mutation]) -> None:
    silent = []
    said, meant = _examined(data, base_tree(), tmp_path / "base")
    assert sum(map(len, meant.values())) == 27
    for number, mutation in enumerate(some):
        try:
            told, meaning = _examined(data, mutation.tree, tmp_path / str(number))
        except CocoflowError:
            continue
        if not [one for one in told if one not in said] and not _is_same(meant, meaning):
            silent.append(mutation.name)
    assert set(silent) <= UNKNOWABLE


def test_a_mutation_keeps_the_meaning_or_is_told(data: Path, tmp_path: Path) -> None:
    _require_same_or_told(data, tmp_path, list(mutations())[::9])


@pytest.mark.extended
def test_each_of_a_thousand_mutations_keeps_the_meaning_or_is_told(data: Path, tmp_path: Path) -> None:
    every = list(mutations())
    assert len(every) > 1000
    assert {one.name for one in every} >= UNKNOWABLE
    _require_same_or_told(data, tmp_path, every)
