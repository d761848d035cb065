"""The result every evaluation ends in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detection.coco.engine import Arrays
from detection.coco.metric_definitions import (
    FloatArray,
    MetricDefinition,
    mean_of_defined,
    metric_definitions_of,
    metric_value,
)
from detection.coco.params import AreaRanges, Params
from detection.coco.validation.invalid_entries import InvalidEntry

_AP50 = 0.5


@dataclass(frozen=True, eq=False)
class CocoMetrics:
    """Metrics and arrays of one evaluation; -1 stands where there is no ground truth.

    iou_type: `bbox`, `segm` or `keypoints`.
    by_name: name -> value, in COCOeval's (LVISEval's) order, then those of other area ranges.
    definitions: what each metric is.
    precision: float64 [T, R, K, A, M], as COCOeval lays it out: IoU thresholds,
        101 recall thresholds, categories by ascending id, area ranges, `max_dets`.
    recall: float64 [T, K, A, M].
    scores: float64 [T, R, K, A, M], the score at which each recall is reached.
    per_category: [{"id", "name", "AP", "AP50"}] by ascending id, all areas, the
        largest `max_dets`; empty where categories were not told apart.
    iou_thresholds: the T values.
    area_ranges: the A ranges, name -> (least, greatest) square pixels.
    max_dets: the M values.
    skipped: what was left out of the evaluation because it is faulty.
    """

    iou_type: str
    by_name: dict[str, float]
    definitions: tuple[MetricDefinition, ...]
    precision: FloatArray
    recall: FloatArray
    scores: FloatArray
    per_category: list[dict[str, Any]]
    iou_thresholds: tuple[float, ...]
    area_ranges: AreaRanges
    max_dets: tuple[int, ...]
    skipped: tuple[InvalidEntry, ...] = ()

    @property
    def stats(self) -> FloatArray:
        """COCOeval's `stats`, float64 [12], for keypoints [10]; LVISEval's [13]."""
        return np.array([self.by_name[definition.name] for definition in self.definitions if definition.standard])


def metrics_from_arrays(arrays: Arrays, categories: Sequence[Mapping[str, Any]], params: Params) -> CocoMetrics:
    """Computes the metrics.

    Args:
        arrays: the engine's sums.
        categories: COCO `categories` entries.
        params: what the arrays were made with.
    """
    definitions = metric_definitions_of(params)
    frequencies = {category["id"]: category.get("frequency", "") for category in categories}
    by_name = {
        definition.name: metric_value(
            definition,
            arrays.precision,
            arrays.recall,
            iou_thresholds=params.iou_thresholds,
            area_names=list(params.area_ranges),
            frequencies=[frequencies[category_id] for category_id in arrays.category_ids],
        )
        for definition in definitions
    }
    return CocoMetrics(
        iou_type=params.iou_type,
        by_name=by_name,
        definitions=definitions,
        precision=arrays.precision,
        recall=arrays.recall,
        scores=arrays.scores,
        per_category=_per_category(arrays, categories, params) if params.use_cats else [],
        iou_thresholds=params.iou_thresholds,
        area_ranges=params.area_ranges,
        max_dets=params.max_dets,
    )


def _per_category(arrays: Arrays, categories: Sequence[Mapping[str, Any]], params: Params) -> list[dict[str, Any]]:
    names = {category["id"]: str(category.get("name", category["id"])) for category in categories}
    area = list(params.area_ranges).index("all")
    at_50 = [abs(threshold - _AP50) < 1e-9 for threshold in params.iou_thresholds]
    entries = []
    for position, category_id in enumerate(arrays.category_ids):
        precision = arrays.precision[:, :, position, area, -1]
        entries.append(
            {
                "id": category_id,
                "name": names[category_id],
                "AP": mean_of_defined(precision),
                "AP50": mean_of_defined(precision[at_50]),
            }
        )
    return entries
