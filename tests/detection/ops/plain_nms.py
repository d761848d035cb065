"""Greedy NMS, hard and soft, one box at a time in plain numpy: the reference for the tests."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def plain_nms(
    boxes: Array,
    scores: Array,
    classes: Array,
    *,
    nms: str = "hard",
    class_agnostic: bool = False,
    iou_threshold: float = 0.5,
    sigma: float = 0.5,
    score_threshold: float = 0.0,
    max_outputs: int = 100,
    max_per_class: int | None = None,
    counts: Array | None = None,
) -> tuple[list[int], list[float]]:
    """Picks boxes of one image: their indices, and their scores when picked.

    Args:
        boxes: [K, 4], (ymin, xmin, ymax, xmax).
        scores: [K].
        classes: [K].
        nms: `hard`, `linear` or `gaussian`.
        class_agnostic: boxes compete whatever their class.
        iou_threshold: for hard and linear NMS.
        sigma: for Gaussian NMS.
        score_threshold: boxes need a score above this.
        max_outputs: max number of picked boxes.
        max_per_class: max number of picked boxes of a class; None: no limit.
        counts: bool [K], boxes that are returned and fill `max_outputs`; None: all.
    """
    counts = np.ones(len(scores), bool) if counts is None else counts
    current = np.where(scores > score_threshold, scores.astype(np.float64), 0.0)
    picked: list[int] = []
    values: list[float] = []
    while counts[picked].sum() < max_outputs and current.max() > score_threshold:
        best = int(current.argmax())  # the first of equal scores
        picked.append(best)
        values.append(float(current[best]))
        factors = _factors(_iou(boxes, boxes[best]), nms, iou_threshold, sigma)
        current *= factors if class_agnostic else np.where(classes == classes[best], factors, 1.0)
        current[best] = 0.0
        if max_per_class is not None and (classes[picked] == classes[best]).sum() == max_per_class:
            current[classes == classes[best]] = 0.0
    returned = [at for at, index in enumerate(picked) if counts[index]]
    return [picked[at] for at in returned], [values[at] for at in returned]


def _factors(iou: Array, nms: str, threshold: float, sigma: float) -> Array:
    if nms == "gaussian":
        return np.exp(-(iou.astype(np.float64) ** 2) / sigma)
    return np.where(iou > np.float32(threshold), 0.0 if nms == "hard" else 1.0 - iou, 1.0)


def _iou(boxes: Array, box: Array) -> Array:
    low, high = np.maximum(boxes[:, :2], box[:2]), np.minimum(boxes[:, 2:], box[2:])
    overlap = np.prod(np.maximum(high - low, 0), axis=1)
    union = _area(boxes) + _area(box) - overlap
    return np.where(union > 0, overlap / np.maximum(union, 1e-30), 0.0)


def _area(boxes: Array) -> Array:
    return np.prod(np.maximum(boxes[..., 2:] - boxes[..., :2], 0), axis=-1)
