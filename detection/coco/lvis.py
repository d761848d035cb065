"""What LVIS' evaluation does otherwise than COCO's, beyond what the engine knows.

Source: lvis-api, eval.py and results.py.
"""

from collections.abc import Sequence

import numpy as np

from detection.coco.max_dets import best_positions
from detection.datasets.entries import Entry, Rows

_NO_AREA = -1.0  # in no area range, so that the object is ignored in all


def lvis_annotations(annotations: Sequence[Entry]) -> list[Entry]:
    """Objects as LVIS takes them: `ignore` is heeded, crowds are objects like others."""
    return [
        {**annotation, "iscrowd": 0, "area": _NO_AREA if annotation.get("ignore") else annotation["area"]}
        for annotation in annotations
    ]


def best_of_images(detections: list[Entry] | Rows, most: int) -> list[Entry] | Rows:
    """The `most` detections of highest score of each image, of equal ones those that come first, in their order.

    Args:
        detections: of whole images, COCO results or rows [N, 7] (image_id, x, y, width,
            height, score, category_id).
        most: at least 1.
    """
    if isinstance(detections, np.ndarray):
        return detections[best_positions((detections[:, 0],), detections[:, 5], most)]
    images = np.array([detection["image_id"] for detection in detections], np.int64)
    scores = np.array([detection["score"] for detection in detections], np.float64)
    return [detections[position] for position in best_positions((images,), scores, most)]
