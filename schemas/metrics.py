"""COCO's and LVIS' metrics: name, array, IoU threshold, area range and number of detections of each; names of others.

Source: `summarize` of pycocotools' cocoeval.py, with one error corrected: its AP
is -1 whenever the largest `max_dets` is not 100 (20 for keypoints); and LVIS' eval.py.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, WithJsonSchema

IouType = Literal["bbox", "segm", "keypoints"]
IOU_TYPES: tuple[IouType, ...] = ("bbox", "segm", "keypoints")
MAX_DETS = (1, 10, 100)
KEYPOINT_MAX_DETS = (20,)
# Keypoints of COCO's persons, in order.
_SIDED = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
COCO_KEYPOINTS = ("nose", *(f"{side}_{part}" for part in _SIDED for side in ("left", "right")))
LVIS_MAX_DETS = (300,)
FREQUENCIES = {"r": "rare", "c": "common", "f": "frequent"}  # LVIS's groups of categories


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

# Kinds of metrics besides COCO's; `detection.coco.average_precision` defines them.
OTHER_METRICS = (
    "pascal_voc",
    "pascal_voc_11_point",
    "weighted_pascal_voc",
    "open_images",
    "open_images_challenge",
    "precision_at_recall",
    "precision_at_recall_verified",
)
_OTHER = re.compile(rf"({'|'.join(OTHER_METRICS)})(?:_(\d{{1,2}})_(\d{{1,3}}))?_AP(\d\d)")


class OtherMetric(NamedTuple):
    """Parts of the name of a metric besides COCO's.

    kind: one of `OTHER_METRICS`.
    iou: IoU threshold of a match.
    recall: min and max recall of the curve.
    """

    kind: str
    iou: float
    recall: tuple[float, float] = (0.0, 1.0)


def parse_metric(name: str) -> OtherMetric:
    """Parses the name of a metric besides COCO's: its kind, recalls and IoU threshold in percent.

    Raises:
        ValueError: there is no such metric.

    >>> parse_metric("pascal_voc_AP50").iou, parse_metric("precision_at_recall_25_75_AP50").recall
    (0.5, (0.25, 0.75))
    """
    match = _OTHER.fullmatch(name)
    low, high, iou = (
        (int(part or default) / 100 for part, default in zip(match.groups()[1:], (0, 100, 0), strict=True))
        if match
        else (0, 0, 0)
    )
    bounded = match is not None and match[2] is not None
    if match is None or not iou or not low < high <= 1 or bounded != match[1].startswith("precision_at_recall"):
        kinds = ", ".join(OTHER_METRICS)
        raise ValueError(
            f"{name!r} is no metric: write a kind and its IoU threshold in percent, such as pascal_voc_AP50, and "
            f"recalls in percent, as in precision_at_recall_25_75_AP50; the kinds are {kinds}"
        )
    return OtherMetric(match[1], iou, (low, high))


def other_metric(name: str) -> MetricDefinition:
    """Returns the definition of a metric besides COCO's, for tables."""
    return MetricDefinition(name, "precision", iou=parse_metric(name).iou, standard=False)


# A name without an IoU type has the first evaluated type.
_NAMES = [metric.name for metric in METRIC_DEFINITIONS["bbox"]]
_NAMES += [f"{iou_type}/{metric.name}" for iou_type, metrics in METRIC_DEFINITIONS.items() for metric in metrics]


def is_other(name: str) -> bool:
    """Returns whether a metric, also with an IoU type, is one besides COCO's."""
    return name.rpartition("/")[2].startswith(OTHER_METRICS)


def _known(name: str) -> str:
    iou_type, _, own = name.rpartition("/")
    if is_other(name) and iou_type in ("", "bbox", "segm"):
        parse_metric(own)
    elif name not in _NAMES:
        raise ValueError(f"{name!r} is not a COCO metric; these are {', '.join(_NAMES)}")
    return name


def _other(name: str) -> str:
    parse_metric(name)
    return name


# Types of configuration keys: a metric such as `AP` or `segm/AP`, and one besides COCO's such as `pascal_voc_AP50`.
MetricName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string"})]
OtherMetricName = Annotated[str, AfterValidator(_other), WithJsonSchema({"type": "string"})]

# One per keypoint, or by category name, in order or by keypoint name.
_Sigmas = tuple[PositiveFloat, ...] | dict[str, tuple[PositiveFloat, ...] | dict[str, PositiveFloat]]
OtherMetricNames = Annotated[
    tuple[OtherMetricName, ...],
    Field(
        description="metrics of boxes and masks besides COCO's, with the IoU threshold in percent, such as "
        f"pascal_voc_AP50; the kinds are {', '.join(OTHER_METRICS)}"
    ),
]
OksSigmas = Annotated[
    _Sigmas | None,
    Field(
        description="spread of each keypoint, as a fraction of the square root of the annotation's area: a list for "
        "all categories with as many keypoints, or lists by category name, or numbers by category and keypoint name; "
        "other categories have those of COCO's 17 keypoints, or 0.05 for each of another number"
    ),
]


class MetricParams(BaseModel):
    """Parameters of COCOeval: the flags of `evaluate` for results files, and the options of `CocoMetrics`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    iou_type: IouType = Field("bbox", description="compare boxes, masks or keypoints; default: bbox")
    max_dets: tuple[int, ...] | None = Field(
        None, description="max detections per image; default: 1,10,100, for keypoints 20, for LVIS 300"
    )
    use_cats: bool = Field(True, description="false: ignore categories (COCOeval's useCats=0)")
    iou_thresholds: tuple[float, ...] | None = Field(None, description="default: 0.5,0.55,0.6,... 0.95")
    area_ranges: dict[str, tuple[float, float]] | None = Field(
        None, description="metrics for area ranges in square pixels; small, medium and large replace COCO's ranges"
    )
    oks_sigmas: OksSigmas = None
    lvis: bool = Field(False, description="evaluate as LVIS does; the files need LVIS's lists of categories")
    metrics: OtherMetricNames = ()


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
    """Returns the metrics that summaries show: AP and AP50 of the first IoU type, AP of the others, requested metrics.

    >>> main_metrics(["AP", "AP50", "APs", "pascal_voc_AP50", "segm/AP", "segm/AP50"])
    ['AP', 'AP50', 'pascal_voc_AP50', 'segm/AP']
    """
    return [name for name in names if name == "AP50" or name.rpartition("/")[2] == "AP" or is_other(name)]
