"""Values of an evaluation's metrics, and `CocoMetrics`, the result of an evaluation.

`schemas.metrics` defines the metrics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from detection.coco.engine import Arrays
from detection.coco.params import AreaRanges, FloatArray, Params
from detection.coco.validation.checks import InvalidEntry
from schemas.metrics import MetricDefinition, coco_metrics, lvis_metrics

_OWN: tuple[tuple[str, Literal["precision", "recall"]], ...] = (("AP", "precision"), ("AR", "recall"))
UNDEFINED = -1.0  # value of a metric without ground truth


def metric_definitions_of(params: Params) -> tuple[MetricDefinition, ...]:
    """Returns COCO's or LVIS' metrics of an evaluation, then those of other area ranges."""
    known = lvis_metrics(params.max_dets[-1]) if params.lvis else coco_metrics(params.iou_type, params.max_dets)
    others = [name for name in params.area_ranges if name not in {metric.area for metric in known}]
    own = [
        MetricDefinition(f"{prefix}_{name}", array, area=name, standard=False)
        for name in others
        for prefix, array in _OWN
    ]
    return (*known, *own)


def metric_names(params: Params) -> list[str]:
    """Returns the names of all metrics of an evaluation."""
    return [*(metric.name for metric in metric_definitions_of(params)), *params.metrics]


def metric_value(
    metric: MetricDefinition,
    precision: FloatArray,
    recall: FloatArray,
    params: Params,
    *,
    frequencies: Sequence[str] = (),
) -> float:
    """Computes the value of one metric.

    Args:
        metric: definition of the metric.
        precision: float64 [T, R, K, A, M], -1 or NaN without ground truth; [T, K, A, 1] if it is already
            averaged over the recall thresholds, for the largest of `max_dets`.
        recall: float64 [T, K, A, M], -1 or NaN without ground truth.
        params: parameters of the evaluation; T IoU thresholds, A area ranges.
        frequencies: LVIS frequency of each of the K categories, for metrics of one frequency.

    Returns:
        0 <= value <= 1, or -1 if undefined: no ground truth, or an IoU threshold or area
        range that was not evaluated.
    """
    if metric.area not in params.area_ranges:
        return UNDEFINED
    values = precision if metric.array == "precision" else recall
    values = values[..., list(params.area_ranges).index(metric.area), metric.max_dets]
    if metric.iou is not None:
        values = values[np.isclose(params.iou_thresholds, metric.iou, rtol=0.0, atol=1e-9)]
    if metric.frequency is not None:
        values = values[..., np.array(frequencies) == metric.frequency]
    defined = values[values > UNDEFINED]
    return float(np.mean(defined)) if defined.size else UNDEFINED


def category_values(metrics: Sequence[MetricDefinition], arrays: Arrays, params: Params) -> list[dict[str, float]]:
    """Computes the metrics of each category, by ascending id."""
    alone = [slice(position, position + 1) for position in range(len(arrays.category_ids))]
    return [
        {
            metric.name: metric_value(metric, arrays.precision[:, :, one], arrays.recall[:, one], params)
            for metric in metrics
        }
        for one in alone
    ]


@dataclass(frozen=True, eq=False)
class CocoMetrics:
    """Metrics and arrays of one evaluation; -1 means no ground truth.

    iou_type: `bbox`, `segm` or `keypoints`.
    by_name: name -> value, in COCOeval's (LVISEval's) order, then those of other area ranges.
    definitions: definitions of the metrics.
    precision: float64 [T, R, K, A, M], as COCOeval lays it out: IoU thresholds,
        101 recall thresholds, categories by ascending id, area ranges, `max_dets`.
    recall: float64 [T, K, A, M].
    scores: float64 [T, R, K, A, M], the score at each recall.
    per_category: [{"id", "name", "AP", "AP50"}] by ascending id, all areas, the
        largest `max_dets`; empty with `use_cats` False.
    iou_thresholds: the T values.
    area_ranges: the A ranges, name -> (min, max) square pixels.
    max_dets: the M values.
    skipped: skipped invalid entries.
    doubts: what to look at before the metrics are believed, a sentence each.
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
    doubts: tuple[str, ...] = ()

    @property
    def stats(self) -> FloatArray:
        """COCOeval's `stats`: float64 [12], for keypoints [10]; LVISEval's [13]."""
        return np.array([self.by_name[definition.name] for definition in self.definitions if definition.standard])


def metrics_from_arrays(arrays: Arrays, categories: Sequence[Mapping[str, Any]], params: Params) -> CocoMetrics:
    """Computes the metrics.

    Args:
        arrays: accumulated arrays of the engine.
        categories: COCO `categories` entries.
        params: parameters of the arrays.
    """
    definitions = metric_definitions_of(params)
    frequencies = {category["id"]: category.get("frequency", "") for category in categories}
    by_name = {
        definition.name: metric_value(
            definition,
            arrays.precision,
            arrays.recall,
            params,
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
    metrics = [metric for metric in metric_definitions_of(params) if metric.name in ("AP", "AP50")]
    rows = zip(arrays.category_ids, category_values(metrics, arrays, params), strict=True)
    return [{"id": category_id, "name": names[category_id], **values} for category_id, values in rows]
