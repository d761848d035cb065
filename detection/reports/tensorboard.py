"""TensorBoard summaries of an evaluation: scalars, and pictures of detections beside ground truth.

Scalars and pictures have the names of the TF Object Detection API (`metrics/coco_tools.py`,
`model_lib_v2.py`), so that old and new runs share a chart.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import tensorflow as tf
from PIL import Image

from detection.analysis.analysis_file import ImageResult
from detection.coco.metrics import UNDEFINED, CocoMetrics
from detection.images.drawing import Picture, contact_sheet, draw_detections, eight_bit_rgb
from detection.reports.box_styles import STATUSES, StyledBox, detection_boxes, ground_truth_boxes
from detection.reports.html.table import shown_name
from detection.storage.atomic import require_writable
from schemas.metrics import METRIC_DEFINITIONS, MetricDefinition, is_other, parse_metric
from schemas.scalars import loss_tags

_PREFIXES = {"bbox": "DetectionBoxes_", "segm": "DetectionMasks_", "keypoints": "Keypoints_"}
# Prefixes of the API's other metrics, of boxes and of masks.
_OTHER_PREFIXES = {
    "pascal_voc": {"bbox": "PascalBoxes_", "segm": "PascalMasks_"},
    "weighted_pascal_voc": {"bbox": "WeightedPascalBoxes_", "segm": "WeightedPascalMasks_"},
    "open_images": {"bbox": "OpenImagesV2_"},
    "open_images_challenge": {
        "bbox": "OpenImagesDetectionChallenge_",
        "segm": "OpenImagesInstanceSegmentationChallenge_",
    },
    "precision_at_recall": {"bbox": "PrecisionAtRecallBoxes_"},
}
_LONGEST_SIDE = 640  # pixels of a panel


def write_evaluation(
    logdir: str | Path,
    *,
    step: int,
    metrics: Sequence[CocoMetrics],
    losses: Mapping[str, float],
    pictures: Sequence[Picture],
    others: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Appends one evaluation of a checkpoint or an exported model to a TensorBoard folder, without undefined metrics.

    Args:
        logdir: folder of event files; created if missing.
        step: training step of the model.
        metrics: metrics on all images, per IoU type.
        losses: loss term -> mean, and their sum as `TOTAL_LOSS`.
        pictures: pictures from `side_by_side`.
        others: further scalars by tag.

    Raises:
        DataError: the folder cannot be written.
    """
    require_writable(logdir)
    scalars = {tag: value for one in metrics for tag, value in _scalars(one).items() if value != UNDEFINED}
    scalars |= {tag: losses[name] for name, tag in loss_tags(losses).items()} | dict(others)
    with tf.summary.create_file_writer(str(logdir)).as_default(step):
        for tag, value in scalars.items():
            tf.summary.scalar(tag, value)
        for number, picture in enumerate(pictures):
            tf.summary.image(f"eval_side_by_side_{number}_0", picture[None])


def _scalars(metrics: CocoMetrics) -> dict[str, float]:
    """Returns the metrics of one IoU type, overall and per category, by tag."""
    prefix = _PREFIXES[metrics.iou_type]
    known = {metric.name: _tag(metric, metrics.max_dets) for metric in METRIC_DEFINITIONS[metrics.iou_type]}
    overall = {
        _other_tag(name, metrics.iou_type) if is_other(name) else prefix + known.get(name, f"Precision/{name}"): value
        for name, value in metrics.by_name.items()
    }
    return overall | {
        f"{prefix}PerformanceByCategory/mAP/{shown_name(category['name'])}": category["AP"]
        for category in metrics.per_category
    }


def draw_image_results(
    results: Iterable[ImageResult],
    image_of: Callable[[int], Image.Image | None],
    names: Mapping[int, str],
    *,
    max_boxes: int,
) -> list[Picture]:
    """Draws `side_by_side` pictures, one per image.

    Args:
        results: the images.
        image_of: returns the image of an id; None: skip the image, as it cannot be decoded.
        names: category id -> name.
        max_boxes: max detections to draw, those with the highest scores; None: all.
    """
    pictures = ((result, image_of(result.image_id)) for result in results)
    return [
        side_by_side(np.asarray(eight_bit_rgb(image)), result, names, max_boxes=max_boxes)
        for result, image in pictures
        if image is not None
    ]


def side_by_side(
    image: Picture, result: ImageResult, names: Mapping[int, str], *, max_boxes: int | None = None
) -> Picture:
    """Draws detections on the left and ground truth on the right, as in the TF Object Detection API, styled by status.

    Args:
        image: uint8 [H, W, 3], RGB, of any scale.
        result: its ground truth and detections.
        names: category id -> name.
        max_boxes: max detections to draw, those with the highest scores; None: all.

    Returns:
        uint8 [h, w, 3], each panel at most 640 pixels on its longer side.
    """
    result = replace(result, detections=result.detections[:max_boxes])
    scale = min(1.0, _LONGEST_SIDE / max(image.shape[:2]))
    to_image = image.shape[1] / max(1, result.width)
    panels = [
        _panel(image, boxes, to_image, scale)
        for boxes in (detection_boxes(result, names), ground_truth_boxes(result, names))
    ]
    return contact_sheet(panels, columns=2, captions=["detections", "ground truth"])


def _panel(image: Picture, boxes: Sequence[StyledBox], to_image: float, scale: float) -> Picture:
    # The last box drawn is on top and has its tag placed first: errors come first in `boxes`.
    ordered = list(reversed(boxes))
    return draw_detections(
        image,
        [[value * to_image for value in box.bbox] for box in ordered],
        [box.text for box in ordered],
        styles=[STATUSES[box.status].style for box in ordered],
        masks=[box.mask for box in ordered],
        keypoints=[np.reshape(box.keypoints, (-1, 3)) * [to_image, to_image, 1.0] for box in ordered],
        skeletons=[box.skeleton for box in ordered],
        scale=scale,
    )


def _tag(metric: MetricDefinition, max_dets: Sequence[int]) -> str:
    kind = "Precision/mAP" if metric.array == "precision" else f"Recall/AR@{max_dets[metric.max_dets]}"
    iou = f"@.{round(100 * metric.iou)}IOU" if metric.iou else ""
    return f"{kind}{iou}" + ("" if metric.area == "all" else f" ({metric.area})")


def _other_tag(name: str, iou_type: str) -> str:
    """Returns the tag of a metric besides COCO's, which the API may not have.

    >>> _other_tag("pascal_voc_AP50", "segm"), _other_tag("precision_at_recall_25_75_AP50", "bbox")
    ('PascalMasks_Precision/mAP@0.5IOU', 'PrecisionAtRecallBoxes_Precision/mAP@0.5IOU@[0.25,0.75]Recall')
    >>> _other_tag("pascal_voc_11_point_AP50", "bbox")
    'DetectionBoxes_Precision/pascal_voc_11_point_AP50'
    """
    metric = parse_metric(name)
    prefix = _OTHER_PREFIXES.get(metric.kind, {}).get(iou_type)
    if prefix is None:
        return f"{_PREFIXES[iou_type]}Precision/{name}"
    bounds = "@[{},{}]Recall".format(*metric.recall) if metric.kind == "precision_at_recall" else ""
    return f"{prefix}Precision/mAP@{metric.iou}IOU{bounds}"
