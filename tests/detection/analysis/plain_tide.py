"""TIDE in plain loops, from the paper and its code, on pycocotools' matches.

Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection Errors", ECCV 2020.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as masks

from tests.detection.coco.generated_cases import pycocotools_eval

RIGHT_IOU, BACKGROUND_IOU = 0.5, 0.1
TYPES = ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss")


class Tide(NamedTuple):
    """`by_category`: (category id, error type) -> count, by the detection's category, for `Miss` the object's."""

    counts: dict[str, int]
    gains: dict[str, float]
    by_category: dict[tuple[int, str], int]


class _Point(NamedTuple):
    """A detection that counts: its category, and the object it found or would find."""

    number: int
    category: int
    score: float
    right: bool
    error: str
    target: Any


def tide(ground_truth: dict[str, Any], detections: list[dict[str, Any]]) -> Tide:
    """Counts and AP gains of box errors."""
    evaluation = pycocotools_eval(ground_truth, detections)
    used: set[int] = set()
    to_find: list[dict[str, Any]] = []
    for entry in evaluation.evalImgs:
        if entry and entry["aRng"] == evaluation.params.areaRng[0]:
            theirs = {one["id"]: one for one in evaluation._gts[entry["image_id"], entry["category_id"]]}
            to_find += [theirs[i] for i, ignored in zip(entry["gtIds"], entry["gtIgnore"], strict=True) if not ignored]
            used |= {i for i, match in zip(entry["gtIds"], entry["gtMatches"][0], strict=True) if match}
    points = _points(evaluation, ground_truth, used)
    targets = {point.target["id"] for point in points if point.target}
    fn = [one for one in to_find if one["id"] not in used | targets]
    counts = Counter(point.error for point in points)
    number = Counter(one["category_id"] for one in to_find)
    base = _mean_precision(points, number)
    gains = {name: _mean_precision(_mended(points, name, used), number) - base for name in TYPES[:-1]}
    gains["Miss"] = _mean_precision(points, number, Counter(one["category_id"] for one in fn)) - base
    by_category = Counter((point.category, point.error) for point in points if point.error)
    by_category.update((one["category_id"], "Miss") for one in fn)
    return Tide({name: counts[name] for name in TYPES[:-1]} | {"Miss": len(fn)}, gains, dict(by_category))


def _points(evaluation: Any, ground_truth: dict[str, Any], used: set[int]) -> list[_Point]:
    points = []
    for entry in evaluation.evalImgs:
        if not entry or entry["aRng"] != evaluation.params.areaRng[0]:
            continue
        here = [one for one in ground_truth["annotations"] if one["image_id"] == entry["image_id"]]
        for number, score, match, ignored in zip(
            entry["dtIds"], entry["dtScores"], entry["dtMatches"][0], entry["dtIgnore"][0], strict=True
        ):
            if ignored:
                continue
            error, target = "", None
            if not match:
                box = evaluation.cocoDt.anns[number]["bbox"]
                error, target = _error(box, entry["category_id"], here, used)
            points.append(_Point(number, entry["category_id"], score, bool(match), error, target))
    return points


def _error(box: list[float], category: int, annotations: list[dict[str, Any]], used: set[int]) -> tuple[str, Any]:
    overlaps = [float(masks.iou([box], [one["bbox"]], [one["iscrowd"]])[0][0]) for one in annotations]
    same = [(iou, one) for iou, one in zip(overlaps, annotations, strict=True) if one["category_id"] == category]
    other = [
        (iou, one)
        for iou, one in zip(overlaps, annotations, strict=True)
        if one["category_id"] != category and not one["iscrowd"]
    ]
    nothing = (0.0, None)
    best_same = max(same, key=lambda pair: pair[0], default=nothing)
    best_other = max(other, key=lambda pair: pair[0], default=nothing)
    if BACKGROUND_IOU <= best_same[0] <= RIGHT_IOU:
        return "Loc", best_same[1]
    if best_other[0] >= RIGHT_IOU:
        return "Cls", best_other[1]
    if any(iou >= RIGHT_IOU and (one["id"] in used or one["iscrowd"]) for iou, one in same):
        return "Dupe", None
    return ("Bkg", None) if best_other[0] <= BACKGROUND_IOU else ("Both", None)


def _mended(points: list[_Point], error: str, used: set[int]) -> list[_Point]:
    """Errors of one type made right where they are the best chance of an object not found; else left out.

    Crowds, which the paper does not know, need not be found.
    """
    best: dict[int, _Point] = {}
    for point in points:
        if point.target and not point.target["iscrowd"] and point.target["id"] not in used:
            rival = best.get(point.target["id"])
            if rival is None or point.score > rival.score:
                best[point.target["id"]] = point
    mended = []
    for point in points:
        if point.error != error:
            mended.append(point)
        elif point.target and best.get(point.target["id"]) is point:
            mended.append(point._replace(right=True, category=point.target["category_id"]))
    return mended


def _mean_precision(points: list[_Point], number: Counter[int], less: Counter[int] | None = None) -> float:
    values = []
    for category, annotations in number.items():
        theirs = sorted((p for p in points if p.category == category), key=lambda p: -p.score)
        values.append(_average_precision([p.right for p in theirs], annotations - (less or Counter())[category]))
    return float(np.mean(values)) if values else 0.0


def _average_precision(right: list[bool], annotations: int) -> float:
    if not right or not annotations:
        return 0.0
    hits = np.cumsum(right)
    precision, recall = hits / np.arange(1, len(right) + 1), hits / annotations
    return float(np.mean([max(precision[recall >= least], default=0.0) for least in np.linspace(0, 1, 101)]))
