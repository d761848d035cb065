"""Beam: writes the records of the sample of images, which are analysed and shown, to files."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from PIL import Image

from detection.analysis.instances import sample_ids, sample_rank
from detection.input_pipeline.evaluation_records import EvaluationRecord, parse_record, stored_picture
from detection.storage.atomic import write_bytes

_RANKS = 2**64


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
        """Whether the image may be one of the sample.

        Ranks are even: among the images below the cut-off are the `count` least, but
        for a chance of one in 10^15.
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
        self._folder = Path(folder)
        kept = (int(path.name) for path in self._folder.glob("*") if path.name.isdecimal())
        self.image_ids: Collection[int] = frozenset(sample_ids(kept, choice.count, choice.seed))

    def ground_truth(self, categories: list[dict[str, Any]]) -> dict[str, Any]:
        """The images as a COCO tree."""
        tree: dict[str, Any] = {"images": [], "annotations": [], "categories": categories}
        for image_id in sorted(self.image_ids):
            record = self._record(image_id)
            tree["images"].append(record.entry)
            tree["annotations"] += record.annotations
        return tree

    def records(self) -> Iterator[bytes]:
        """The serialized records by ascending image id."""
        return (self._path(image_id).read_bytes() for image_id in sorted(self.image_ids))

    def picture(self, image_id: int) -> Image.Image | None:
        """See `stored_picture`."""
        return stored_picture(self._record(image_id))

    def _record(self, image_id: int) -> EvaluationRecord:
        return parse_record(self._path(image_id).read_bytes())

    def _path(self, image_id: int) -> Path:
        return self._folder / str(image_id)


class _Keep(beam.DoFn):
    def __init__(self, choice: SampleChoice, folder: str) -> None:
        self._choice = choice
        self._folder = Path(folder)

    def setup(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def process(self, serialized: bytes) -> Iterator[None]:
        image_id = parse_record(serialized).image.image_id
        if self._choice.holds(image_id):
            # Whole or not at all, however often and wherever a bundle is tried.
            write_bytes(self._folder / str(image_id), serialized, durable=False)
        yield from ()
