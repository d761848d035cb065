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

from components.coco_evaluator.beam.detection_files import keep_blocks
from detection.analysis.instances import sample_ids, sample_rank
from detection.coco.io.blocks import Block, BlockPlace, find_blocks
from detection.inference.serving_sample import ServedImage, read_serving_sample, served_images, write_serving_sample
from detection.input_pipeline.evaluation_records import EvaluationRecord, parse_record, stored_picture
from detection.storage.files import is_dir, list_folder, local_copy, read_range
from detection.storage.paths import join
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


@beam.ptransform_fn
def keep_sample(records: beam.PCollection, choice: SampleChoice, folder: str) -> beam.PCollection:
    """Serialized records to files that `SampleRecords` reads; a retried bundle writes further files of the same ones.

    Args:
        records: of all images.
        choice: images to keep.
        folder: folder for these files alone, shared by all workers and the caller.
    """
    return (
        records
        | "Block" >> beam.Map(lambda record: Block(parse_record(record).image.image_id, record))
        | "Choose" >> beam.Filter(lambda block: choice.holds(block.image_id))
        | beam.BatchElements(
            min_batch_size=_FILE_BYTES, max_batch_size=_FILE_BYTES, element_size_fn=lambda block: len(block.content)
        )
        | "Write" >> beam.Map(keep_blocks, folder)
    )


class SampleRecords:
    """The images that `keep_sample` kept.

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
        for path in _complete_files(local_copy(folder)):
            yield from find_blocks(path)


def _complete_files(folder: str | Path) -> Iterator[str]:
    # A hidden one is the unfinished file of a worker that was killed.
    return (join(folder, name) for name in list_folder(folder) if not name.startswith("."))


@dataclass(frozen=True)
class KeepServed:
    """Writes images of a choice with the model's outputs to files that `read_served` reads.

    choice: images to keep.
    folder: folder for these files alone, shared by all workers and the caller.
    """

    choice: SampleChoice
    folder: str

    def chosen(self, images: Sequence[EncodedImage]) -> list[EncodedImage]:
        """Returns the images to keep."""
        return [image for image in images if self.choice.holds(image.image_id)]

    def write(self, outputs: Mapping[str, npt.NDArray[Any]], images: Sequence[EncodedImage]) -> None:
        """Keeps images.

        Args:
            outputs: outputs of the model's signature by name, [N, ...].
            images: N chosen images.
        """
        write_serving_sample(join(self.folder, uuid.uuid4().hex), served_images(outputs, images))


def read_served(keep: KeepServed) -> list[ServedImage]:
    """Returns the images of the choice by ascending id; a retried bundle wrote the same ones twice."""
    kept: dict[int, ServedImage] = {}
    if is_dir(keep.folder):
        for path in _complete_files(keep.folder):
            kept |= {image.image_id: image for image in read_serving_sample(path)}
    return [kept[image_id] for image_id in sample_ids(kept, keep.choice.count, keep.choice.seed)]
