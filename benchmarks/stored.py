"""Beam: ground truth and existing detections, from COCO files, to `DetectedBatch`es."""

from collections.abc import Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np

from benchmarks.buckets import Buckets
from components.coco_evaluator.beam.batches import ALL_IMAGES, DetectedBatch
from detection.datasets.entries import Rows

_BATCH = 500  # images


class ReadStored(beam.PTransform):
    """A pipeline's root: the buckets of a data set as `DetectedBatch`es.

    Args:
        buckets: seen by all workers.
    """

    def __init__(self, buckets: Buckets) -> None:
        super().__init__()
        self._buckets = buckets

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        """Builds the steps."""
        return (
            root
            | "Buckets" >> beam.Create(range(self._buckets.count))
            | "Distribute" >> beam.Reshuffle()
            | "Read" >> beam.FlatMap(_read, buckets=self._buckets)
        )


def _read(number: int, buckets: Buckets) -> Iterator[DetectedBatch]:
    images, annotations, detections = buckets.read(number)
    batches = [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]
    batch_of = {image["id"]: position for position, batch in enumerate(batches) for image in batch}
    # The last is of images that are not there: what matches them refuses them by name.
    batches.append([])
    objects, found = _divided(annotations, batch_of), _divided(detections, batch_of)
    for batch, mine, theirs in zip(batches, objects, found, strict=True):
        if batch or len(mine) or len(theirs):
            yield DetectedBatch(batch, mine, theirs, [ALL_IMAGES] * len(batch))


def _divided(entries: list[Any] | Rows, batch_of: Mapping[int, int]) -> list[Any]:
    """What belongs to each batch, then what belongs to none."""
    count = max(batch_of.values(), default=-1) + 1
    if isinstance(entries, np.ndarray):
        numbers = np.array([batch_of.get(int(image_id), count) for image_id in entries[:, 0].tolist()])
        return [entries[numbers == number] for number in range(count + 1)]
    parts: list[list[Any]] = [[] for _ in range(count + 1)]
    for entry in entries:
        parts[batch_of.get(entry["image_id"], count)].append(entry)
    return parts
