"""Beam: serialized records, through a model, to the state of an evaluation in one file."""

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.utils import shared

from components.coco_evaluator.records import parse_record
from detection.coco import MetricsAccumulator
from detection.coco.columns import Rows
from detection.inference import SavedModelDetector

_STATE, _ROWS = "state", "rows"


class DetectedBatch(NamedTuple):
    """Some whole images: COCO entries, and detections as rows [N, 7] of COCO values."""

    images: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    rows: Rows


class Evaluated(NamedTuple):
    """What a model did on a split.

    accumulator: the evaluation; `result()` gives the figures.
    rows: float64 [N, 7], all detections by ascending image id.
    """

    accumulator: MetricsAccumulator
    rows: Rows


class EvaluateToFile(beam.PTransform):
    """Serialized records to a file that `read_evaluated` reads.

    Args:
        model: SavedModel folder.
        batch_size: images a call of the model.
        categories: COCO `categories` of the data set.
        path: the file, where workers and the caller see it.
        known_only: leave out what the model finds of other categories, as a model of
            an earlier state of the data set may; else it is an error.
    """

    def __init__(
        self,
        *,
        model: str,
        batch_size: int,
        categories: Sequence[dict[str, Any]],
        path: str,
        known_only: bool = False,
    ) -> None:
        super().__init__()
        self._known_only = known_only
        self._model = model
        self._batch_size = batch_size
        self._categories = list(categories)
        self._path = path

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        """Builds the steps."""
        return (
            records
            | "Batch" >> beam.BatchElements(min_batch_size=self._batch_size, max_batch_size=self._batch_size)
            | "Detect" >> beam.ParDo(_Detect(self._model, self._batch_size))
            | "Known" >> beam.Map(_of_categories, ids=self._known_ids())
            | "Match" >> beam.CombineGlobally(_Match(self._categories))
            | "Write" >> beam.Map(_write, path=self._path)
        )

    def _known_ids(self) -> list[int] | None:
        return [category["id"] for category in self._categories] if self._known_only else None


def _of_categories(batch: DetectedBatch, ids: list[int] | None) -> DetectedBatch:
    return batch if ids is None else batch._replace(rows=batch.rows[np.isin(batch.rows[:, 6], ids)])


def read_evaluated(path: str, categories: Sequence[dict[str, Any]]) -> Evaluated:
    """Reads what `EvaluateToFile` wrote for the same categories."""
    with FileSystems.open(path) as file, np.load(io.BytesIO(file.read())) as arrays:
        return Evaluated(MetricsAccumulator.from_bytes(arrays[_STATE].tobytes(), categories), arrays[_ROWS])


class _Detect(beam.DoFn):
    """Batches of serialized records to `DetectedBatch`; the model is loaded once a worker process."""

    def __init__(self, model: str, batch_size: int) -> None:
        self._model = model
        self._batch_size = batch_size
        self._shared = shared.Shared()

    def setup(self) -> None:
        self._detector = self._shared.acquire(
            lambda: SavedModelDetector(folder=self._model, batch_size=self._batch_size), tag=self._model
        )

    def process(self, serialized: Sequence[bytes]) -> Iterator[DetectedBatch]:
        records = [parse_record(record) for record in serialized]
        rows = self._detector.detect([record.image for record in records])
        yield DetectedBatch(
            images=[record.entry for record in records],
            annotations=[annotation for record in records for annotation in record.annotations],
            rows=np.concatenate(rows),
        )


class _Partial(NamedTuple):
    """A part of an evaluation, as it travels between workers."""

    accumulator: MetricsAccumulator
    rows: list[Rows]


class _Match(beam.CombineFn):
    """`DetectedBatch`es to (accumulator's bytes, rows by image id)."""

    def __init__(self, categories: Sequence[dict[str, Any]]) -> None:
        self._categories = categories

    def create_accumulator(self) -> _Partial:
        return _Partial(MetricsAccumulator(self._categories, where="categories of the examples"), [])

    def add_input(self, partial: _Partial, batch: DetectedBatch) -> _Partial:
        partial.accumulator.add(
            batch.images,
            batch.annotations,
            batch.rows,
            where="ground truth of the examples",
            where_detections="detections of the model",
        )
        partial.rows.append(batch.rows)
        return partial

    def merge_accumulators(self, partials: Iterable[_Partial]) -> _Partial:
        merged = self.create_accumulator()
        for partial in partials:
            merged.accumulator.merge(partial.accumulator)
            merged.rows.extend(partial.rows)
        return merged

    def extract_output(self, partial: _Partial) -> tuple[bytes, Rows]:
        rows = np.concatenate([np.zeros((0, 7)), *partial.rows])
        # Stable: within an image the order stays, which decides between equal scores.
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return partial.accumulator.to_bytes(), rows


def _write(evaluated: tuple[bytes, Rows], path: str) -> str:
    state, rows = evaluated
    content = io.BytesIO()
    arrays: dict[str, Any] = {_STATE: np.frombuffer(state, np.uint8), _ROWS: rows}
    np.savez(content, **arrays)
    with FileSystems.create(path) as file:
        file.write(content.getvalue())
    return path
