"""The split that checkpoints are evaluated on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from detection.analysis.error_analysis import image_results
from detection.coco.accumulator import MetricsAccumulator
from detection.coco.metrics import UNDEFINED, CocoMetrics
from detection.coco.params import Params, make_params
from detection.images.drawing import Picture
from detection.inference.results import joined
from detection.inference.saved_model import SignatureDetector
from detection.input_pipeline.evaluation_records import EvaluationRecord, parse_record, stored_picture
from detection.input_pipeline.record_reader import RecordReader
from detection.reports.tensorboard import draw_image_results
from schemas.config.config import AnalysisConfig
from schemas.errors import DataError


class ValidationSplit:
    """Records to evaluate on, each once, including those without annotations.

    Args:
        shards: TFRecord files with the keys of `schemas.features`, of one split.
        categories: COCO categories of the data set.
        batch_size: records in memory at once.
        max_images: max number of records, always the same sample; None: all.
        params: parameters of the evaluation; default: COCO's of boxes.

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
        params: Params | None = None,
    ) -> None:
        self._reader = RecordReader(shards)
        self._params = params or make_params()
        self._categories = list(categories)
        self._batch_size = batch_size
        # The same order whatever `max_images`, so that a larger sample holds the smaller one.
        order = np.random.Generator(np.random.Philox(0)).permutation(len(self._reader))
        self._chosen: list[int] = order[:max_images].tolist()
        self._indices = sorted(self._chosen)

    def __len__(self) -> int:
        return len(self._indices)

    def require_defined(self, metric: str) -> None:
        """Checks that a metric can be measured here, and that every record can be read.

        Raises:
            DataError: the metric cannot be measured, or a record cannot be evaluated.
        """
        if self._measured(lambda records: []).by_name.get(metric, UNDEFINED) == UNDEFINED:
            raise DataError(
                f"train.validation.metric={metric}: cannot be measured, as none of the {len(self)} images to evaluate "
                "on has an annotation that counts for it. Choose another metric, or give the split more images."
            )

    def evaluate(self, detector: SignatureDetector) -> CocoMetrics:
        """Computes a detector's COCO metrics.

        Raises:
            DataError: a record that cannot be evaluated, or an image that the detector cannot read.
        """
        iou_type = self._params.iou_type

        def detections(records: Sequence[EvaluationRecord]) -> Any:
            images = [record.image for record in records]
            return joined(detector.detect(images, with_masks=iou_type == "segm")).of_iou_type(iou_type)

        return self._measured(detections)

    def records(self) -> Iterator[bytes]:
        """Reads the serialized records."""
        return map(self._reader.read, self._indices)

    def pictures(self, detector: SignatureDetector, options: AnalysisConfig) -> list[Picture]:
        """Draws ground truth beside detections on some images, the same ones in the same order at every call.

        Args:
            detector: detector to run on these images.
            options: number of images, score threshold and number of boxes.

        Raises:
            DataError: see `evaluate`.
        """
        indices = sorted(self._chosen[: options.visualizations])
        records = {record.image.image_id: record for record in map(self._record, indices)}
        if not records:
            return []
        tree = {
            "images": [record.entry for record in records.values()],
            "annotations": [annotation for record in records.values() for annotation in record.annotations],
            "categories": self._categories,
        }
        compared = "segm" if self._params.iou_type == "segm" else "bbox"
        images = [record.image for record in records.values()]
        detections = joined(detector.detect(images, with_masks=compared == "segm")).of_iou_type(compared)
        return draw_image_results(
            image_results(tree, detections, params=make_params(compared), options=options),
            lambda image_id: stored_picture(records[image_id]),
            {category["id"]: str(category.get("name", category["id"])) for category in self._categories},
            max_boxes=options.max_boxes,
        )

    def _record(self, index: int) -> EvaluationRecord:
        return parse_record(self._reader.read(index))

    def _measured(self, detections_of: Any) -> CocoMetrics:
        accumulator = MetricsAccumulator(self._categories, self._params)
        for records in self._batches():
            accumulator.add(
                [record.entry for record in records],
                [annotation for record in records for annotation in record.annotations],
                detections_of(records),
            )
        return accumulator.result(last=True)

    def _batches(self) -> Iterator[list[EvaluationRecord]]:
        for start in range(0, len(self._indices), self._batch_size):
            indices = self._indices[start : start + self._batch_size]
            yield [self._record(index) for index in indices]
