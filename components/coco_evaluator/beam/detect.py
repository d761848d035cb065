"""Beam: records to what a model finds on them."""

from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.utils import shared

from components.coco_evaluator.beam.batches import ALL_IMAGES, DetectedBatch, of_categories
from components.coco_evaluator.tfma.slicing import Slicer
from detection.inference.results import joined
from detection.inference.saved_model import SavedModelDetector
from detection.input_pipeline.evaluation_records import parse_record


class Detect(beam.PTransform):
    """Serialized records to `DetectedBatch`es, through a model.

    Args:
        model: SavedModel folder.
        batch_size: images a call of the model.
        slicer: tells the slices of a record; None: there is only that of all images.
        category_ids: leave out what the model finds of other categories, as a model of
            an earlier state of the data set may; None: all is kept.
        iou_type: what is compared: `bbox`, `segm` or `keypoints`.
    """

    def __init__(
        self,
        model: str,
        *,
        batch_size: int,
        slicer: Slicer | None = None,
        category_ids: Sequence[int] | None = None,
        iou_type: str = "bbox",
    ) -> None:
        super().__init__()
        self._detect = _Detect(model, batch_size, slicer, iou_type)
        self._batch_size = batch_size
        self._category_ids = category_ids

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        """Builds the steps."""
        batches = (
            records
            | "Batch" >> beam.BatchElements(min_batch_size=self._batch_size, max_batch_size=self._batch_size)
            | "Detect" >> beam.ParDo(self._detect)
        )
        if self._category_ids is None:
            return batches
        return batches | "Known" >> beam.Map(of_categories, category_ids=self._category_ids)


class _Detect(beam.DoFn):
    """Batches of serialized records to `DetectedBatch`; the model is loaded once a worker process."""

    def __init__(self, model: str, batch_size: int, slicer: Slicer | None, iou_type: str) -> None:
        self._model = model
        self._batch_size = batch_size
        self._slicer = slicer
        self._iou_type = iou_type
        self._shared = shared.Shared()

    def setup(self) -> None:
        self._detector = self._shared.acquire(
            lambda: SavedModelDetector(folder=self._model, batch_size=self._batch_size), tag=self._model
        )

    def process(self, serialized: Sequence[bytes]) -> Iterator[DetectedBatch]:
        records = [parse_record(record) for record in serialized]
        images = [record.image for record in records]
        results = joined(self._detector.detect(images, with_masks=self._iou_type == "segm"))
        yield DetectedBatch(
            images=[record.entry for record in records],
            annotations=[annotation for record in records for annotation in record.annotations],
            detections=results.of_iou_type(self._iou_type, where=self._model),
            slices=[self._slicer.slice_keys(record.example) if self._slicer else ALL_IMAGES for record in records],
        )
