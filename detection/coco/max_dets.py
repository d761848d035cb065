"""The detections that `max_dets` lets count: the best of an image, or of a category in an image."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from detection.coco.params import Params
from detection.datasets.entries import Entry, Rows

IntArray = npt.NDArray[np.int64]


def counted_detections(detections: Sequence[Entry] | Rows, params: Params) -> IntArray | None:
    """Finds the detections that COCOeval looks at, as it does before it compares anything.

    These are the largest of `max_dets` for each category in each image; without
    categories, for each image.  Ranking is by score, and detections of equal score rank
    by category (without categories) and position: source `computeIoU` of pycocotools'
    cocoeval.py, whose sort is stable.

    Args:
        detections: COCO results, or rows float64 [N, 7] (image_id, x, y, width, height,
            score, category_id).
        params: of the evaluation.

    Returns:
        Their positions, int64 [M], ascending; None: all of them.
    """
    most = params.max_dets[-1]
    if len(detections) <= most:
        return None
    if isinstance(detections, np.ndarray):
        images, scores, categories = detections[:, 0], detections[:, 5], detections[:, 6]
    else:
        images = np.array([detection["image_id"] for detection in detections], np.int64)
        scores = np.array([detection["score"] for detection in detections], np.float64)
        categories = np.array([detection["category_id"] for detection in detections], np.int64)
    if np.unique(images, return_counts=True)[1].max() <= most:
        return None
    if params.use_cats:
        return best_positions((images, categories), scores, most)
    order = np.argsort(categories, kind="stable")
    return np.sort(order[best_positions((images[order],), scores[order], most)])


def best_positions(groups: Sequence[npt.NDArray[np.generic]], scores: Rows, most: int) -> IntArray:
    """Finds the `most` of highest score in each group; of equal scores the first.

    Args:
        groups: arrays [N] whose values together name the group.
        scores: float64 [N].
        most: at least 1.

    Returns:
        Positions, int64 [M], ascending.
    """
    order = np.lexsort((-scores, *groups))  # stable
    starts = np.zeros(len(order), bool)
    starts[:1] = True
    for group in groups:
        starts[1:] |= group[order[1:]] != group[order[:-1]]
    first = np.flatnonzero(starts)
    rank = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    return np.sort(order[rank < most])
