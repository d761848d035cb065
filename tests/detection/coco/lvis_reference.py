"""LVIS' federated average precision, written plainly from its definition (Gupta et al., CVPR 2019)."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pycocotools import mask as masks

Array = npt.NDArray[np.float64]


class _Comparison(NamedTuple):
    iou_type: str
    area: tuple[float, float]
    threshold: float


_RECALLS = np.linspace(0.0, 1.0, 101)
_AREAS = ((0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10))


def lvis_arrays(ground_truth: Any, detections: Any, iou_type: str, most: int) -> tuple[Array, Array]:
    """Precision [10, 101, K, 4] and recall [10, K, 4]; -1 where there is nothing to find."""
    categories = sorted(category["id"] for category in ground_truth["categories"])
    best = [detection for image in ground_truth["images"] for detection in _best(detections, image["id"], most)]
    precision, recall = -np.ones((10, 101, len(categories), 4)), -np.ones((10, len(categories), 4))
    for k, category in enumerate(categories):
        for a, area in enumerate(_AREAS):
            for t, threshold in enumerate(np.linspace(0.5, 0.95, 10)):
                curve = _curve(ground_truth, best, category, _Comparison(iou_type, area, threshold))
                if curve is not None:
                    precision[t, :, k, a], recall[t, k, a] = curve
    return precision, recall


def _best(detections: Any, image_id: int, most: int) -> list[Any]:
    mine = [detection for detection in detections if detection["image_id"] == image_id]
    return sorted(mine, key=lambda detection: detection["score"], reverse=True)[:most]


def _curve(ground_truth: Any, detections: Any, category: int, by: _Comparison) -> tuple[Array, float] | None:
    outcomes: list[tuple[float, bool]] = []  # score, right
    to_find = 0
    for image in sorted(ground_truth["images"], key=lambda image: image["id"]):
        annotations = [
            a for a in ground_truth["annotations"] if (a["image_id"], a["category_id"]) == (image["id"], category)
        ]
        if not annotations and category not in image["neg_category_ids"]:
            continue  # nobody looked whether it is there
        mine = [d for d in detections if (d["image_id"], d["category_id"]) == (image["id"], category)]
        mine = sorted(mine, key=lambda d: d["score"], reverse=True)
        counted = [not a.get("ignore") and by.area[0] <= a["area"] <= by.area[1] for a in annotations]
        to_find += sum(counted)
        complete = category not in image["not_exhaustive_category_ids"]
        outcomes += _outcomes(annotations, counted, mine, by, complete=complete)
    if not to_find:
        return None
    outcomes.sort(key=lambda outcome: -outcome[0])
    right = np.cumsum([outcome[1] for outcome in outcomes])
    if not len(right):
        return np.zeros(101), 0.0
    recall, precision = right / to_find, right / np.arange(1, len(right) + 1)
    envelope = [precision[recall >= least].max() if (recall >= least).any() else 0.0 for least in _RECALLS]
    return np.array(envelope), float(recall[-1])


def _outcomes(
    annotations: Any, counted: list[bool], detections: Any, by: _Comparison, *, complete: bool
) -> list[tuple[float, bool]]:
    """Detections that count on an image, the best first."""
    order = sorted(range(len(annotations)), key=lambda g: not counted[g])
    free = set(order)
    kept = []
    for detection in detections:
        matched, overlap = None, min(by.threshold, 1 - 1e-10)
        for g in order:
            if matched is not None and counted[matched] and not counted[g]:
                break
            iou = _iou(detection, annotations[g], by.iou_type)
            if g in free and iou >= overlap:
                matched, overlap = g, iou
        if matched is not None:
            free.remove(matched)
            if counted[matched]:
                kept.append((detection["score"], True))
        elif complete and by.area[0] <= _area(detection) <= by.area[1]:
            kept.append((detection["score"], False))
    return kept


def _area(detection: Any) -> float:
    if "bbox" in detection:
        return float(detection["bbox"][2] * detection["bbox"][3])
    return float(masks.area(detection["segmentation"]))


def _iou(detection: Any, annotation: Any, iou_type: str) -> float:
    if iou_type == "segm":
        return float(masks.iou([_rle(detection)], [_rle(annotation)], [0])[0, 0])
    (x, y, width, height), (left, top, wide, high) = detection["bbox"], annotation["bbox"]
    across = max(0.0, min(x + width, left + wide) - max(x, left))
    down = max(0.0, min(y + height, top + high) - max(y, top))
    union = width * height + wide * high - across * down
    return across * down / union


def _rle(entry: Any) -> Any:
    shape = entry["segmentation"]
    return masks.merge(masks.frPyObjects(shape, 200, 200)) if isinstance(shape, list) else shape
