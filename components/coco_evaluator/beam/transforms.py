"""Beam: images with their ground truth, detected or not, to an evaluation in files.

records -> Detect ----.
                       DetectedBatch -> Evaluate -> files -> read_slices, read_detections
COCO files -> ReadStored -'

`Detect` lies in a module of its own: without a model, workers need no TensorFlow.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam

from components.coco_evaluator.beam.batches import DetectedBatch, of_images
from components.coco_evaluator.beam.detection_files import DetectionsToFiles
from components.coco_evaluator.beam.matching import MatchToFiles, Measure

_ARRAYS, _DETECTIONS = "arrays", "detections"


class Evaluate(beam.PTransform):
    """`DetectedBatch`es to files, in folders that `arrays_folder` and `detections_folder` name.

    Args:
        measure: how.
        folder: for these files alone, seen by all workers and the caller.
        keep: of which images the detections are written, too; None: of none.
    """

    def __init__(self, measure: Measure, folder: str | Path, *, keep: Callable[[int], bool] | None = None) -> None:
        super().__init__()
        self._measure = measure
        self._folder = folder
        self._keep = keep

    def expand(self, batches: beam.PCollection) -> Any:  # Beam warns of a tuple's type
        """Builds the steps."""
        done = [batches | "Arrays" >> MatchToFiles(self._measure, arrays_folder(self._folder))]
        if self._keep is not None:
            kept = batches | "Keep" >> beam.Map(partial(_of_images, keep=self._keep))
            done.append(kept | "Detections" >> DetectionsToFiles(detections_folder(self._folder)))
        return tuple(done)


def arrays_folder(folder: str | Path) -> Path:
    """Where `Evaluate` leaves what `read_slices` reads."""
    return Path(folder, _ARRAYS)


def detections_folder(folder: str | Path) -> Path:
    """Where `Evaluate` leaves what `write_detections` reads."""
    return Path(folder, _DETECTIONS)


def all_images(image_id: int) -> bool:
    """For `Evaluate`: keeps the detections of every image."""
    return True


def _of_images(batch: DetectedBatch, keep: Callable[[int], bool]) -> DetectedBatch:
    if keep is all_images:
        return batch
    return of_images(batch, {image["id"] for image in batch.images if keep(image["id"])})
