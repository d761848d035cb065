"""Weighted box fusion of the detections of several views of an image, or of several models.

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

    Detections are processed from the highest to the lowest score.  Each is added to the fused
    box of its class with the highest IoU, if that IoU is above the threshold, or starts a new
    fused box.  A fused box has the mean coordinates of its members, weighted by their scores,
    and the sum of their scores divided by the number of views that contain it.

    A fused box has at most one member of each view: the boxes of one view have passed NMS,
    and overlapping boxes that soft NMS keeps are different objects.  The detections of a
    single view are therefore returned unchanged.  The order of the views does not matter.

    Args:
        views: detections of each view.
        windows: float [W, 4] per view: the parts of the image in the view, in the unit of the boxes.
            A box outside of all of them is not expected from the view.
        iou_threshold: 0 <= threshold <= 1; google/automl's is 0.55.

    Returns:
        The fused boxes, best score first.
    """
    boxes, scores, classes = (np.concatenate(values) for values in zip(*views, strict=True))
    origins = np.repeat(np.arange(len(views)), [len(view.scores) for view in views])
    fused = _Fused(len(scores), len(views))
    # Ties are broken by coordinates, so that the order of the views does not matter.
    for row in np.lexsort((*boxes.T, classes, -scores)):
        fused.add(boxes[row], scores[row], classes[row], origins[row], iou_threshold)
    result = fused.boxes[: fused.count]
    seen = sum(_is_inside(result, parts) for parts in windows) if windows else 0
    members = fused.has_view[: fused.count].sum(axis=1)
    values = fused.weights[: fused.count] / np.maximum(np.maximum(seen, members), 1)
    order = np.lexsort((*result.T, fused.classes[: fused.count], -values))
    return Boxes(result[order], values[order], fused.classes[: fused.count][order])


class _Fused:
    """Fused boxes under construction: `count` of at most `limit`."""

    def __init__(self, limit: int, views: int) -> None:
        self.count = 0
        self.boxes = np.zeros((limit, 4))
        self.weights = np.zeros(limit)  # sum of the members' scores
        self.classes = np.zeros(limit, np.int64)
        self.has_view = np.zeros((limit, views), bool)

    def add(self, box: Floats, score: float, label: int, view: int, iou_threshold: float) -> None:
        """Adds a detection to the best matching fused box, or as a new one."""
        free = (self.classes[: self.count] == label) & ~self.has_view[: self.count, view]
        ious = np.where(free, box_ious(self.boxes[: self.count], box), 0.0)
        index = int(ious.argmax()) if self.count else 0
        if not self.count or ious[index] <= iou_threshold:
            index = self.count
            self.count += 1
            self.boxes[index], self.classes[index] = box, label
        else:
            weight = self.weights[index] + score
            if weight > 0.0:
                self.boxes[index] += (box - self.boxes[index]) * (score / weight)
        self.weights[index] += score
        self.has_view[index, view] = True


def box_ious(boxes: Floats, box: Floats) -> Floats:
    """Returns the IoU [n] of boxes [n, 4] with one box [4]; 0 for an empty union."""
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
