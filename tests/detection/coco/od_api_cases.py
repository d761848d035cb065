"""The worked cases of the TF Object Detection API's metrics as COCO trees."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask


def read_cases(oracle_dir: Path) -> dict[str, Any]:
    """Reads the inputs and results."""
    cases: dict[str, Any] = json.loads((oracle_dir / "od_api" / "metrics.json").read_text())
    return cases


def box(yxyx: list[float]) -> list[float]:
    """Returns x, y, width, height."""
    top, left, bottom, right = yxyx
    return [left, top, right - left, bottom - top]


def filled(xywh: list[float], *, fraction: float = 1.0) -> dict[str, Any]:
    """Returns the mask of a box in an image of 200 x 200 pixels, with a fraction of the width."""
    left, top, width, height = xywh
    pixels = np.zeros((200, 200), np.uint8, order="F")
    right = left + width if fraction == 1.0 else int(left + max(1, fraction * width))
    pixels[int(top) : int(top + height), int(left) : int(right)] = 1
    rle = mask.encode(pixels)
    return {"size": rle["size"], "counts": rle["counts"].decode()}


def keypoints_as_coco(case: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns ground truth and detections of `coco_keypoints`."""

    def flat(points: Any, visible: Any) -> list[float]:
        return [value for (y, x), seen in zip(points, visible, strict=True) for value in (x, y, seen)]

    tree: dict[str, Any] = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "person"}]}
    detections = []
    for image_id, image in ((int(key), value) for key, value in case["images"].items()):
        tree["images"].append({"id": image_id})
        for yxyx, points, visible in zip(image["gt_boxes"], image["gt_keypoints"], image["gt_vis"], strict=True):
            xywh = box(yxyx)
            annotation = {"id": len(tree["annotations"]) + 1, "image_id": image_id, "category_id": 1, "bbox": xywh}
            annotation |= {"keypoints": flat(points, visible), "num_keypoints": sum(map(bool, visible))}
            tree["annotations"].append(annotation | {"area": xywh[2] * xywh[3]})
        for points, score in zip(image["det_keypoints"], image["det_scores"], strict=True):
            keypoints = flat(points, [1] * len(points))
            detections.append({"image_id": image_id, "category_id": 1, "score": score, "keypoints": keypoints})
    return tree, detections


def as_coco(cases: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns ground truth and detections, boxes with masks; those without an area are left out."""
    tree: dict[str, Any] = {"images": [], "annotations": [], "categories": cases["categories"]}
    detections = []
    for image_id, image in enumerate(cases["images"].values(), start=1):
        absent = sorted(set(image["image_classes"]) - set(image["gt_classes"]))
        tree["images"].append({"id": image_id, "height": 200, "width": 200, "neg_category_ids": absent})
        for row, yxyx in enumerate(image["gt_boxes"]):
            tree["annotations"].append(
                {
                    "id": len(tree["annotations"]) + 1,
                    "image_id": image_id,
                    "category_id": image["gt_classes"][row],
                    "bbox": box(yxyx),
                    "area": box(yxyx)[2] * box(yxyx)[3],
                    "difficult": image["difficult"][row],
                    "is_group_of": image["group_of"][row],
                    "segmentation": filled(box(yxyx)),
                }
            )
        for row, yxyx in enumerate(image["det_boxes"]):
            if min(box(yxyx)[2:]) > 0:
                detections.append(
                    {
                        "image_id": image_id,
                        "category_id": image["det_classes"][row],
                        "bbox": box(yxyx),
                        "score": image["det_scores"][row],
                        "segmentation": filled(box(yxyx), fraction=0.9),
                    }
                )
    return tree, detections
