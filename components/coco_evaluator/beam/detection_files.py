"""Beam: `DetectedBatch`es to one COCO results file, sorted by image id, in bounded memory."""

import json
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from components.coco_evaluator.beam.batches import DetectedBatch
from detection.coco.io.blocks import Block, merge_blocks, write_blocks
from detection.coco.io.results import blocks_of, write_list
from detection.storage.atomic import new_file, write_text
from detection.storage.json_files import read_json
from detection.storage.paths import join
from detection.storage.staging import local_copy

_CHUNK = 20_000  # images sorted in memory at a time; some 300 MB
_MANIFEST = "blocks.json"


class DetectionsToFiles(beam.PTransform):
    """The detections of `DetectedBatch`es to files that `write_detections` reads.

    Args:
        folder: for these files alone, seen by all workers and the caller.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder = str(folder)

    def expand(self, batches: beam.PCollection) -> beam.PCollection:
        """Builds the steps."""
        return (
            batches
            | "Sort" >> beam.ParDo(_Sort(self._folder))
            | "List" >> beam.combiners.ToList()
            | "Write" >> beam.Map(_write_manifest, folder=self._folder)
        )


def write_detections(folder: str | Path, destination: str | Path, image_ids: Collection[int]) -> list[dict[str, Any]]:
    """Writes the files of `DetectionsToFiles` as one COCO results file, by ascending image id.

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
                kept.extend(_parsed(block))
            yield block.content

    with new_file(destination) as file:
        write_list(file, texts())
    return kept


def read_detections(folder: str | Path, image_ids: Collection[int]) -> list[dict[str, Any]]:
    """Returns the COCO results of a few images from the files of `DetectionsToFiles`, by ascending image id."""
    return [result for block in _read_blocks(folder) if block.image_id in image_ids for result in _parsed(block)]


def _read_blocks(folder: str | Path) -> Iterator[Block]:
    local = local_copy(folder)
    return merge_blocks([join(local, name) for name in read_json(join(local, _MANIFEST))], folder)


def _parsed(block: Block) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(b"[%b]" % block.content)
    return results


class _Sort(beam.DoFn):
    """`DetectedBatch`es to files of blocks; files of failed attempts are not listed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def start_bundle(self) -> None:
        self._blocks: list[Block] = []
        self._images = 0

    def process(self, batch: DetectedBatch) -> Iterator[str]:
        self._blocks += blocks_of(batch.detections)
        self._images += len(batch.images)
        if self._images >= _CHUNK:
            yield self._flush()

    def finish_bundle(self) -> Iterator[Any]:
        if self._blocks:
            yield GlobalWindows.windowed_value(self._flush())

    def _flush(self) -> str:
        name = uuid.uuid4().hex
        write_blocks(join(self._folder, name), sorted(self._blocks))
        self.start_bundle()
        return name


def _write_manifest(names: Collection[str], folder: str) -> None:
    write_text(join(folder, _MANIFEST), json.dumps(sorted(names)))
