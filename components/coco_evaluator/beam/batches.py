"""Elements of the evaluation's Beam pipeline: complete images with their ground truth and detections."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from components.coco_evaluator.tfma.slice_metrics import OVERALL, SliceKey
from detection.datasets.annotations.entries import Entry, Rows

ALL_IMAGES = (OVERALL,)  # the slices of an image that is not sliced


class DetectedBatch(NamedTuple):
    """Images with all their ground truth and detections.

    images, annotations: COCO entries.
    detections: for boxes rows [N, 7] of COCO values (image_id, x, y, width, height,
        score, category_id), else COCO results; those of one image in the order that
        decides between equal scores.
    slices: of each image.
    """

    images: list[Any]
    annotations: list[Any]
    detections: Rows | list[Any]
    slices: list[Sequence[SliceKey]]


def join_batches(batches: Sequence[DetectedBatch]) -> DetectedBatch:
    """Joins batches, at least one, in their order."""
    detections = [batch.detections for batch in batches]
    return DetectedBatch(
        images=[image for batch in batches for image in batch.images],
        annotations=[annotation for batch in batches for annotation in batch.annotations],
        detections=np.concatenate(detections)
        if isinstance(detections[0], np.ndarray)
        else [detection for batch in detections for detection in batch],
        slices=[keys for batch in batches for keys in batch.slices],
    )


def split_by_slice(batch: DetectedBatch) -> Iterator[tuple[SliceKey, DetectedBatch]]:
    """Yields every slice of the batch with its images."""
    members: dict[SliceKey, set[int]] = {}
    for image, keys in zip(batch.images, batch.slices, strict=True):
        for key in keys:
            members.setdefault(key, set()).add(image["id"])
    for key, ids in members.items():
        yield key, batch if key == OVERALL else select_images(batch, ids)


def select_images(batch: DetectedBatch, ids: set[int]) -> DetectedBatch:
    """Returns the part of a batch for some of its images, without slices."""

    def of_these(entries: Sequence[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry["image_id"] in ids]

    rows = batch.detections
    return DetectedBatch(
        images=[image for image in batch.images if image["id"] in ids],
        annotations=of_these(batch.annotations),
        detections=rows[np.isin(rows[:, 0], list(ids))] if isinstance(rows, np.ndarray) else of_these(rows),
        slices=[],
    )


def map_categories(batch: DetectedBatch, ids: Mapping[int, int]) -> DetectedBatch:
    """Replaces category ids, and drops detections of other categories."""
    detections = batch.detections
    if isinstance(detections, np.ndarray):
        kept = detections[np.isin(detections[:, 6], list(ids))]
        new = np.array([ids[number] for number in kept[:, 6].astype(np.int64).tolist()], np.float64)
        return batch._replace(detections=np.column_stack([kept[:, :6], new]))
    known = (entry for entry in detections if entry["category_id"] in ids)
    return batch._replace(detections=[{**entry, "category_id": ids[entry["category_id"]]} for entry in known])
