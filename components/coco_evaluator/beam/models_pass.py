"""Beam: one pass over a split's records: all models, all slices."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.utils import shared

from components.beam.pipelines import make_pipeline
from components.beam.progress import report_progress
from components.coco_evaluator.beam.batches import ALL_IMAGES, DetectedBatch, of_categories
from components.coco_evaluator.beam.evaluate import (
    Evaluate,
    Measure,
    SliceResult,
    all_images,
    arrays_folder,
    read_slices,
)
from components.coco_evaluator.beam.sample import KeepSample, SampleChoice, SampleRecords
from components.coco_evaluator.beam.served import KeepServed, read_served
from components.coco_evaluator.request import Task
from components.coco_evaluator.tfma.slice_metrics import CANDIDATE, OVERALL, SliceKey, SliceMetrics
from components.coco_evaluator.tfma.slicing import Slicer
from detection.coco.params import Params
from detection.inference.detectors import open_detector
from detection.inference.results import Results, joined, results_from_outputs
from detection.inference.saved_model import SignatureDetector
from detection.inference.serving_sample import ServedImage
from detection.inference.test_time_augmentation import AugmentedDetector, augmented
from detection.input_pipeline.evaluation_records import parse_record
from detection.storage.paths import join
from detection.storage.tfrecord import find_shards, read_shard
from detection.types import EncodedImage
from schemas.config.evaluate import ViewsConfig
from schemas.metrics import IouType

NO_VIEWS = ViewsConfig()
_SAMPLE, _SERVED = "sample", "served"


class Detect(beam.PTransform):
    """Serialized records to `DetectedBatch`es, through a model.

    Args:
        model: see `open_detector`.
        batch_size: images per call of the model.
        slicer: finds the slices of a record; None: all images are one slice.
        category_ids: detections of other categories are dropped, as of a model trained on an
            earlier state of the data set; None: all are kept.
        iou_types: what is compared of the detections.
        views: test-time augmentation.
        keep: images whose outputs are written, those of the image as it is; None: no images.
    """

    def __init__(
        self,
        model: str,
        *,
        batch_size: int,
        slicer: Slicer | None = None,
        category_ids: Sequence[int] | None = None,
        iou_types: Sequence[IouType] = ("bbox",),
        views: ViewsConfig = NO_VIEWS,
        keep: KeepServed | None = None,
    ) -> None:
        super().__init__()
        self._detect = _Detect(model, batch_size=batch_size, slicer=slicer, iou_types=iou_types, views=views, keep=keep)
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

    def __init__(
        self,
        model: str,
        *,
        batch_size: int,
        slicer: Slicer | None,
        iou_types: Sequence[IouType],
        views: ViewsConfig,
        keep: KeepServed | None,
    ) -> None:
        self._model = model
        self._keep = keep
        self._views = views
        self._batch_size = batch_size
        self._slicer = slicer
        self._iou_types = tuple(iou_types)
        self._shared = shared.Shared()

    def setup(self) -> None:
        self._loaded = self._shared.acquire(self._load, tag=self._model)

    def _load(self) -> "_Loaded":
        detector = open_detector(self._model, batch_size=self._batch_size)
        return _Loaded(detector, augmented(detector, self._views, batch_size=self._batch_size))

    def process(self, serialized: Sequence[bytes]) -> Iterator[DetectedBatch]:
        records = [parse_record(record) for record in serialized]
        images = [record.image for record in records]
        results = joined(self._results(images))
        yield DetectedBatch(
            images=[record.entry for record in records],
            annotations=[annotation for record in records for annotation in record.annotations],
            detections=results.compared_by(self._iou_types, where=self._model),
            slices=[self._slicer.slice_keys(record.example) if self._slicer else ALL_IMAGES for record in records],
        )

    def _results(self, images: Sequence[EncodedImage]) -> list[Results]:
        with_masks = "segm" in self._iou_types
        plain, detector = self._loaded.plain, self._loaded.detector
        places = self._keep.chosen(images) if self._keep else []
        if self._keep is None or not places:
            return detector.detect(images, with_masks=with_masks)
        if detector is not plain:  # a server does not augment
            chosen = [images[place] for place in places]
            self._keep.write(plain.outputs(chosen), chosen)
            return detector.detect(images, with_masks=with_masks)
        outputs = plain.outputs(images)
        self._keep.write(outputs, images)
        return results_from_outputs(outputs, images, with_masks=with_masks)


@dataclass(frozen=True)
class _Loaded:
    """A model, and the detector that is evaluated: the model itself, or with test-time augmentation."""

    plain: SignatureDetector
    detector: SignatureDetector | AugmentedDetector


@dataclass(frozen=True)
class Measured:
    """Results of a pass.

    overall: metrics on all images of `candidate` and `baseline` by IoU type; empty without images.
    slices: metrics per slice, that of all images included, of `candidate` and `baseline`.
    sample: records of the images to analyse.
    served: images with the candidate's outputs.
    """

    overall: dict[str, dict[str, SliceResult]]
    slices: dict[SliceKey, dict[str, SliceMetrics]]
    sample: SampleRecords
    served: list[ServedImage]


def run_models(
    task: Task,
    *,
    params: Sequence[Params],
    given: Mapping[str, Sequence[IouType]],
    images: int,
    slicing: Sequence[Any],
    work: str | Path,
    beam_args: Sequence[str],
) -> Measured:
    """Runs all models over the records, once for all IoU types.

    Args:
        task: models, records and options.
        params: params of each IoU type.
        given: IoU types by which the detections of each model can be evaluated; it is evaluated by these only.
        images: number of images.
        slicing: `tfma.SlicingSpec`s.
        work: folder, shared by all workers; keeps the detections of `candidate` and
            `baseline` in folders of these names.
        beam_args: options of the Beam pipeline, see `make_pipeline`.

    Raises:
        DataError: an invalid model or record.
    """
    measures = {
        part: [
            Measure(list(task.categories), one, divided=images > task.config.images_per_state)
            for one in params
            if one.iou_type in given[part]
        ]
        for part in task.models
    }
    choice = SampleChoice(task.config.analysis.images, images, task.config.analysis.seed)
    served = KeepServed(SampleChoice(task.served_images, images, task.config.analysis.seed), join(work, _SERVED))
    slicer = Slicer(slicing) if any(spec.ByteSize() for spec in slicing) else None
    pipeline = make_pipeline(beam_args)
    with report_progress("evaluating", pipeline.runner, images, work) as counter, pipeline:
        records = pipeline | "Read" >> ReadRecords(task.records)
        records | "Sample" >> KeepSample(choice, join(work, _SAMPLE))
        for part, model in task.models.items():
            known = None if part == CANDIDATE else [category["id"] for category in task.categories]
            detect = Detect(
                model,
                batch_size=task.config.batch_size,
                slicer=slicer,
                category_ids=known,
                iou_types=[measure.params.iou_type for measure in measures[part]],
                views=task.config.tta,
                keep=served if part == CANDIDATE and task.served_images else None,
            )
            keep = all_images if part == CANDIDATE else choice.holds
            evaluate = Evaluate(measures[part], join(work, part), keep=keep)
            detected = records | f"{part}Detect" >> detect
            detected | f"{part}Evaluate" >> evaluate
            if part == CANDIDATE:  # the baseline gets each record at the same time
                detected | "Count" >> beam.Map(lambda batch: counter.add(len(batch.images)))
    overall, slices = _read(measures, work)
    return Measured(overall, slices, SampleRecords(choice, join(work, _SAMPLE)), read_served(served))


class ReadRecords(beam.PTransform):
    """The records of TFRecord files, of which Beam's own source would take the path for a pattern."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._shards = find_shards(where)

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        """Builds the steps."""
        return root | beam.Create(self._shards) | beam.Reshuffle() | beam.FlatMap(read_shard)


def _read(
    measures: Mapping[str, Sequence[Measure]], work: str | Path
) -> tuple[dict[str, dict[str, SliceResult]], dict[SliceKey, dict[str, SliceMetrics]]]:
    """Reads the results; keeps the arrays of all images only, as those of many slices are large."""
    overall: dict[str, dict[str, SliceResult]] = {}
    slices: dict[SliceKey, dict[str, SliceMetrics]] = {}
    for part, of_types in measures.items():
        for results in zip(*(read_slices(one, arrays_folder(join(work, part), one)) for one in of_types), strict=True):
            key, images = results[0][0], results[0][1].images
            metrics = [result.metrics for _, result in results]
            slices.setdefault(key, {})[part] = SliceMetrics.of(metrics, images=images)
            if key == OVERALL:
                overall[part] = {result.metrics.iou_type: result for _, result in results}
    return overall, slices
