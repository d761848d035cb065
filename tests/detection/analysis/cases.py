"""What several tests of the analyses make or read."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from pycocotools.cocoeval import COCOeval

from detection.analysis.evaluated import Evaluated
from detection.analysis.instances import detection_columns, ground_truth_columns
from detection.coco.keypoint_sigmas import fit_keypoints
from detection.coco.params import Params, make_params
from tests.detection.coco.generated_cases import generate

IMAGE = {"width": 200, "height": 200}


def evaluated(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]], params: Params | None = None
) -> Evaluated:
    params = fit_keypoints(params or make_params(), ground_truth["categories"])
    columns = ground_truth_columns(ground_truth, params, where="truth")
    return Evaluated(columns, detection_columns(detections, columns, params, where="matched"), params)


def ground_truth_of(*annotations: tuple[int, int, list[float]], images: int = 1, categories: int = 2) -> dict[str, Any]:
    """Ground truth of (image, category, box) and ids from 1 on."""
    return {
        "images": [{"id": number + 1, **IMAGE, "file_name": f"{number + 1}.jpg"} for number in range(images)],
        "annotations": [
            {
                "id": number + 1,
                "image_id": image,
                "category_id": category,
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": 0,
            }
            for number, (image, category, box) in enumerate(annotations)
        ],
        "categories": [{"id": number + 1, "name": f"name {number + 1}"} for number in range(categories)],
    }


def detections_of(*detections: tuple[int, int, list[float], float]) -> list[dict[str, Any]]:
    """COCO results of (image, category, box, score)."""
    return [
        {"image_id": image, "category_id": category, "bbox": box, "score": score}
        for image, category, box, score in detections
    ]


def lvis_case(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A generated case with LVIS' lists of categories."""
    ground_truth, detections = generate(seed)
    rng = np.random.default_rng(seed)
    ids = [category["id"] for category in ground_truth["categories"]]
    for category in ground_truth["categories"]:
        category["frequency"] = str(rng.choice(["r", "c", "f"]))
    for image in ground_truth["images"]:
        present = {entry["category_id"] for entry in ground_truth["annotations"] if entry["image_id"] == image["id"]}
        image["neg_category_ids"] = [one for one in ids if one not in present and rng.random() < 0.6]
        image["not_exhaustive_category_ids"] = [one for one in sorted(present) if rng.random() < 0.4]
    return ground_truth, detections


def ranked(detections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The detections with scores that differ within an image; between images there are equal ones."""
    numbers: dict[int, int] = {}
    rows = []
    for entry in detections:
        number = numbers[entry["image_id"]] = numbers.get(entry["image_id"], 0) + 1
        rows.append({**entry, "score": entry["score"] + number / 1000})
    return rows


def repeated(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]], times: dict[int, int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The data set with each image, by id, there as often as `times` says, under ids of their own."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    for image in sorted(ground_truth["images"], key=lambda image: image["id"]):
        for number in range(times[image["id"]]):
            new = {"image_id": image["id"] * 1000 + number}
            images.append({**image, "id": new["image_id"]})
            theirs = [entry for entry in ground_truth["annotations"] if entry["image_id"] == image["id"]]
            annotations.extend([{**entry, **new, "id": len(annotations) + i + 1} for i, entry in enumerate(theirs)])
            copies.extend({**entry, **new} for entry in detections if entry["image_id"] == image["id"])
    return copy.deepcopy({**ground_truth, "images": images, "annotations": annotations}), copies


class Counted(NamedTuple):
    """A detection that counts in pycocotools' evaluation at IoU 0.5."""

    image: int
    category: int
    score: float
    right: bool


def counted_detections(evaluation: COCOeval) -> Iterator[Counted]:
    """What pycocotools found, over all areas."""
    for entry in evaluation.evalImgs:
        if entry is None or entry["aRng"] != evaluation.params.areaRng[0]:
            continue
        for score, match, ignored in zip(entry["dtScores"], entry["dtMatches"][0], entry["dtIgnore"][0], strict=True):
            if not ignored:
                yield Counted(entry["image_id"], entry["category_id"], score, match > 0)


def objects_to_find(evaluation: COCOeval) -> dict[int, int]:
    """Category id -> objects that count, over all areas."""
    numbers = dict.fromkeys(evaluation.params.catIds, 0)
    for entry in evaluation.evalImgs:
        if entry is not None and entry["aRng"] == evaluation.params.areaRng[0]:
            numbers[entry["category_id"]] += int((np.asarray(entry["gtIgnore"]) == 0).sum())
    return numbers
