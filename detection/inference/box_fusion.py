"""Weighted box fusion of one image's detections by several views of it, or by several models.

Solovyev, Wang and Gabruseva, "Weighted boxes fusion: Ensembling boxes from different object
detection models", 2021, section 3; rescaling by min(T, N) / N, as google/automl does.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Boxes(NamedTuple):
    """The n detections of one view of an image.

    boxes: float64 [n, 4], (ymin, xmin, ymax, xmax), in the same unit for all views.
    scores: float64 [n], >= 0.
    classes: int64 [n].
    """

    boxes: Floats
    scores: Floats
    classes: npt.NDArray[np.int64]


def fuse_boxes(views: Sequence[Boxes], *, windows: Sequence[Floats], iou_threshold: float = 0.55) -> Boxes:
    """Fuses the detections of N views.

    From the best to the worst, a detection joins the fused box of its class that it overlaps
    most, if the IoU is above the threshold, or else begins a fused box of its own.  A fused
    box has the mean of its members' coordinates, weighted by their scores, and the sum of
    their scores divided by the number of views that can see it.

    A fused box takes one member of each view: the boxes of one view have passed NMS, and
    what soft NMS leaves of boxes that overlap are different objects.  So one view alone is
    returned as it is.  The order of the views does not matter.

    Args:
        views: detections of each view.
        windows: float [W, 4] per view, the parts of the image that it shows, in the boxes' unit.
            A box that lies in none of them counts as one that the view cannot see.
        iou_threshold: 0 <= threshold <= 1; google/automl's is 0.55.

    Returns:
        The fused boxes, best score first.
    """
    boxes, scores, classes = (np.concatenate(values) for values in zip(*views, strict=True))
    origins = np.repeat(np.arange(len(views)), [len(view.scores) for view in views])
    fused = _Fused(len(scores), len(views))
    # Coordinates decide between equal scores, so that the order of the views does not.
    for row in np.lexsort((*boxes.T, classes, -scores)):
        fused.add(boxes[row], scores[row], classes[row], origins[row], iou_threshold)
    result = fused.boxes[: fused.count]
    seen = sum(_is_inside(result, parts) for parts in windows) if windows else 0
    members = fused.of_view[: fused.count].sum(axis=1)
    values = fused.weights[: fused.count] / np.maximum(np.maximum(seen, members), 1)
    order = np.lexsort((*result.T, fused.classes[: fused.count], -values))
    return Boxes(result[order], values[order], fused.classes[: fused.count][order])


class _Fused:
    """Fused boxes while they grow: `count` of at most `limit`."""

    def __init__(self, limit: int, views: int) -> None:
        self.count = 0
        self.boxes = np.zeros((limit, 4))
        self.weights = np.zeros(limit)  # sum of the members' scores
        self.classes = np.zeros(limit, np.int64)
        self.of_view = np.zeros((limit, views), bool)

    def add(self, box: Floats, score: float, label: int, view: int, iou_threshold: float) -> None:
        """Adds a detection to the fused box that fits best, or as a new one."""
        free = (self.classes[: self.count] == label) & ~self.of_view[: self.count, view]
        ious = np.where(free, iou_with_one(self.boxes[: self.count], box), 0.0)
        place = int(ious.argmax()) if self.count else 0
        if not self.count or ious[place] <= iou_threshold:
            place = self.count
            self.count += 1
            self.boxes[place], self.classes[place] = box, label
        else:
            weight = self.weights[place] + score
            if weight > 0.0:
                self.boxes[place] += (box - self.boxes[place]) * (score / weight)
        self.weights[place] += score
        self.of_view[place, view] = True


def iou_with_one(boxes: Floats, box: Floats) -> Floats:
    """Returns intersections over union [n] of boxes [n, 4] and one box [4]; 0 for an empty union."""
    sides = np.minimum(boxes[:, 2:], box[2:]) - np.maximum(boxes[:, :2], box[:2])
    overlap = np.prod(np.maximum(sides, 0.0), axis=1)
    union = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) + np.prod(box[2:] - box[:2]) - overlap
    return np.divide(overlap, union, out=np.zeros_like(overlap), where=union > 0)


def _is_inside(boxes: Floats, windows: Floats) -> npt.NDArray[np.bool_]:
    """Marks the boxes that lie within one of the windows."""
    low = (boxes[:, None, :2] >= windows[None, :, :2]).all(axis=2)
    high = (boxes[:, None, 2:] <= windows[None, :, 2:]).all(axis=2)
    inside: npt.NDArray[np.bool_] = np.any(low & high, axis=1)
    return inside
