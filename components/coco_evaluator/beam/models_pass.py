"""Beam: one pass over a split's records: all models, all slices."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.utils import shared

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
from detection.storage.atomic import write_text
from detection.storage.paths import join
from detection.storage.reading import read_text
from detection.storage.tfrecord import find_shards, read_shard
from detection.types import EncodedImage
from schemas.config.config import ViewsConfig

MakePipeline = Callable[[], beam.Pipeline]

NO_VIEWS = ViewsConfig()
_COUNT, _SAMPLE, _SERVED = "count", "sample", "served"


class Detect(beam.PTransform):
    """Serialized records to `DetectedBatch`es, through a model.

    Args:
        model: see `open_detector`.
        batch_size: images per call of the model.
        slicer: finds the slices of a record; None: all images are one slice.
        category_ids: detections of other categories are dropped, as of a model trained on an
            earlier state of the data set; None: all are kept.
        iou_type: `bbox`, `segm` or `keypoints`.
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
        iou_type: str = "bbox",
        views: ViewsConfig = NO_VIEWS,
        keep: KeepServed | None = None,
    ) -> None:
        super().__init__()
        self._detect = _Detect(model, batch_size=batch_size, slicer=slicer, iou_type=iou_type, views=views, keep=keep)
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
        iou_type: str,
        views: ViewsConfig,
        keep: KeepServed | None,
    ) -> None:
        self._model = model
        self._keep = keep
        self._views = views
        self._batch_size = batch_size
        self._slicer = slicer
        self._iou_type = iou_type
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
            detections=results.of_iou_type(self._iou_type, where=self._model),
            slices=[self._slicer.slice_keys(record.example) if self._slicer else ALL_IMAGES for record in records],
        )

    def _results(self, images: Sequence[EncodedImage]) -> list[Results]:
        with_masks = self._iou_type == "segm"
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

    overall: metrics on all images of `candidate` and `baseline`; empty without images.
    slices: metrics per slice, that of all images included, of `candidate` and `baseline`.
    sample: records of the images to analyse.
    served: images with the candidate's outputs.
    """

    overall: dict[str, SliceResult]
    slices: dict[SliceKey, dict[str, SliceMetrics]]
    sample: SampleRecords
    served: list[ServedImage]


def run_models(
    task: Task, *, params: Params, slicing: Sequence[Any], work: str | Path, make_pipeline: MakePipeline
) -> Measured:
    """Runs all models over the records.

    Args:
        task: models, records and options.
        params: params of the evaluation.
        slicing: `tfma.SlicingSpec`s.
        work: folder, shared by all workers; keeps the detections of `candidate` and
            `baseline` in folders of these names.
        make_pipeline: makes a Beam pipeline.

    Raises:
        DataError: an invalid model or record.
    """
    images = task.images
    if images is None:
        images = _count_records(task.records, join(work, _COUNT), make_pipeline)
    measure = Measure(list(task.categories), params, divided=images > task.config.images_per_state)
    choice = SampleChoice(task.config.analysis.images, images, task.config.analysis.seed)
    served = KeepServed(SampleChoice(task.served_images, images, task.config.analysis.seed), join(work, _SERVED))
    slicer = Slicer(slicing) if any(spec.ByteSize() for spec in slicing) else None
    with make_pipeline() as pipeline:
        records = pipeline | "Read" >> _ReadRecords(task.records)
        records | "Sample" >> KeepSample(choice, join(work, _SAMPLE))
        for part, model in task.models.items():
            known = None if part == CANDIDATE else [category["id"] for category in task.categories]
            detect = Detect(
                model,
                batch_size=task.config.batch_size,
                slicer=slicer,
                category_ids=known,
                iou_type=params.iou_type,
                views=task.config.tta,
                keep=served if part == CANDIDATE and task.served_images else None,
            )
            keep = all_images if part == CANDIDATE else choice.holds
            records | f"{part}Detect" >> detect | f"{part}Evaluate" >> Evaluate(measure, join(work, part), keep=keep)
    overall, slices = _read(list(task.models), measure, work)
    return Measured(overall, slices, SampleRecords(choice, join(work, _SAMPLE)), read_served(served))


class _ReadRecords(beam.PTransform):
    """The records of TFRecord files, of which Beam's own source would take the path for a pattern."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._shards = find_shards(where)

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        """Builds the steps."""
        return root | beam.Create(self._shards) | beam.Reshuffle() | beam.FlatMap(read_shard)


def _count_records(where: str, path: str, make_pipeline: MakePipeline) -> int:
    with make_pipeline() as pipeline:
        (
            pipeline
            | "Read" >> _ReadRecords(where)
            | "Count" >> beam.combiners.Count.Globally()
            | "Write" >> beam.Map(lambda count: write_text(path, str(count)))
        )
    return int(read_text(path))


def _read(
    parts: Sequence[str], measure: Measure, work: str | Path
) -> tuple[dict[str, SliceResult], dict[SliceKey, dict[str, SliceMetrics]]]:
    """Reads the results; keeps the arrays of all images only, as those of many slices are large."""
    overall: dict[str, SliceResult] = {}
    slices: dict[SliceKey, dict[str, SliceMetrics]] = {}
    for part in parts:
        for key, result in read_slices(measure, arrays_folder(join(work, part))):
            slices.setdefault(key, {})[part] = SliceMetrics.of(result.metrics, images=result.images)
            if key == OVERALL:
                overall[part] = result
    return overall, slices
