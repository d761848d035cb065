"""Random cases and params with everything that has gone wrong in evaluators, and pycocotools' answer.

Seeded: a case is a function of its seed and IoU type.
"""

import copy
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as masks
from pycocotools.cocoeval import COCOeval

from tests.detection.coco.generated_cases import SIDE, generate, pycocotools_eval

_DEFAULTS = {"bbox": (1, 10, 100), "segm": (1, 10, 100), "keypoints": (20,)}


class Case(NamedTuple):
    """Ground truth, detections, and the keyword arguments of `evaluate`."""

    ground_truth: dict[str, Any]
    detections: list[dict[str, Any]]
    params: dict[str, Any]


def awkward_case(seed: int, iou_type: str) -> Case:
    """On top of `generate`: zero areas, double boxes, all kinds of masks, odd ids and names, own parameters."""
    rng = np.random.default_rng([seed, len(iou_type)])
    ground_truth, detections = generate(int(rng.integers(2**31)))
    params = _random_params(rng, iou_type)
    if rng.random() < 0.05:
        ground_truth["annotations"] = []
    if rng.random() < 0.05:
        detections = []
    for entry in (*ground_truth["annotations"], *detections):
        _twist(entry, rng)
    if rng.random() < 0.1:
        detections = [copy.deepcopy(detection) for detection in detections for _ in range(9)]  # ties, beyond maxDets
    if iou_type != "bbox" and rng.random() < 0.3:
        _leave_boxes_out(detections, iou_type)
    if "oks_sigmas" in params:
        _new_keypoints((*ground_truth["annotations"], *detections), len(params["oks_sigmas"]), rng)
    if rng.random() < 0.3:
        _renumber(ground_truth, detections, rng)
    if rng.random() < 0.2:
        ground_truth["categories"] = [{**category, "name": "one for all"} for category in ground_truth["categories"]]
    return Case(ground_truth, detections, params)


def reference(case: Case, iou_type: str) -> COCOeval:
    """COCOeval after `summarize`.

    Keypoints whatever their category it never matches (`computeOks` looks for those of
    category -1): it gets them as one category, in the order in which it takes boxes.
    """
    if iou_type == "keypoints" and not case.params.get("use_cats", True):
        case = _as_one_category(case)
    given = case.params
    params: dict[str, Any] = {"useCats": int(given.get("use_cats", True))}
    if "max_dets" in given:
        params["maxDets"] = list(given["max_dets"])
    if "iou_thresholds" in given:
        params["iouThrs"] = np.array(given["iou_thresholds"])
    if "area_ranges" in given:
        params["areaRngLbl"] = list(given["area_ranges"])
        params["areaRng"] = [list(limits) for limits in given["area_ranges"].values()]
    if "oks_sigmas" in given:
        params["kpt_oks_sigmas"] = np.array(given["oks_sigmas"])
    return pycocotools_eval(case.ground_truth, case.detections, iou_type, **params)


def stats_are_comparable(case: Case, iou_type: str) -> bool:
    """Whether COCOeval's `stats` can be trusted: with other `maxDets` its AP and AR are -1."""
    return tuple(case.params.get("max_dets", _DEFAULTS[iou_type])) == _DEFAULTS[iou_type]


def _as_one_category(case: Case) -> Case:
    def renamed(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**entry, "category_id": 1} for entry in sorted(entries, key=lambda entry: entry["category_id"])]

    ground_truth = {
        **case.ground_truth,
        "annotations": renamed(case.ground_truth["annotations"]),
        "categories": [{"id": 1, "name": "one"}],
    }
    return Case(ground_truth, renamed(case.detections), {**case.params, "use_cats": True})


def _random_params(rng: np.random.Generator, iou_type: str) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if rng.random() < 0.25:
        params["use_cats"] = False
    if rng.random() < 0.4:
        numbers = rng.choice(np.arange(1, 150), len(_DEFAULTS[iou_type]), replace=False)
        params["max_dets"] = tuple(sorted(numbers.tolist()))
    if rng.random() < 0.3:
        middle = float(rng.uniform(100, 5000))
        params["area_ranges"] = {"all": (0.0, 1e10), "small": (0.0, middle), "huge": (middle, 1e10), "none": (0.0, 0.0)}
    if rng.random() < 0.2:
        params["iou_thresholds"] = tuple(np.sort(rng.choice([0.1, 0.5, 0.75, 0.9, 1.0], 3, replace=False)).tolist())
    if iou_type == "keypoints" and rng.random() < 0.4:
        params["oks_sigmas"] = tuple(rng.uniform(0.02, 0.2, rng.integers(1, 30)).tolist())
    return params


def _twist(entry: dict[str, Any], rng: np.random.Generator) -> None:
    kind = rng.integers(16)
    x, y, width, height = entry["bbox"]
    if kind == 0:
        entry["bbox"] = [x, y, 0.0, height]
    elif kind == 1:
        entry["bbox"] = [x, y, 0, 0]
    elif kind == 2:
        entry["bbox"] = [20.0, 30.0, 40.0, 50.0]  # the same as others
    elif kind == 3:
        entry["segmentation"] = [[x, y, x + width, y, x, y + height], [x + 9.5, y, x + width, y + 7, x, y + height]]
    elif kind == 4:
        entry["segmentation"] = _uncompressed(entry["bbox"])
    elif kind == 5:
        entry["segmentation"] = {"size": [SIDE, SIDE], "counts": [SIDE * SIDE]}  # nothing
    elif kind == 6:
        entry["keypoints"] = [0] * 51
    elif kind == 7:
        entry["bbox"] = [x, y, 32, 32.0]  # on the border of two area ranges
        entry["keypoints"] = [-3.5, 7, 3] * 17
    if "score" in entry:
        entry["score"] = [-entry["score"], 1e300, 0, -0.0, 0.0][rng.integers(5)] if kind in (8, 9) else entry["score"]
    else:
        entry["area"] = {8: 0, 9: 1024, 10: 96.0**2}.get(int(kind), entry["area"])
        told = sum(value > 0 for value in entry["keypoints"][2::3])
        entry["num_keypoints"] = {11: 0, 12: 5}.get(int(kind), told)  # what it tells counts, not what is there


def _leave_boxes_out(detections: list[dict[str, Any]], iou_type: str) -> None:
    for detection in detections:
        del detection["bbox"]
        if iou_type == "keypoints":
            del detection["segmentation"]
        elif not isinstance(detection["segmentation"], dict) or isinstance(detection["segmentation"]["counts"], list):
            # Without a box pycocotools takes compressed masks only.
            detection["segmentation"] = _compressed(detection["segmentation"])


def _new_keypoints(entries: Any, count: int, rng: np.random.Generator) -> None:
    for entry in entries:
        x, y = entry.get("bbox", entry["keypoints"][:2])[:2]
        flags = rng.integers(0, 3, count)
        places = np.stack([x + rng.uniform(0, 50, count), y + rng.uniform(0, 50, count), flags], axis=1)
        entry["keypoints"] = places.ravel().tolist()
        if "num_keypoints" in entry and rng.random() < 0.8:
            entry["num_keypoints"] = int((flags > 0).sum())


def _renumber(ground_truth: dict[str, Any], detections: list[dict[str, Any]], rng: np.random.Generator) -> None:
    """Large ids in another order."""
    images = {
        image["id"]: int(new) for image, new in zip(ground_truth["images"], rng.permutation(100) + 2**40, strict=False)
    }
    for image in ground_truth["images"]:
        image["id"] = images[image["id"]]
    for number, annotation in enumerate(ground_truth["annotations"]):
        annotation["id"] = 2**50 - number * 7
    for entry in (*ground_truth["annotations"], *detections):
        entry["image_id"] = images[entry["image_id"]]


def _uncompressed(box: list[float]) -> dict[str, Any]:
    x, y, width, height = (round(value) for value in box)
    mask = np.zeros((SIDE, SIDE), bool)
    mask[y : y + height, x : x + width] = True
    flat = np.concatenate([[False], mask.ravel(order="F")])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return {"size": [SIDE, SIDE], "counts": np.diff([0, *changes, SIDE * SIDE]).tolist()}


def _compressed(segmentation: Any) -> dict[str, Any]:
    encoded = masks.frPyObjects(segmentation, SIDE, SIDE)
    merged = masks.merge(encoded) if isinstance(encoded, list) else encoded
    return {"size": merged["size"], "counts": merged["counts"].decode()}
