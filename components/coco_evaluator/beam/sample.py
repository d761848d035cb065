"""Beam: keeps samples of images in files: their records for the analysis, the model's outputs for the pusher."""

import math
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy.typing as npt
from PIL import Image

from detection.analysis.instances import sample_ids, sample_rank
from detection.coco.io.blocks import Block, BlockPlace, find_blocks, write_blocks
from detection.inference.serving_sample import ServedImage, read_serving_sample, served_images, write_serving_sample
from detection.input_pipeline.evaluation_records import EvaluationRecord, parse_record, stored_picture
from detection.storage.files import is_dir, list_folder
from detection.storage.paths import join
from detection.storage.reading import read_range
from detection.storage.staging import local_copy
from detection.types import EncodedImage

_RANKS = 2**64
_FILE_BYTES = 32 << 20  # that a worker collects for a file: one file per image would take a request each


@dataclass(frozen=True)
class SampleChoice:
    """Images that a worker keeps: at least the sample, chosen without knowledge of the other images.

    count: number of images of the sample.
    of: number of all images.
    seed: seed of the sample.
    """

    count: int
    of: int
    seed: int

    def holds(self, image_id: int) -> bool:
        """Returns whether the image may be one of the sample.

        Ranks are uniform: the `count` lowest are below the cut-off, but for a chance of one in 10^15.
        """
        fraction = (self.count + 8 * math.sqrt(self.count)) / max(self.of, 1)
        return fraction >= 1.0 or sample_rank(image_id, self.seed) < fraction * _RANKS


class KeepSample(beam.PTransform):
    """Serialized records to files that `SampleRecords` reads.

    Args:
        choice: images to keep.
        folder: folder for these files alone, shared by all workers and the caller.
    """

    def __init__(self, choice: SampleChoice, folder: str | Path) -> None:
        super().__init__()
        self._choice = choice
        self._folder = str(folder)

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        """Builds the steps."""
        return records | beam.ParDo(_Keep(self._choice, self._folder))


class SampleRecords:
    """The images that `KeepSample` kept.

    Args:
        choice: images that were kept.
        folder: folder of the files.
    """

    def __init__(self, choice: SampleChoice, folder: str | Path) -> None:
        places = dict(_find_records(folder))
        self._places = {image_id: places[image_id] for image_id in sample_ids(places, choice.count, choice.seed)}
        self.image_ids: Collection[int] = self._places.keys()

    def ground_truth(self, categories: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns the images as a COCO tree."""
        tree: dict[str, Any] = {"images": [], "annotations": [], "categories": categories}
        for image_id in sorted(self.image_ids):
            record = self._record(image_id)
            tree["images"].append(record.entry)
            tree["annotations"] += record.annotations
        return tree

    def records(self) -> Iterator[bytes]:
        """Returns the serialized records by ascending image id."""
        return (self._read(image_id) for image_id in sorted(self.image_ids))

    def picture(self, image_id: int) -> Image.Image | None:
        """Returns the decoded image as stored; None: Pillow cannot read it."""
        return stored_picture(self._record(image_id))

    def _record(self, image_id: int) -> EvaluationRecord:
        return parse_record(self._read(image_id))

    def _read(self, image_id: int) -> bytes:
        return read_range(*self._places[image_id])


def _find_records(folder: str | Path) -> Iterator[tuple[int, BlockPlace]]:
    """Yields the records in a folder; an image of a retried bundle comes more than once."""
    if is_dir(folder):
        local = local_copy(folder)
        for name in list_folder(local):
            if not name.startswith("."):  # the unfinished file of a worker that was killed
                yield from find_blocks(join(local, name))


class _Keep(beam.DoFn):
    """Serialized records to files of blocks; a retried bundle writes further files of the same records."""

    def __init__(self, choice: SampleChoice, folder: str) -> None:
        self._choice = choice
        self._folder = folder

    def start_bundle(self) -> None:
        self._blocks: list[Block] = []
        self._bytes = 0

    def process(self, serialized: bytes) -> Iterator[None]:
        image_id = parse_record(serialized).image.image_id
        if self._choice.holds(image_id):
            self._blocks.append(Block(image_id, serialized))
            self._bytes += len(serialized)
            if self._bytes >= _FILE_BYTES:
                self._flush()
        yield from ()

    def finish_bundle(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._blocks:
            write_blocks(join(self._folder, uuid.uuid4().hex), self._blocks)
            self.start_bundle()


@dataclass(frozen=True)
class KeepServed:
    """Writes images of a choice with the model's outputs to files that `read_served` reads.

    choice: images to keep.
    folder: folder for these files alone, shared by all workers and the caller.
    """

    choice: SampleChoice
    folder: str

    def chosen(self, images: Sequence[EncodedImage]) -> list[int]:
        """Returns the positions of the images to keep."""
        return [position for position, image in enumerate(images) if self.choice.holds(image.image_id)]

    def write(self, outputs: Mapping[str, npt.NDArray[Any]], images: Sequence[EncodedImage]) -> None:
        """Keeps images.

        Args:
            outputs: outputs of the model's signature by name, [N, ...].
            images: the N images of the batch; those that are not chosen are dropped.
        """
        places = self.chosen(images)
        if places:
            of_batch = served_images(outputs, images)
            write_serving_sample(join(self.folder, uuid.uuid4().hex), [of_batch[place] for place in places])


def read_served(keep: KeepServed) -> list[ServedImage]:
    """Returns the images of the choice by ascending id; a retried bundle wrote the same ones twice."""
    kept: dict[int, ServedImage] = {}
    if is_dir(keep.folder):
        for name in list_folder(keep.folder):
            if not name.startswith("."):  # the unfinished file of a worker that was killed
                kept |= {image.image_id: image for image in read_serving_sample(join(keep.folder, name))}
    return [kept[image_id] for image_id in sample_ids(kept, keep.choice.count, keep.choice.seed)]
