"""The split for evaluating checkpoints."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from detection.analysis.error_analysis import image_results
from detection.coco.accumulator import MetricsAccumulator
from detection.coco.iou_types import choose_iou_types, count_annotations
from detection.coco.metrics import UNDEFINED, CocoMetrics
from detection.coco.params import OksSigmas, Params, make_params
from detection.coco.summary import metrics_to_json
from detection.images.drawing import Picture
from detection.inference.device_copies import map_in_turn
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.results import joined
from detection.input_pipeline.evaluation_records import EvaluationRecord, parse_record, stored_picture
from detection.input_pipeline.record_reader import RecordReader
from detection.reports.tensorboard import draw_image_results
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import DataError
from schemas.metrics import IouType, metrics_of_report

_DRAWN: tuple[IouType, ...] = ("segm", "keypoints")  # on pictures, if evaluated; otherwise boxes alone


@dataclass(frozen=True)
class Share:
    """This machine's share of an evaluation: batches `index`, `index + count`, `index + 2 count`, ...

    index: index of the machine; 0 for the chief.
    count: number of machines.
    gather: exchanges bytes with the other machines; returns the bytes of all, by index.
    """

    index: int = 0
    count: int = 1
    gather: Callable[[bytes], Sequence[bytes]] = field(default=lambda data: [data])


ALONE = Share()


class ValidationSplit:
    """Records to evaluate on, each once, including those without annotations.

    Args:
        reader: reader of records with the keys of `schemas.features`.
        categories: COCO categories of the data set.
        batch_size: max records in memory.
        max_images: max number of records, always the same sample; None: all.
        iou_types: requested IoU types; None: those of both the detector and the ground truth.
        given: IoU types that the detector supports.
        metrics: metrics of boxes and masks besides COCO's, such as `pascal_voc_AP50`.
        use_cats: False: evaluate as if there were one category.
        oks_sigmas: see `fit_keypoints`.
        share: share of the evaluation for this machine.

    Raises:
        DataError: a record that cannot be evaluated.
    """

    def __init__(
        self,
        reader: RecordReader,
        *,
        categories: Sequence[Mapping[str, Any]],
        batch_size: int,
        max_images: int | None = None,
        iou_types: Sequence[IouType] | None = None,
        given: Sequence[IouType] = ("bbox",),
        metrics: Sequence[str] = (),
        use_cats: bool = True,
        oks_sigmas: OksSigmas | None = None,
        share: Share = ALONE,
    ) -> None:
        self.share = share
        self._reader = reader
        self._categories = list(categories)
        self._batch_size = batch_size
        # The order does not depend on `max_images`, so a larger sample contains the smaller one.
        order = np.random.Generator(np.random.Philox(0)).permutation(len(self._reader))
        self._chosen: list[int] = order[:max_images].tolist()
        self._indices = sorted(self._chosen)
        self._metrics = tuple(metrics)
        self._use_cats = use_cats
        self._oks_sigmas = oks_sigmas
        self.iou_types = choose_iou_types(iou_types, given=given, count=self._count_annotations)

    def __len__(self) -> int:
        return len(self._indices)

    def require_defined(self, metric: str) -> None:
        """Checks that a metric is defined on this split, and that every record can be read.

        Raises:
            DataError: the metric is undefined, or a record cannot be evaluated.
        """
        accumulators = self._accumulate((records, []) for records in self._batches())
        report = metrics_to_json(*(accumulator.result(last=True) for accumulator in accumulators))
        if metrics_of_report(report).get(metric, UNDEFINED) == UNDEFINED:
            raise DataError(
                f"train.validation.metric={metric}: undefined, because none of the {len(self)} images to evaluate on "
                "has an annotation for it. Choose another metric, or add images to the split."
            )

    def evaluate(self, *detectors: SignatureDetector) -> list[CocoMetrics]:
        """Computes a detector's COCO metrics per IoU type, together with the machines that share the evaluation.

        Args:
            detectors: the detector, and copies on other devices that share the batches.

        Raises:
            DataError: a record that cannot be evaluated, or an image that the detector cannot read.
        """

        def detect(detector: SignatureDetector, records: list[EvaluationRecord]) -> tuple[list[EvaluationRecord], Any]:
            return records, self._detections(detector, records, self.iou_types)

        functions = [functools.partial(detect, detector) for detector in detectors]
        accumulators = self._accumulate(map_in_turn(functions, self._batches(self.share)))
        return [self._join(*pair).result(last=True) for pair in zip(accumulators, self.iou_types, strict=True)]

    def _join(self, accumulator: MetricsAccumulator, iou_type: IouType) -> MetricsAccumulator:
        """Merges the accumulated results of the other machines."""
        if self.share.count > 1:
            for number, state in enumerate(self.share.gather(accumulator.to_bytes())):
                if number != self.share.index:
                    accumulator.merge(MetricsAccumulator.from_bytes(state, self._categories, self._params(iou_type)))
        return accumulator

    def records(self) -> Iterator[bytes]:
        """Reads the serialized records of this machine's share."""
        return (self._reader.read(index) for indices in self._index_batches(self.share) for index in indices)

    def pictures(self, detector: SignatureDetector, options: AnalysisConfig) -> list[Picture]:
        """Draws ground truth beside detections on some images, the same ones in the same order in every call.

        Args:
            detector: detector to run on these images.
            options: number of images, score threshold and number of boxes.

        Raises:
            DataError: a record cannot be evaluated, or the detector cannot read an image.
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
        compared: IouType = next((one for one in _DRAWN if one in self.iou_types), "bbox")
        detections = self._detections(detector, list(records.values()), [compared])
        return draw_image_results(
            image_results(
                tree, detections, params=replace(self._params(compared), metrics=(), use_cats=True), options=options
            ),
            lambda image_id: stored_picture(records[image_id]),
            {category["id"]: str(category.get("name", category["id"])) for category in self._categories},
            max_boxes=options.max_boxes,
        )

    def _params(self, iou_type: IouType) -> Params:
        if iou_type == "keypoints":
            return make_params(iou_type, use_cats=self._use_cats, oks_sigmas=self._oks_sigmas)
        return make_params(iou_type, use_cats=self._use_cats, metrics=self._metrics)

    def _record(self, index: int) -> EvaluationRecord:
        return parse_record(self._reader.read(index))

    def _count_annotations(self) -> Counter[str]:
        batches = (count_annotations(record.annotations) for records in self._batches() for record in records)
        return sum(batches, start=Counter())

    @staticmethod
    def _detections(
        detector: SignatureDetector, records: Sequence[EvaluationRecord], iou_types: Sequence[IouType]
    ) -> Any:
        images = [record.image for record in records]
        return joined(detector.detect(images, with_masks="segm" in iou_types)).compared_by(iou_types)

    def _accumulate(self, batches: Iterable[tuple[list[EvaluationRecord], Any]]) -> list[MetricsAccumulator]:
        """Accumulates records with their detections, per IoU type."""
        accumulators = [MetricsAccumulator(self._categories, self._params(iou_type)) for iou_type in self.iou_types]
        for records, detections in batches:
            images = [record.entry for record in records]
            annotations = [annotation for record in records for annotation in record.annotations]
            for accumulator in accumulators:
                accumulator.add(images, annotations, detections)
        return accumulators

    def _batches(self, share: Share = ALONE) -> Iterator[list[EvaluationRecord]]:
        return ([self._record(index) for index in indices] for indices in self._index_batches(share))

    def _index_batches(self, share: Share) -> Iterator[list[int]]:
        size = self._batch_size
        starts = range(share.index * size, len(self._indices), share.count * size)
        return (self._indices[start : start + size] for start in starts)
