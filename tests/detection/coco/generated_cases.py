"""Random COCO cases with everything awkward in them, and pycocotools' answer."""

import contextlib
import copy
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

SIDE = 200
_SCORES = np.array([0.1, 0.3, 0.5, 0.5, 0.9])  # few values, so ties abound
_CATEGORIES = [7, 2, 90, 31]  # not ascending; 31 is never used


def generate(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Ground truth and detections with masks and keypoints: crowds, ties, empty images and categories."""
    rng = np.random.default_rng(seed)
    images = [{"id": int(i), "height": SIDE, "width": SIDE} for i in rng.permutation(np.arange(3, 13) * 5)]
    annotations: list[dict[str, Any]] = []
    detections: list[dict[str, Any]] = []
    for image in images[2:]:
        for _ in range(rng.integers(0, 6)):
            annotation = _annotation(rng, image["id"], len(annotations) + 1)
            annotations.append(annotation)
            for _ in range(rng.integers(0, 3)):
                detections.append(_detection(rng, image["id"], annotation["bbox"], annotation["category_id"]))
    for image in images[1:]:
        for _ in range(rng.integers(0, 5)):
            detections.append(_detection(rng, image["id"], _box(rng), int(rng.choice(_CATEGORIES[:3]))))
    order = rng.permutation(len(detections))
    categories = [{"id": c, "name": f"category {c}"} for c in _CATEGORIES]
    ground_truth = {"images": images, "annotations": annotations, "categories": categories}
    return ground_truth, [detections[i] for i in order]


def pycocotools_eval(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]], iou_type: str = "bbox", **params: Any
) -> COCOeval:
    """COCOeval after `summarize`, its prints swallowed; an empty list is no error here.

    Args:
        ground_truth: content of an annotation file.
        detections: COCO results.
        iou_type: `bbox`, `segm` or `keypoints`.
        **params: attributes of COCOeval's `params`, such as `maxDets`.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        loaded = COCO()
        loaded.dataset = copy.deepcopy(ground_truth)
        loaded.createIndex()
        results = loaded.loadRes(copy.deepcopy(detections)) if detections else COCO()
        evaluation = COCOeval(loaded, results, iou_type)
        vars(evaluation.params).update(params)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def detections_near(ground_truth: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Detections near most of the real objects, some twice, some of another class; their masks are the boxes."""
    sizes = {image["id"]: image for image in ground_truth["images"]}
    classes = [category["id"] for category in ground_truth["categories"]]
    detections = []
    for annotation in [*ground_truth["annotations"], *ground_truth["annotations"][::3]]:
        if rng.random() < 0.2:
            continue
        x, y, width, height = (value + float(rng.normal(0, 2)) for value in annotation["bbox"])
        width, height = max(width, 1.0), max(height, 1.0)
        size = sizes[annotation["image_id"]]
        corners = [x, y, x + width, y, x + width, y + height, x, y + height]
        mask = masks.merge(masks.frPyObjects([corners], size["height"], size["width"]))
        keypoints = np.array(annotation.get("keypoints", [0] * 51)) + rng.normal(0, 2, 51)
        detections.append(
            {
                "image_id": annotation["image_id"],
                "category_id": annotation["category_id"] if rng.random() < 0.8 else int(rng.choice(classes)),
                "bbox": [x, y, width, height],
                "score": float(rng.choice([0.2, 0.5, 0.7])),
                "segmentation": {"size": mask["size"], "counts": mask["counts"].decode()},
                "keypoints": keypoints.tolist(),
            }
        )
    return detections


def _annotation(rng: np.random.Generator, image_id: int, annotation_id: int) -> dict[str, Any]:
    box = _box(rng)
    crowd = int(rng.random() < 0.2)
    return {
        "id": annotation_id,
        "image_id": image_id,
        "category_id": int(rng.choice(_CATEGORIES[:3])),
        "bbox": box,
        "area": box[2] * box[3] * float(rng.uniform(0.5, 1.0)),
        "iscrowd": crowd,
        "ignore": int(rng.random() < 0.2),
        "segmentation": _rle(box) if crowd else [_polygon(box)],
        "keypoints": _keypoints(rng, box),
        "num_keypoints": 17,
    }


def _detection(rng: np.random.Generator, image_id: int, near: list[float], category: int) -> dict[str, Any]:
    box = [max(0.0, value + float(rng.normal(0, 3))) for value in near]
    return {
        "image_id": image_id,
        "category_id": category,
        "bbox": box,
        "score": float(rng.choice(_SCORES)),
        "segmentation": _rle(box),
        "keypoints": _keypoints(rng, box),
    }


def _box(rng: np.random.Generator) -> list[float]:
    x, y = rng.uniform(0, 80, 2)
    width, height = rng.choice([12.0, 25.0, 60.0, 110.0], 2) * rng.uniform(0.8, 1.2, 2)
    return [float(x), float(y), float(width), float(height)]


def _polygon(box: list[float]) -> list[float]:
    x, y, width, height = box
    return [x, y, x + width, y, x + width, y + height, x, y + height]


def _rle(box: list[float]) -> dict[str, Any]:
    rle = masks.merge(masks.frPyObjects([_polygon([box[0], box[1], max(box[2], 1), max(box[3], 1)])], SIDE, SIDE))
    return {"size": rle["size"], "counts": rle["counts"].decode()}


def _keypoints(rng: np.random.Generator, box: list[float]) -> list[float]:
    x: npt.NDArray[np.float64] = box[0] + box[2] * np.linspace(0, 1, 17) + rng.normal(0, 2, 17)
    y = box[1] + box[3] * np.linspace(0, 1, 17)
    return [float(v) for v in np.stack([x, y, rng.integers(1, 3, 17)], axis=1).ravel()]
