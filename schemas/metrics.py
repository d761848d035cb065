"""COCO's and LVIS' metrics: name, array, IoU threshold, area range and number of detections of each.

Source: `summarize` of pycocotools' cocoeval.py, with one error of it corrected: its AP
is -1 whenever the largest `max_dets` is not 100 (20 for keypoints); and LVIS' eval.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, WithJsonSchema

MAX_DETS = (1, 10, 100)
KEYPOINT_MAX_DETS = (20,)
LVIS_MAX_DETS = (300,)
FREQUENCIES = {"r": "rare", "c": "common", "f": "frequent"}  # of LVIS' categories


@dataclass(frozen=True)
class MetricDefinition:
    """One metric: the mean over the defined values of a part of an array.

    name: as it appears in files, tables and thresholds.
    array: precision gives an AP, recall an AR.
    area: name of the area range.
    iou: the only IoU threshold counted; None: the mean over all.
    max_dets: which of the `max_dets`, by position.
    frequency: LVIS' rare (`r`), common or frequent categories only; None: all.
    standard: whether it is one of COCOeval's, or LVISEval's, `stats`.
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

_BOX_METRICS = [metric.name for metric in METRIC_DEFINITIONS["bbox"]]


def _known(name: str) -> str:
    if name not in _BOX_METRICS:
        raise ValueError(f"{name!r} is not a COCO metric of boxes; these are {', '.join(_BOX_METRICS)}")
    return name


# Type of a configuration key that takes the name of one of COCO's metrics of boxes.
MetricName = Annotated[str, AfterValidator(_known), WithJsonSchema({"enum": _BOX_METRICS, "type": "string"})]
