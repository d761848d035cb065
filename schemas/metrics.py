"""COCO's and LVIS' metrics: name, array, IoU threshold, area range and number of detections of each.

Source: `summarize` of pycocotools' cocoeval.py, with one error corrected: its AP
is -1 whenever the largest `max_dets` is not 100 (20 for keypoints); and LVIS' eval.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, WithJsonSchema

IouType = Literal["bbox", "segm", "keypoints"]
IOU_TYPES: tuple[IouType, ...] = ("bbox", "segm", "keypoints")
MAX_DETS = (1, 10, 100)
KEYPOINT_MAX_DETS = (20,)
LVIS_MAX_DETS = (300,)
FREQUENCIES = {"r": "rare", "c": "common", "f": "frequent"}  # of LVIS' categories


@dataclass(frozen=True)
class MetricDefinition:
    """One metric: the mean over the defined values of a part of an array.

    name: name in files, tables and thresholds.
    array: precision gives an AP, recall an AR.
    area: name of the area range.
    iou: IoU threshold; None: mean over all.
    max_dets: index into `max_dets`.
    frequency: LVIS' rare (`r`), common or frequent categories only; None: all.
    standard: whether it is in the `stats` of COCOeval or LVISEval.
    """

    name: str
    array: Literal["precision", "recall"]
    area: str = "all"
    iou: float | None = None
    max_dets: int = -1
    frequency: str | None = None
    standard: bool = True


_PRECISIONS = (
    MetricDefinition("AP", "precision"),
    MetricDefinition("AP50", "precision", iou=0.5),
    MetricDefinition("AP75", "precision", iou=0.75),
    MetricDefinition("APs", "precision", area="small"),
    MetricDefinition("APm", "precision", area="medium"),
    MetricDefinition("APl", "precision", area="large"),
)
_KEYPOINT_METRICS = (
    *(metric for metric in _PRECISIONS if metric.area != "small"),
    MetricDefinition("AR", "recall"),
    MetricDefinition("AR50", "recall", iou=0.5),
    MetricDefinition("AR75", "recall", iou=0.75),
    MetricDefinition("ARm", "recall", area="medium"),
    MetricDefinition("ARl", "recall", area="large"),
)


def coco_metrics(iou_type: str, max_dets: Sequence[int]) -> tuple[MetricDefinition, ...]:
    """Returns COCOeval's metrics for an IoU type (`bbox`, `segm` or `keypoints`) and ascending `max_dets`."""
    if iou_type == "keypoints":
        return _KEYPOINT_METRICS
    return (
        *_PRECISIONS,
        *(MetricDefinition(f"AR{most}", "recall", max_dets=position) for position, most in enumerate(max_dets)),
        MetricDefinition("ARs", "recall", area="small"),
        MetricDefinition("ARm", "recall", area="medium"),
        MetricDefinition("ARl", "recall", area="large"),
    )


def lvis_metrics(most: int) -> tuple[MetricDefinition, ...]:
    """Returns LVISEval's metrics, which count at most `most` detections per image."""
    return (
        *_PRECISIONS,
        *(MetricDefinition(f"AP{frequency}", "precision", frequency=frequency) for frequency in FREQUENCIES),
        MetricDefinition(f"AR@{most}", "recall"),
        MetricDefinition(f"ARs@{most}", "recall", area="small"),
        MetricDefinition(f"ARm@{most}", "recall", area="medium"),
        MetricDefinition(f"ARl@{most}", "recall", area="large"),
    )


# With COCO's own `max_dets` and area ranges, by IoU type, in the order of COCOeval's `stats`.
METRIC_DEFINITIONS: Mapping[str, tuple[MetricDefinition, ...]] = {
    "bbox": coco_metrics("bbox", MAX_DETS),
    "segm": coco_metrics("segm", MAX_DETS),
    "keypoints": coco_metrics("keypoints", KEYPOINT_MAX_DETS),
}

# A name without an IoU type has the first evaluated type.
_NAMES = [metric.name for metric in METRIC_DEFINITIONS["bbox"]]
_NAMES += [f"{iou_type}/{metric.name}" for iou_type, metrics in METRIC_DEFINITIONS.items() for metric in metrics]


def _known(name: str) -> str:
    if name not in _NAMES:
        raise ValueError(f"{name!r} is not a COCO metric; these are {', '.join(_NAMES)}")
    return name


# Type of a configuration key for the name of a COCO metric, such as `AP` or `segm/AP`.
MetricName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string"})]


def metrics_by_iou_type(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Returns the metrics, nesting those of further IoU types under the type.

    >>> metrics_by_iou_type({"AP": 0.5, "segm/AP": 0.4})
    {'AP': 0.5, 'segm': {'AP': 0.4}}
    """
    nested: dict[str, Any] = {}
    for name, value in metrics.items():
        iou_type, _, own = name.rpartition("/")
        (nested.setdefault(iou_type, {}) if iou_type else nested)[own] = value
    return nested


def metrics_by_name(nested: Mapping[str, Any]) -> dict[str, float]:
    """Returns the inverse of `metrics_by_iou_type`.

    >>> metrics_by_name({"AP": 0.5, "segm": {"AP": 0.4}})
    {'AP': 0.5, 'segm/AP': 0.4}
    """
    by_name: dict[str, float] = {}
    for name, value in nested.items():
        by_name |= {f"{name}/{own}": one for own, one in value.items()} if isinstance(value, Mapping) else {name: value}
    return by_name


def metrics_of_report(report: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics by name of all IoU types in a metrics file's content (`metrics_to_json`)."""
    others = {str(iou_type): report[iou_type]["metrics"] for iou_type in IOU_TYPES if iou_type in report}
    return metrics_by_name({**report["metrics"], **others})


def main_metrics(names: Iterable[str]) -> list[str]:
    """Returns the metrics that summaries show: AP and AP50 of the first IoU type, AP of the others.

    >>> main_metrics(["AP", "AP50", "APs", "segm/AP", "segm/AP50"])
    ['AP', 'AP50', 'segm/AP']
    """
    return [name for name in names if name == "AP50" or name.rpartition("/")[2] == "AP"]
