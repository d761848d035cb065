"""Beam: `DetectedBatch`es to an evaluation in files: COCO's arrays of each slice, and the detections.

records -> Detect -> DetectedBatch -> Evaluate -> files -> read_slices, read_detections

Workers match some thousand images at a time and write the states into files; only the byte ranges of
the states travel, keyed by slice and partition.  Each key's states are then merged by one worker, one
after the other.  So no element is large, and a worker needs the memory of one key: a slice, or if
the evaluation is divided, one category and area range of it.

No module here imports TensorFlow: without a model, workers do not need it.
"""

import io
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindows

from components.coco_evaluator.beam.batches import DetectedBatch, by_slice, joined, of_images
from components.coco_evaluator.beam.detection_files import DetectionsToFiles
from components.coco_evaluator.tfma.slice_metrics import SliceKey
from detection.coco import MetricsAccumulator
from detection.coco.accumulator import require_once
from detection.coco.engine import Arrays
from detection.coco.metrics import CocoMetrics
from detection.coco.params import Params
from detection.coco.partitions import WHOLE, Partition, by_category, metrics_of_partitions, partitions_of
from detection.coco.validation.checks import check_categories, check_whole_images
from detection.datasets.entries import Ids
from detection.storage.atomic import new_file, write_bytes
from detection.storage.paths import join
from detection.storage.reading import read_bytes, read_range

_CHUNK = 2_000  # images matched at a time
_MANIFEST = "arrays.pickle"

_ARRAYS, _DETECTIONS = "arrays", "detections"


@dataclass(frozen=True)
class Measure:
    """Parameters of the evaluation, for workers.

    categories: COCO `categories` of the data set.
    params: params of the evaluation.
    divided: whether each category and area range has a state of its own; no effect without
        `use_cats`.
    where: names the source of images and annotations in errors.
    where_detections: names the source of the detections in errors.
    """

    categories: list[dict[str, Any]]
    params: Params
    divided: bool = False
    where: str = "ground truth of the examples"
    where_detections: str = "detections of the model"

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


class SliceResult(NamedTuple):
    """Metrics on the images of a slice.

    images, detections: their numbers.
    metrics: metrics and arrays.
    """

    images: int
    detections: int
    metrics: CocoMetrics


class MatchToFiles(beam.PTransform):
    """`DetectedBatch`es to files that `read_slices` reads.

    Args:
        measure: parameters of the evaluation.
        folder: folder for these files alone, shared by all workers and the caller.
    """

    def __init__(self, measure: Measure, folder: str | Path) -> None:
        super().__init__()
        self._measure = measure
        self._folder = str(folder)

    def expand(self, batches: beam.PCollection) -> beam.PCollection:
        """Builds the steps."""
        return (
            batches
            | "Match" >> beam.ParDo(_Match(self._measure, self._folder))
            | "Gather" >> beam.GroupByKey()
            | "Merge" >> beam.MapTuple(partial(_merge, measure=self._measure, folder=self._folder))
            | "List" >> beam.combiners.ToList()
            | "Write" >> beam.Map(_write_manifest, folder=self._folder)
        )


def read_slices(measure: Measure, folder: str | Path) -> Iterator[tuple[SliceKey, SliceResult]]:
    """Yields the slices that `MatchToFiles` wrote with the same measure, one in memory at a time.

    The slice of all images comes first; without images there is no slice.
    """
    merged: list[_Merged | _Counted] = pickle.loads(read_bytes(join(folder, _MANIFEST)))
    counted = {entry.slice_key: entry for entry in merged if isinstance(entry, _Counted)}
    paths: dict[SliceKey, dict[Partition, str]] = {
        key: {} for key in sorted(counted, key=lambda key: (len(key), repr(key)))
    }
    for entry in merged:
        if isinstance(entry, _Merged):
            paths[entry.slice_key][entry.partition] = entry.path
    for key, files in paths.items():
        arrays = {partition: _read_arrays(files.get(partition), partition, measure) for partition in measure.partitions}
        metrics = metrics_of_partitions(arrays, measure.categories, measure.params)
        yield key, SliceResult(counted[key].images, counted[key].detections, metrics)


class _ByteRange(NamedTuple):
    """`length` bytes from `offset` of a file."""

    path: str
    offset: int
    length: int


class _State(NamedTuple):
    """A state in a file, of images of one slice; partition None: their ids, and the number of their detections."""

    slice_key: SliceKey
    partition: Partition | None
    range_: _ByteRange
    detections: int = 0


class _Merged(NamedTuple):
    """The arrays of one partition of a slice, in a file."""

    slice_key: SliceKey
    partition: Partition
    path: str


class _Counted(NamedTuple):
    """Numbers of images and detections in a slice."""

    slice_key: SliceKey
    images: int
    detections: int


class _Match(beam.DoFn):
    """`DetectedBatch`es to (key, `_State`); files of failed attempts are not listed."""

    def __init__(self, measure: Measure, folder: str) -> None:
        self._measure = measure
        self._folder = folder

    def start_bundle(self) -> None:
        self._batches: list[DetectedBatch] = []
        self._images = 0

    def process(self, batch: DetectedBatch) -> Iterator[tuple[str, _State]]:
        self._batches.append(batch)
        self._images += len(batch.images)
        if self._images >= _CHUNK:
            yield from self._flush()

    def finish_bundle(self) -> Iterator[Any]:
        for value in self._flush():
            yield GlobalWindows.windowed_value(value)

    def _flush(self) -> Iterator[tuple[str, _State]]:
        if not self._batches:
            return
        joined_batch = joined(self._batches)
        self.start_bundle()
        path = join(self._folder, f"{uuid.uuid4().hex}.states")
        states = []
        with new_file(path, durable=False) as file:
            for slice_key, batch in by_slice(joined_batch):
                for partition, content in _states(batch, self._measure):
                    range_ = _ByteRange(path, file.tell(), len(content))
                    states.append(_State(slice_key, partition, range_, 0 if partition else len(batch.detections)))
                    file.write(content)
        for state in states:
            # Beam compares encoded keys; equal texts are encoded equally, whatever a slice's values are.
            yield repr((state.slice_key, state.partition)), state


def _states(batch: DetectedBatch, measure: Measure) -> Iterator[tuple[Partition | None, bytes]]:
    """Yields the states of some images, without empty partitions, then the images' ids."""
    checked = check_whole_images(
        batch.images,
        batch.annotations,
        batch.detections,
        category_ids=check_categories(measure.categories, where=measure.where, lvis=measure.params.lvis),
        params=measure.params,
        where=measure.where,
        where_detections=measure.where_detections,
    )
    by_id = {} if measure.partitions == [WHOLE] else by_category(checked)
    for partition in measure.partitions:
        mine = checked if partition.category_id is None else by_id.get(partition.category_id)
        if mine is not None:
            accumulator = MetricsAccumulator(measure.categories_of(partition), measure.params, partition=partition)
            accumulator.add_checked(mine, where=measure.where)
            yield partition, accumulator.to_bytes()
    yield None, checked.image_ids.tobytes()


def _merge(key: str, states: Iterable[_State], measure: Measure, folder: str) -> _Merged | _Counted:
    """Merges the states of a key: counts the images, or writes their arrays."""
    listed = list(states)
    slice_key, partition = listed[0].slice_key, listed[0].partition
    contents = (_read(state.range_) for state in listed)
    if partition is None:
        ids: Ids = np.frombuffer(b"".join(contents), np.int64)
        require_once(ids, measure.where)
        return _Counted(slice_key, len(ids), sum(state.detections for state in listed))
    arrays = MetricsAccumulator.arrays_of_states(
        contents, measure.categories_of(partition), measure.params, partition=partition
    )
    path = join(folder, f"{uuid.uuid4().hex}.npz")
    with new_file(path, durable=False) as file:
        np.savez(file, **vars(arrays))
    return _Merged(slice_key, partition, path)


def _read(range_: _ByteRange) -> bytes:
    return read_range(range_.path, range_.offset, range_.length)


def _read_arrays(path: str | None, partition: Partition, measure: Measure) -> Arrays:
    """Reads the arrays of a partition; without a file, those of a partition without ground truth and detections."""
    if path is None:
        return MetricsAccumulator(measure.categories_of(partition), measure.params, partition=partition).arrays()
    with np.load(io.BytesIO(read_bytes(path))) as arrays:
        return Arrays(**{**arrays, "category_ids": tuple(arrays["category_ids"].tolist())})


def _write_manifest(merged: list[_Merged | _Counted], folder: str) -> None:
    write_bytes(join(folder, _MANIFEST), pickle.dumps(merged))


class Evaluate(beam.PTransform):
    """`DetectedBatch`es to files, in folders that `arrays_folder` and `detections_folder` name.

    Args:
        measures: parameters of the evaluation by each IoU type.
        folder: folder for these files alone, shared by all workers and the caller.
        keep: returns whether to write the detections of an image, too; None: no detections.
    """

    def __init__(
        self, measures: Sequence[Measure], folder: str | Path, *, keep: Callable[[int], bool] | None = None
    ) -> None:
        super().__init__()
        self._measures = measures
        self._folder = folder
        self._keep = keep

    def expand(self, batches: beam.PCollection) -> Any:  # Beam warns of a tuple's type
        """Builds the steps."""
        done = [
            batches | f"Arrays {measure.params.iou_type}" >> MatchToFiles(measure, arrays_folder(self._folder, measure))
            for measure in self._measures
        ]
        if self._keep is not None:
            kept = batches | "Keep" >> beam.Map(partial(_of_images, keep=self._keep))
            done.append(kept | "Detections" >> DetectionsToFiles(detections_folder(self._folder)))
        return tuple(done)


def arrays_folder(folder: str | Path, measure: Measure) -> str:
    """Returns the folder of `Evaluate` that `read_slices` reads with this measure."""
    return join(folder, _ARRAYS, measure.params.iou_type)


def detections_folder(folder: str | Path) -> str:
    """Returns the folder of `Evaluate` that `write_detections` reads."""
    return join(folder, _DETECTIONS)


def all_images(image_id: int) -> bool:
    """Keeps the detections of every image, for `Evaluate`."""
    return True


def _of_images(batch: DetectedBatch, keep: Callable[[int], bool]) -> DetectedBatch:
    if keep is all_images:
        return batch
    return of_images(batch, {image["id"] for image in batch.images if keep(image["id"])})
