"""The split that checkpoints are evaluated on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from detection.coco.accumulator import MetricsAccumulator
from detection.coco.figures import UNDEFINED
from detection.coco.metrics import CocoMetrics
from detection.data.evaluation_records import EvaluationRecord, parse_record
from detection.data.record_reader import RecordReader
from detection.inference import SignatureDetector
from schemas.errors import DataError

_EMPTY = np.zeros((0, 7))


class ValidationSplit:
    """Records to evaluate on, each once, those without objects too.

    Args:
        shards: TFRecord files with the keys of `schemas.features`, of one split.
        categories: COCO `categories` of the data set.
        batch_size: records in memory at once.
        max_images: of more records a sample of so many, always the same; None: all.

    Raises:
        DataError: see `RecordReader`.
    """

    def __init__(
        self,
        shards: Sequence[str],
        *,
        categories: Sequence[Mapping[str, Any]],
        batch_size: int,
        max_images: int | None = None,
    ) -> None:
        self._reader = RecordReader(shards)
        self._categories = list(categories)
        self._batch_size = batch_size
        order = np.random.Generator(np.random.Philox(0)).permutation(len(self._reader))
        self._indices: list[int] = np.sort(order[:max_images]).tolist()

    def __len__(self) -> int:
        return len(self._indices)

    def require_defined(self, metric: str) -> None:
        """Sees that a figure can be measured here, and that every record can be read.

        Raises:
            DataError: it cannot; a record that cannot be evaluated.
        """
        if self._measured(lambda records: _EMPTY).figures[metric] == UNDEFINED:
            raise DataError(
                f"train.validation.metric={metric}: cannot be measured, as none of the {len(self)} images to evaluate "
                "on has an object that counts for it. Choose another metric, or give the split more images."
            )

    def evaluate(self, detector: SignatureDetector) -> CocoMetrics:
        """COCO's figures of a detector.

        Raises:
            DataError: a record that cannot be evaluated, or an image that the detector cannot read.
        """
        return self._measured(lambda records: np.concatenate(detector.detect([record.image for record in records])))

    def _measured(self, found_on: Any) -> CocoMetrics:
        accumulator = MetricsAccumulator(self._categories)
        for records in self._batches():
            accumulator.add(
                [record.entry for record in records],
                [annotation for record in records for annotation in record.annotations],
                found_on(records),
            )
        return accumulator.result(last=True)

    def _batches(self) -> Iterator[list[EvaluationRecord]]:
        for start in range(0, len(self._indices), self._batch_size):
            indices = self._indices[start : start + self._batch_size]
            yield [parse_record(self._reader.read(index)) for index in indices]
