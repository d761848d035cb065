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
from components.coco_evaluator.beam.sample import KeepSample, KeepServed, SampleChoice, SampleRecords, read_served
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
from schemas.config.evaluate import EvaluateConfig, ViewsConfig
from schemas.metrics import IouType

_SAMPLE, _SERVED = "sample", "served"


@dataclass(frozen=True)
class EvaluationRequest:
    """An evaluation of models on the records of a split.

    records: folder or pattern of the TFRecord files.
    images: number of images; None: unknown, they are counted first.
    categories: COCO `categories` of the data set.
    models: SavedModel folder of `candidate` and optionally `baseline`, whose detections of
        unknown categories are dropped.
    eval_config: checked `tfma.EvalConfig`; None: COCO's params on all images.
    config: options of the evaluation; its `split` and `eval_config` are read already.
    title: title of the report.
    locations: path of each model and, as `data`, of the examples, as shown in TFMA's files and
        the report.
    served_images: number of images whose outputs of the candidate are kept for the pusher.
    """

    records: str
    images: int | None
    categories: Sequence[dict[str, Any]]
    models: Mapping[str, str]
    locations: Mapping[str, str]
    title: str
    config: EvaluateConfig
    eval_config: Any | None = None
    served_images: int = 0


@dataclass(frozen=True)
class DetectOptions:
    """A model and what is done with its detections.

    model: folder or file of the model.
    batch_size: images per call of the model.
    slicer: finds the slices of a record; None: all images are one slice.
    category_ids: detections of other categories are dropped, as of a model trained on an earlier state of the data
        set; None: all are kept.
    iou_types: IoU types by which detections are compared.
    views: test-time augmentation.
    keep: images whose outputs without augmentation are written; None: no images.
    """

    model: str
    batch_size: int
    slicer: Slicer | None
    category_ids: Sequence[int] | None
    iou_types: Sequence[IouType]
    views: ViewsConfig
    keep: KeepServed | None


class Detect(beam.PTransform):
    """Serialized records to `DetectedBatch`es, through a model."""

    def __init__(self, options: DetectOptions) -> None:
        super().__init__()
        self._options = options

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        """Builds the steps."""
        size = self._options.batch_size
        batches = (
            records
            | "Batch" >> beam.BatchElements(min_batch_size=size, max_batch_size=size)
            | "Detect" >> beam.ParDo(_Detect(self._options))
        )
        if self._options.category_ids is None:
            return batches
        return batches | "Known" >> beam.Map(of_categories, category_ids=self._options.category_ids)


class _Detect(beam.DoFn):
    """Batches of serialized records to `DetectedBatch`; each worker process loads the model once."""

    def __init__(self, options: DetectOptions) -> None:
        self._options = options
        self._shared = shared.Shared()

    def setup(self) -> None:
        self._loaded = self._shared.acquire(self._load, tag=self._options.model)

    def _load(self) -> "_Loaded":
        size = self._options.batch_size
        detector = open_detector(self._options.model, batch_size=size)
        return _Loaded(detector, augmented(detector, self._options.views, batch_size=size))

    def process(self, serialized: Sequence[bytes]) -> Iterator[DetectedBatch]:
        records = [parse_record(record) for record in serialized]
        images = [record.image for record in records]
        results, slicer = joined(self._results(images)), self._options.slicer
        yield DetectedBatch(
            images=[record.entry for record in records],
            annotations=[annotation for record in records for annotation in record.annotations],
            detections=results.compared_by(tuple(self._options.iou_types), where=self._options.model),
            slices=[slicer.slice_keys(record.example) if slicer else ALL_IMAGES for record in records],
        )

    def _results(self, images: Sequence[EncodedImage]) -> list[Results]:
        with_masks, keep = "segm" in self._options.iou_types, self._options.keep
        plain, detector = self._loaded.plain, self._loaded.detector
        kept = keep.chosen(images) if keep else []
        if keep is None or not kept:
            return detector.detect(images, with_masks=with_masks)
        if detector is not plain:  # a server does not augment
            chosen = [images[position] for position in kept]
            keep.write(plain.outputs(chosen), chosen)
            return detector.detect(images, with_masks=with_masks)
        outputs = plain.outputs(images)
        keep.write(outputs, images)
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
    request: EvaluationRequest,
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
        request: models, records and options.
        params: params of each IoU type.
        given: IoU types by which the detections of each model can be evaluated; it is evaluated by these only.
        images: number of images.
        slicing: `tfma.SlicingSpec`s.
        work: folder, shared by all workers; keeps the detections of `candidate` and
            `baseline` in folders of these names.
        beam_args: `run.beam_args`, the options of the Beam pipeline.

    Raises:
        DataError: an invalid model or record.
    """
    measures = {
        part: [
            Measure(list(request.categories), one, divided=images > request.config.images_per_state)
            for one in params
            if one.iou_type in given[part]
        ]
        for part in request.models
    }
    choice = SampleChoice(request.config.analysis.images, images, request.config.analysis.seed)
    served = KeepServed(SampleChoice(request.served_images, images, request.config.analysis.seed), join(work, _SERVED))
    slicer = Slicer(slicing) if any(spec.ByteSize() for spec in slicing) else None
    pipeline = make_pipeline(beam_args)
    with report_progress("evaluating", pipeline.runner, images, work) as counter, pipeline:
        records = pipeline | "Read" >> ReadRecords(request.records)
        records | "Sample" >> KeepSample(choice, join(work, _SAMPLE))
        for part, model in request.models.items():
            known = None if part == CANDIDATE else [category["id"] for category in request.categories]
            detect = DetectOptions(
                model,
                batch_size=request.config.batch_size,
                slicer=slicer,
                category_ids=known,
                iou_types=[measure.params.iou_type for measure in measures[part]],
                views=request.config.tta,
                keep=served if part == CANDIDATE and request.served_images else None,
            )
            keep = all_images if part == CANDIDATE else choice.holds
            evaluate = Evaluate(measures[part], join(work, part), keep=keep)
            detected = records | f"{part}Detect" >> Detect(detect)
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
