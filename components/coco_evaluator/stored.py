"""Beam: ground truth and existing detections, from COCO files, to `DetectedBatch`es."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

import apache_beam as beam

from components.coco_evaluator.batches import ALL_IMAGES, DetectedBatch
from detection.coco.buckets import Buckets
from detection.coco.columns import Entry

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
    objects, found = _by_image(annotations), _by_image(detections)
    for start in range(0, len(images), _BATCH):
        batch = images[start : start + _BATCH]
        ids = [image["id"] for image in batch]
        yield DetectedBatch(
            images=batch,
            annotations=[entry for image_id in ids for entry in objects.pop(image_id, [])],
            detections=[entry for image_id in ids for entry in found.pop(image_id, [])],
            slices=[ALL_IMAGES] * len(batch),
        )
    if objects or found:
        # Of images that are not there: what matches them refuses them by name.
        yield DetectedBatch([], list(chain(*objects.values())), list(chain(*found.values())), [])


def _by_image(entries: Sequence[Entry]) -> dict[int, list[Entry]]:
    groups: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry["image_id"]].append(entry)
    return groups
