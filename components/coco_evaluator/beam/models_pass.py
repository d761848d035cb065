"""Beam: one pass over a split's records: all models, all slices."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.utils import shared

from components.beam.pipelines import make_pipeline
from components.beam.progress import report_progress
from components.coco_evaluator.beam.batches import ALL_IMAGES, DetectedBatch, map_categories, select_images
from components.coco_evaluator.beam.detection_files import detections_to_files
from components.coco_evaluator.beam.evaluate import Measure, SliceResult, evaluate_batches, read_slices
from components.coco_evaluator.beam.sample import KeepServed, SampleChoice, SampleRecords, keep_sample, read_served
from components.coco_evaluator.tfma.slice_metrics import CANDIDATE, OVERALL, SliceKey, SliceMetrics
from components.coco_evaluator.tfma.slicing import Slicer
from detection.coco.params import Params
from detection.datasets.examples import ids_by_name, require_all_images
from detection.inference.detectors import open_detector
from detection.inference.restore import read_model_categories
from detection.inference.results import joined
from detection.inference.serving_sample import ServedImage
from detection.inference.test_time_augmentation import augmented
from detection.input_pipeline.evaluation_records import parse_record
from detection.storage.paths import join
from detection.storage.tfrecord import find_shards, read_shard
from schemas.config.evaluate import EvaluateConfig
from schemas.metrics import IouType

_SAMPLE, _SERVED, _ARRAYS = "sample", "served", "arrays"


@dataclass(frozen=True)
class EvaluationRequest:
    """An evaluation of models on the records of a split.

    records: folder or pattern of the TFRecord files.
    images: number of images; None: unknown, they are counted first.
    categories: COCO `categories` of the data set.
    models: SavedModel folder of `candidate` and optionally `baseline`, whose categories are those of the same
        names; its detections of unknown ones are dropped.
    eval_config: checked `tfma.EvalConfig`; None: COCO's params on all images.
    config: options of the evaluation; its `split` and `eval_config` are read already.
    locations: path of each model and, as `data`, of the examples, as shown in TFMA's files and
        the report.
    served_images: number of images whose outputs of the candidate are kept for the pusher.
    """

    records: str
    images: int | None
    categories: Sequence[dict[str, Any]]
    models: Mapping[str, str]
    locations: Mapping[str, str]
    config: EvaluateConfig
    eval_config: Any | None = None
    served_images: int = 0


class _Detect(beam.DoFn):
    """Batches of serialized records to `DetectedBatch`es, through a model, which each worker process loads once.

    Args:
        model: folder or file of the model.
        config: `batch_size`, images per call of the model, and `tta` are used.
        slicer: finds the slices of a record; None: all images are one slice.
        ids: category ids of the model -> those of the data set; detections of other categories are dropped, as of a
            model trained on an earlier state of the data set; None: all are kept.
        iou_types: IoU types by which detections are compared.
        keep: images whose outputs without augmentation are written; None: no images.
    """

    def __init__(
        self,
        model: str,
        config: EvaluateConfig,
        *,
        slicer: Slicer | None,
        ids: Mapping[int, int] | None,
        iou_types: Sequence[IouType],
        keep: KeepServed | None,
    ) -> None:
        self._model = model
        self._config = config
        self._slicer = slicer
        self._ids = ids
        self._iou_types = tuple(iou_types)
        self._keep = keep
        self._shared = shared.Shared()

    def setup(self) -> None:
        size = self._config.batch_size
        self._plain = self._shared.acquire(partial(open_detector, self._model, batch_size=size), tag=self._model)
        self._detector = augmented(self._plain, self._config.tta, batch_size=size)

    def process(self, serialized: Sequence[bytes]) -> Iterator[DetectedBatch]:
        records = [parse_record(record) for record in serialized]
        images, slicer = [record.image for record in records], self._slicer
        if self._keep and (kept := self._keep.chosen(images)):
            self._keep.write(self._plain.outputs(kept), kept)
        results = joined(self._detector.detect(images, with_masks="segm" in self._iou_types))
        batch = DetectedBatch(
            images=[record.entry for record in records],
            annotations=[annotation for record in records for annotation in record.annotations],
            detections=results.compared_by(self._iou_types, where=self._model),
            slices=[slicer.slice_keys(record) if slicer else ALL_IMAGES for record in records],
        )
        yield batch if self._ids is None else map_categories(batch, self._ids)


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
        records = pipeline | "Read" >> read_records(request.records)
        records | "Sample" >> keep_sample(choice, join(work, _SAMPLE))
        size = request.config.batch_size
        batches = records | "Batch" >> beam.BatchElements(min_batch_size=size, max_batch_size=size)
        for part, model in request.models.items():
            detect = _Detect(
                model,
                request.config,
                slicer=slicer,
                ids=None if part == CANDIDATE else ids_by_name(read_model_categories(model), request.categories),
                iou_types=[measure.params.iou_type for measure in measures[part]],
                keep=served if part == CANDIDATE and request.served_images else None,
            )
            detected = batches | f"{part}Detect" >> beam.ParDo(detect)
            detected | f"{part}Evaluate" >> evaluate_batches(measures[part], join(work, part, _ARRAYS))
            kept = detected if part == CANDIDATE else detected | "Keep" >> beam.Map(_select_sample, choice)
            kept | f"{part}Detections" >> detections_to_files(detections_folder(work, part))
            if part == CANDIDATE:  # the baseline gets each record at the same time
                detected | "Count" >> beam.Map(lambda batch: counter.add(len(batch.images)))
    overall, slices = _read(measures, work)
    for result in overall.get(CANDIDATE, {}).values():
        require_all_images(request.records, result.images)
    return Measured(overall, slices, SampleRecords(choice, join(work, _SAMPLE)), read_served(served))


def detections_folder(work: str | Path, part: str) -> str:
    """Returns the folder of a model's detections, which `write_detections` reads.

    Args:
        work: folder of `run_models`.
        part: role of the model.
    """
    return join(work, part, "detections")


def _select_sample(batch: DetectedBatch, choice: SampleChoice) -> DetectedBatch:
    return select_images(batch, {image["id"] for image in batch.images if choice.holds(image["id"])})


@beam.ptransform_fn
def read_records(root: beam.pvalue.PBegin, where: str) -> beam.PCollection:
    """The records of TFRecord files, of which Beam's own source would take the path for a pattern."""
    return root | beam.Create(find_shards(where)) | beam.Reshuffle() | beam.FlatMap(read_shard)


def _read(
    measures: Mapping[str, Sequence[Measure]], work: str | Path
) -> tuple[dict[str, dict[str, SliceResult]], dict[SliceKey, dict[str, SliceMetrics]]]:
    """Reads the results; keeps the arrays of all images only, as those of many slices are large."""
    overall: dict[str, dict[str, SliceResult]] = {}
    slices: dict[SliceKey, dict[str, SliceMetrics]] = {}
    for part, of_types in measures.items():
        for results in zip(*(read_slices(one, join(work, part, _ARRAYS)) for one in of_types), strict=True):
            key, images = results[0][0], results[0][1].images
            metrics = [result.metrics for _, result in results]
            slices.setdefault(key, {})[part] = SliceMetrics.of(metrics, images=images)
            if key == OVERALL:
                overall[part] = {result.metrics.iou_type: result for _, result in results}
    return overall, slices
