"""Beam: `DetectedBatch`es to an evaluation in files: COCO's arrays of each slice.

records -> model -> DetectedBatch -> evaluate_batches -> files -> read_slices

Workers match some thousand images at a time and write the states into files; only the byte ranges of
the states travel, keyed by slice and partition.  Each key's states are then merged by one worker, one
after the other.  So no element is large, and a worker needs the memory of one key: a slice, or if
the evaluation is divided, one category and area range of it.

No module here imports TensorFlow: without a model, workers do not need it.
"""

import io
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
import numpy as np

from components.coco_evaluator.beam.batches import DetectedBatch, join_batches, split_by_slice
from components.coco_evaluator.tfma.slice_metrics import SliceKey
from detection.coco import MetricsAccumulator
from detection.coco.accumulator import require_once
from detection.coco.average_precision import named_metric
from detection.coco.engine import Arrays
from detection.coco.io.blocks import BlockPlace
from detection.coco.metric import Matched, Metric, Values, with_values
from detection.coco.metrics import UNDEFINED, CocoMetrics
from detection.coco.params import Params
from detection.coco.partitions import WHOLE, Partition, by_category, metrics_of_partitions, partitions_of
from detection.coco.validation.checks import check_categories, check_whole_images
from detection.datasets.annotations.entries import Ids
from detection.storage.atomic import new_file, write_bytes
from detection.storage.files import read_bytes, read_range
from detection.storage.paths import join

_CHUNK = 2_000  # images matched at a time
_MANIFEST = "arrays.pickle"
_WHERE, _WHERE_DETECTIONS = "ground truth of the examples", "detections of the model"  # in errors


@dataclass(frozen=True)
class Measure:
    """Parameters of the evaluation, for workers.

    categories: COCO `categories` of the data set.
    params: params of the evaluation, as `fit_keypoints` returns them.
    divided: whether each category and area range has a state of its own; no effect without
        `use_cats`.
    """

    categories: list[dict[str, Any]]
    params: Params
    divided: bool = False

    @property
    def coco_params(self) -> Params:
        """The params of the states of COCO's metrics."""
        return replace(self.params, metrics=())

    @property
    def metrics(self) -> dict[Metric, list["MetricPart"]]:
        """The metrics besides COCO's, each with the parts that have a state of their own."""
        ids = sorted(category["id"] for category in self.categories)
        divided = self.partitions != [WHOLE]
        metrics = [named_metric(name) for name in self.params.metrics]
        return {
            metric: [MetricPart(metric.name, one) for one in (ids if divided and not metric.pooled else [None])]
            for metric in metrics
        }

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of the evaluation, each with its own state."""
        divided = self.divided and self.params.use_cats and self.categories
        return partitions_of(self.categories, self.params) if divided else [WHOLE]

    def categories_of(self, partition: Partition) -> list[dict[str, Any]]:
        """Returns the categories of a partition."""
        if partition.category_id is None:
            return self.categories
        return [category for category in self.categories if category["id"] == partition.category_id]


class MetricPart(NamedTuple):
    """The part of a metric besides COCO's that one worker merges; `category_id` None: all categories."""

    name: str
    category_id: int | None


# Partition None: the images' ids, and the number of detections.
_Part: TypeAlias = tuple[SliceKey, Partition | MetricPart | None]


class SliceResult(NamedTuple):
    """Metrics on the images of a slice.

    images, detections: their numbers.
    metrics: metrics and arrays.
    """

    images: int
    detections: int
    metrics: CocoMetrics


@beam.ptransform_fn
def evaluate_batches(batches: beam.PCollection, measures: Sequence[Measure], folder: str | Path) -> Any:
    """`DetectedBatch`es to files that `read_slices` reads; all measures share the batches.

    Args:
        batches: with each image once.
        measures: parameters of the evaluation by each IoU type.
        folder: folder for these files alone, shared by all workers and the caller.
    """
    chunks = batches | beam.BatchElements(
        min_batch_size=_CHUNK, max_batch_size=_CHUNK, element_size_fn=lambda batch: len(batch.images)
    )
    return tuple(chunks | measure.params.iou_type >> _match_chunks(measure, folder) for measure in measures)


@beam.ptransform_fn
def _match_chunks(chunks: beam.PCollection, measure: Measure, folder: str | Path) -> beam.PCollection:
    place = _arrays_folder(folder, measure)
    return (
        chunks
        | "Match" >> beam.FlatMap(partial(_match, measure=measure, folder=place))
        | "Gather" >> beam.GroupByKey()
        | "Merge" >> beam.MapTuple(partial(_merge, measure=measure, folder=place))
        | "Collect" >> beam.combiners.ToDict()
        | "Write" >> beam.Map(lambda merged: write_bytes(join(place, _MANIFEST), pickle.dumps(merged)))
    )


def read_slices(measure: Measure, folder: str | Path) -> Iterator[tuple[SliceKey, SliceResult]]:
    """Yields the slices that `evaluate_batches` wrote with this measure, one in memory at a time.

    The slice of all images comes first; without images there is no slice.
    """
    merged: dict[_Part, Any] = pickle.loads(read_bytes(join(_arrays_folder(folder, measure), _MANIFEST)))
    counted = {key: counts for (key, partition), counts in merged.items() if partition is None}
    for key in sorted(counted, key=lambda key: (len(key), repr(key))):
        arrays = {part: _read_arrays(merged.get((key, part)), part, measure) for part in measure.partitions}
        metrics = metrics_of_partitions(arrays, measure.categories, measure.params)
        metrics = with_values(
            metrics, {one.name: _values(one, parts, key, merged) for one, parts in measure.metrics.items()}
        )
        images, detections = counted[key]
        yield key, SliceResult(images, detections, metrics)


def _values(metric: Metric, parts: Sequence[MetricPart], key: SliceKey, merged: Mapping[_Part, Any]) -> Values:
    values = [merged.get((key, part), Values(UNDEFINED, {})) for part in parts]
    if metric.pooled:
        return values[0]
    return Values.mean_of({category_id: one for own in values for category_id, one in own.per_category.items()})


class _State(NamedTuple):
    """A state in a file, of some images; `detections`: their number, where the partition is None."""

    part: _Part
    place: BlockPlace
    detections: int


def _match(batches: Sequence[DetectedBatch], measure: Measure, folder: str) -> Iterator[tuple[str, _State]]:
    """Batches of images to (key, `_State`); files of failed attempts are not listed."""
    if not batches:  # before one that is a chunk by itself
        return
    path = join(folder, f"{uuid.uuid4().hex}.states")
    states = []
    with new_file(path, durable=False) as file:
        for slice_key, batch in split_by_slice(join_batches(batches)):
            for partition, content in _states(batch, measure):
                place = BlockPlace(path, file.tell(), len(content))
                states.append(_State((slice_key, partition), place, len(batch.detections)))
                file.write(content)
    for state in states:
        # Beam compares encoded keys; equal texts are encoded equally, whatever a slice's values are.
        yield repr(state.part), state


def _states(batch: DetectedBatch, measure: Measure) -> Iterator[tuple[Partition | MetricPart | None, bytes]]:
    """Yields the states of some images, without empty partitions, then the images' ids."""
    checked = check_whole_images(
        batch.images,
        batch.annotations,
        batch.detections,
        category_ids=check_categories(measure.categories, where=_WHERE, lvis=measure.params.lvis),
        params=measure.params,
        where=_WHERE,
        where_detections=_WHERE_DETECTIONS,
    )
    by_id = {} if measure.partitions == [WHOLE] else by_category(checked)
    for partition in measure.partitions:
        mine = checked if partition.category_id is None else by_id.get(partition.category_id)
        if mine is not None:
            accumulator = MetricsAccumulator(measure.categories_of(partition), measure.coco_params, partition=partition)
            accumulator.add_checked(mine, where=_WHERE)
            yield partition, accumulator.to_bytes()
    for metric, parts in measure.metrics.items():
        matched = metric.match(checked, measure.categories, measure.params.iou_type)
        ids = [part.category_id for part in parts if part.category_id is not None]
        rows: dict[int | None, Matched] = {None: matched, **dict(matched.by_category(ids))}
        yield from (
            (part, rows[part.category_id].to_bytes()) for part in parts if any(map(len, rows[part.category_id]))
        )
    yield None, checked.image_ids.tobytes()


def _merge(key: str, states: Iterable[_State], measure: Measure, folder: str) -> tuple[_Part, Any]:
    """Merges the states of a key: counts images and detections, or writes arrays and returns the file's path."""
    listed = list(states)
    _, partition = part = listed[0].part
    contents = (read_range(*state.place) for state in listed)
    if partition is None:
        ids: Ids = np.frombuffer(b"".join(contents), np.int64)
        require_once(ids, _WHERE)
        return part, (len(ids), sum(state.detections for state in listed))
    if isinstance(partition, MetricPart):
        categories = sorted(one["id"] for one in measure.categories)
        values_of = categories if partition.category_id is None else [partition.category_id]
        return part, named_metric(partition.name).values(Matched.merged(map(Matched.from_bytes, contents)), values_of)
    arrays = MetricsAccumulator.arrays_of_states(
        contents, measure.categories_of(partition), measure.coco_params, partition=partition
    )
    path = join(folder, f"{uuid.uuid4().hex}.npz")
    content = io.BytesIO()  # NumPy's archive, left open by a full disk, would print a traceback when it is collected
    np.savez(content, **vars(arrays))
    write_bytes(path, content.getvalue(), durable=False)
    return part, path


def _read_arrays(path: str | None, partition: Partition, measure: Measure) -> Arrays:
    """Reads the arrays of a partition; without a file, those of a partition without ground truth and detections."""
    if path is None:
        return MetricsAccumulator(measure.categories_of(partition), measure.coco_params, partition=partition).arrays()
    with np.load(io.BytesIO(read_bytes(path))) as arrays:
        return Arrays(**{**arrays, "category_ids": tuple(arrays["category_ids"].tolist())})


def _arrays_folder(folder: str | Path, measure: Measure) -> str:
    return join(folder, measure.params.iou_type)
