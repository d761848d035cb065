"""Overlaps of boxes or masks, by the engine."""

from collections.abc import Mapping, Sequence
from typing import Any

import hotcoco
import numpy as np

from detection.coco.params import FloatArray
from detection.datasets.masks import compressed_rle


def overlaps(detections: Any, truths: Any, groups: Any, image: Mapping[str, Any] | None = None) -> FloatArray:
    """Computes the IoU of detections with annotations; with groups, the intersection over the detection's area.

    Args:
        detections: D boxes (x, y, width, height, pixels), or segmentations.
        truths: G of the same.
        groups: which annotations are groups of objects, bool [G].
        image: `height` and `width` in pixels of the segmentations' image; None: boxes.

    Returns:
        Overlaps, float64 [D, G].
    """
    if image is None:
        first, second = (np.asarray(boxes, np.float64).reshape(-1, 4) for boxes in (detections, truths))
        return np.asarray(hotcoco.mask.iou(first, second, groups.astype(int)), np.float64)
    masks = _rles(detections, image), _rles(truths, image)
    return np.asarray(hotcoco.mask.iou(*masks, groups.astype(int)), np.float64)


def box_of_mask(mask: Any, image: Mapping[str, Any]) -> list[float]:
    """Returns the box (x, y, width, height) of a mask in an image of `height` and `width` pixels."""
    return [float(value) for value in hotcoco.mask.to_bbox(_rles([mask], image))[0]]


def is_empty_rle(mask: Any) -> bool:
    """Returns whether a mask is an RLE without a pixel."""
    if not isinstance(mask, Mapping):
        return False
    height, width = mask["size"]
    return not hotcoco.mask.area(_rles([mask], {"height": height, "width": width}))[0]


def _rles(masks: Sequence[Any], image: Mapping[str, Any]) -> list[Any]:
    return [compressed_rle(mask, height=image["height"], width=image["width"]) for mask in masks]
