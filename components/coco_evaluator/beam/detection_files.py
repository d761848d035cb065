"""Beam: `DetectedBatch`es to one COCO results file, sorted by image id, in bounded memory."""

import json
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam

from detection.coco.io.blocks import Block, merge_blocks, write_blocks
from detection.coco.io.results import blocks_of, write_list
from detection.storage.atomic import new_file, write_text
from detection.storage.files import local_copy
from detection.storage.json_files import read_json
from detection.storage.paths import join

_CHUNK = 20_000  # images sorted in memory at a time; some 300 MB
_MANIFEST = "blocks.json"


@beam.ptransform_fn
def detections_to_files(batches: beam.PCollection, folder: str) -> beam.PCollection:
    """The detections of `DetectedBatch`es to files that `write_detections` reads.

    Args:
        batches: with each image once.
        folder: for these files alone, seen by all workers and the caller.
    """
    return (
        batches
        | "Blocks" >> beam.FlatMap(lambda batch: blocks_of(batch.detections))
        | beam.BatchElements(min_batch_size=_CHUNK, max_batch_size=_CHUNK)
        | "Sort" >> beam.Map(lambda blocks: keep_blocks(sorted(blocks), folder))
        | "List" >> beam.combiners.ToList()
        | "Write" >> beam.Map(lambda names: write_text(join(folder, _MANIFEST), json.dumps(sorted(names))))
    )


def keep_blocks(blocks: Sequence[Block], folder: str) -> str:
    """Writes blocks to a new file of a folder, and returns its name; that of a failed attempt is not listed."""
    name = uuid.uuid4().hex
    write_blocks(join(folder, name), blocks)
    return name


def write_detections(folder: str | Path, destination: str | Path, image_ids: Collection[int]) -> list[dict[str, Any]]:
    """Writes the files of `detections_to_files` as one COCO results file, by ascending image id.

    Args:
        folder: folder of the files.
        destination: the results file.
        image_ids: ids of a few images.

    Returns:
        The COCO results of these images.

    Raises:
        DataError: the file cannot be written.
    """
    kept: list[dict[str, Any]] = []

    def texts() -> Iterator[bytes]:
        for block in _read_blocks(folder):
            if block.image_id in image_ids:
                kept.extend(_parse(block))
            yield block.content

    with new_file(destination) as file:
        write_list(file, texts())
    return kept


def read_detections(folder: str | Path, image_ids: Collection[int]) -> list[dict[str, Any]]:
    """Returns the COCO results of a few images from the files of `detections_to_files`, by ascending image id."""
    return [result for block in _read_blocks(folder) if block.image_id in image_ids for result in _parse(block)]


def _read_blocks(folder: str | Path) -> Iterator[Block]:
    local = local_copy(folder)
    return merge_blocks([join(local, name) for name in read_json(join(local, _MANIFEST))], folder)


def _parse(block: Block) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(b"[%b]" % block.content)
    return results
