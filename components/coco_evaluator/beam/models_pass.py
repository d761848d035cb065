"""One pass over a split's records: all models, all slices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam

from components.coco_evaluator.beam.detect import Detect
from components.coco_evaluator.beam.matching import Measure, SliceResult, read_slices
from components.coco_evaluator.beam.sample import Choice, KeepSample, Sample
from components.coco_evaluator.beam.transforms import Evaluate, all_images, arrays_folder
from components.coco_evaluator.request import Task
from components.coco_evaluator.tfma.slice_figures import CANDIDATE, SliceFigures
from components.coco_evaluator.tfma.slice_keys import OVERALL, SliceKey
from components.coco_evaluator.tfma.slicing import Slicer
from detection.coco.params import Settings
from detection.storage.atomic import write_text
from detection.storage.tfrecord import find_shards, read_shard

MakePipeline = Callable[[], beam.Pipeline]

_COUNT, _SAMPLE = "count", "sample"


@dataclass(frozen=True)
class Measured:
    """What a pass has found.

    overall: on all images, by the models' part; empty where there is no image.
    slices: figures of each slice, that of all images included, by the models' part.
    sample: the images that are analysed.
    """

    overall: dict[str, SliceResult]
    slices: dict[SliceKey, dict[str, SliceFigures]]
    sample: Sample


def run_models(
    task: Task, *, settings: Settings, slicing: Sequence[Any], work: Path, make_pipeline: MakePipeline
) -> Measured:
    """Runs all models over the records.

    Args:
        task: names models and records.
        settings: of the evaluation.
        slicing: `tfma.SlicingSpec`s.
        work: existing folder, seen by all workers; keeps each model's detections, in a
            folder with the name of its part.
        make_pipeline: of the Beam pipelines.

    Raises:
        DataError: a model or a record that cannot be used.
    """
    images = task.images
    if images is None:
        images = _count_records(task.records, work / _COUNT, make_pipeline)
    measure = Measure(list(task.categories), settings, divided=images > task.images_per_state)
    choice = Choice(task.analysis.images, images, task.analysis.seed)
    slicer = Slicer(slicing) if any(spec.ByteSize() for spec in slicing) else None
    with make_pipeline() as pipeline:
        records = pipeline | "Read" >> _ReadRecords(task.records)
        records | "Sample" >> KeepSample(choice, work / _SAMPLE)
        for part, model in task.models.items():
            known = None if part == CANDIDATE else [category["id"] for category in task.categories]
            detect = Detect(
                model, batch_size=task.batch_size, slicer=slicer, category_ids=known, iou_type=settings.iou_type
            )
            keep = all_images if part == CANDIDATE else choice.holds
            records | f"{part}Detect" >> detect | f"{part}Evaluate" >> Evaluate(measure, work / part, keep=keep)
    overall, slices = _read(list(task.models), measure, work)
    return Measured(overall, slices, Sample(choice, work / _SAMPLE))


class _ReadRecords(beam.PTransform):
    """The records of TFRecord files, of which Beam's own source would take the path for a pattern."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._shards = find_shards(where)

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        """Builds the steps."""
        return root | beam.Create(self._shards) | beam.Reshuffle() | beam.FlatMap(read_shard)


def _count_records(where: str, path: Path, make_pipeline: MakePipeline) -> int:
    with make_pipeline() as pipeline:
        (
            pipeline
            | "Read" >> _ReadRecords(where)
            | "Count" >> beam.combiners.Count.Globally()
            | "Write" >> beam.Map(lambda count: write_text(path, str(count)))
        )
    return int(path.read_text())


def _read(
    parts: Sequence[str], measure: Measure, work: Path
) -> tuple[dict[str, SliceResult], dict[SliceKey, dict[str, SliceFigures]]]:
    """Of slices only the figures are kept: with many of them, the arrays are large."""
    overall: dict[str, SliceResult] = {}
    slices: dict[SliceKey, dict[str, SliceFigures]] = {}
    for part in parts:
        for key, result in read_slices(measure, arrays_folder(work / part)):
            slices.setdefault(key, {})[part] = SliceFigures.of(result.metrics, images=result.images)
            if key == OVERALL:
                overall[part] = result
    return overall, slices
