"""Explains detections that match little: boxes in another format, or ids numbered differently.

Each interpretation is tried on some images.  One that matches where the file as it is does not is reported; no
detection is changed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detection.coco.params import FloatArray

_IMAGES = 200  # images with ground truth on which interpretations are tried
_DETECTIONS = 50  # best detections per image
_IOU = 0.5
_LOW, _HIGH = 0.2, 0.5  # max share of objects with a detection as the file is; min share as another interpretation
_CONSTANT = 0.8  # min share of the matches with the same difference of ids
_SIDES = (256, 320, 384, 416, 448, 512, 600, 608, 640, 768, 800, 896, 1024, 1280, 1333, 1536)

Convert = Callable[[FloatArray, float, float], FloatArray]  # boxes [N, 4], height and width of the image -> xywh


class _Objects(NamedTuple):
    """The objects of an image; boxes [G, 4] are x, y, width, height."""

    image_id: int
    height: float
    width: float
    boxes: FloatArray
    categories: npt.NDArray[np.int64]


def misreadings(ground_truth: Mapping[str, Any], rows: FloatArray) -> Iterator[str]:
    """Yields how the boxes or ids of detections may be meant if few match, a sentence each.

    Args:
        ground_truth: content of an annotation file.
        rows: detections [N, 7]: image_id, x, y, width, height, score, category_id.
    """
    objects = _objects(ground_truth)
    total = sum(len(one.boxes) for one in objects)
    if not total or not len(rows):
        return
    by_image = _by_image(rows)
    as_is = _share(objects, by_image, lambda boxes, height, width: boxes)
    if as_is < _LOW:
        yield from _other_boxes(objects, by_image)
    elif as_is >= _HIGH:
        yield from _other_categories(objects, by_image)


def _other_boxes(objects: Sequence[_Objects], by_image: Mapping[int, FloatArray]) -> Iterator[str]:
    shares = {words: _share(objects, by_image, convert) for words, convert in _readings().items()}
    words, share = max(shares.items(), key=lambda item: item[1])
    if share >= _HIGH:
        yield (
            f"read as {words}, the boxes of the detections match {share:.0%} of the ground truth: convert them to "
            "x, y, width, height in pixels of the image"
        )
        return
    for step in (1, -1):
        shifted = {image_id - step: found for image_id, found in by_image.items()}
        share = _share(objects, shifted, lambda boxes, height, width: boxes)
        if share >= _HIGH:
            yield (
                f"with image ids {-step:+d}, the detections match {share:.0%} of the ground truth: they are counted "
                "from another number"
            )
            return


def _other_categories(objects: Sequence[_Objects], by_image: Mapping[int, FloatArray]) -> Iterator[str]:
    pairs: Counter[tuple[int, int]] = Counter()  # (category of the detection, of the object)
    for one in objects:
        rows = by_image.get(one.image_id)
        if rows is None:
            continue
        overlap = _iou(one.boxes, rows[:, 1:5])
        best = overlap.argmax(axis=1)
        matched = overlap[np.arange(len(best)), best] >= _IOU
        pairs.update(zip(rows[best, 6][matched].astype(int).tolist(), one.categories[matched].tolist(), strict=True))
    total = pairs.total()
    if sum(count for (found, real), count in pairs.items() if found == real) >= _LOW * total:
        return
    steps: Counter[int] = Counter()
    for (found, real), count in pairs.items():
        steps[found - real] += count
    step, count = steps.most_common(1)[0]
    if count >= _CONSTANT * total:
        yield f"the detections overlap the ground truth, but their category ids are {step:+d} from its ids"
        return
    meant: dict[int, Counter[int]] = {}
    for (found, real), count in pairs.items():
        meant.setdefault(found, Counter())[real] += count
    agreed = {found: each.most_common(1)[0] for found, each in meant.items()}
    if sum(count for _, count in agreed.values()) >= _CONSTANT * total:
        examples = ", ".join(f"{found} for {real}" for found, (real, _) in sorted(agreed.items())[:3])
        yield f"the detections overlap the ground truth, but their category ids are other numbers than its: {examples}"


def _readings() -> dict[str, Convert]:
    def corners(boxes: FloatArray, height: float, width: float) -> FloatArray:
        return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)

    def centers(boxes: FloatArray, height: float, width: float) -> FloatArray:
        return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, 2:]], axis=1)

    def rows_first(boxes: FloatArray) -> FloatArray:
        return boxes[:, [1, 0, 3, 2]]

    def fractions(boxes: FloatArray, height: float, width: float) -> FloatArray:
        return boxes * [width, height, width, height]

    def fitted(side: int) -> Convert:
        return lambda boxes, height, width: boxes * (max(height, width) / side)

    def stretched(side: int) -> Convert:
        return lambda boxes, height, width: boxes * ([width / side, height / side] * 2)

    forms: dict[str, Convert] = {
        "corners x1, y1, x2, y2": corners,
        "center x, center y, width, height": centers,
        "y, x, height, width": lambda boxes, height, width: rows_first(boxes),
        "corners y1, x1, y2, x2": lambda boxes, height, width: corners(rows_first(boxes), height, width),
        "fractions of the image": fractions,
        "corners in fractions of the image": lambda boxes, *size: fractions(corners(boxes, *size), *size),
    }
    forms |= {f"pixels of a network's input of {side}, padded": fitted(side) for side in _SIDES}
    return forms | {f"pixels of a network's input of {side}, stretched": stretched(side) for side in _SIDES}


def _objects(ground_truth: Mapping[str, Any]) -> list[_Objects]:
    """Returns the objects of the first images that have some; entries may be invalid."""
    sizes = {
        one["id"]: (one["height"], one["width"])
        for one in ground_truth["images"]
        if isinstance(one, Mapping) and _are_numbers(one.get("id"), one.get("height"), one.get("width"))
    }
    of_image: dict[int, list[Any]] = {}
    for one in ground_truth["annotations"]:
        if not isinstance(one, Mapping) or one.get("iscrowd") or one.get("image_id") not in sizes:
            continue
        box, category = one.get("bbox"), one.get("category_id")
        if isinstance(box, list) and len(box) == 4 and _are_numbers(category, *box):
            if one["image_id"] not in of_image and len(of_image) == _IMAGES:
                continue
            of_image.setdefault(one["image_id"], []).append((box, category))
    return [
        _Objects(
            image_id,
            *sizes[image_id],
            np.array([box for box, _ in entries], np.float64),
            np.array([category for _, category in entries], np.int64),
        )
        for image_id, entries in of_image.items()
    ]


def _are_numbers(*values: Any) -> bool:
    return all(type(value) in (int, float) and abs(value) < 2**53 for value in values)


def _by_image(rows: FloatArray) -> dict[int, FloatArray]:
    """Returns the best rows of each image."""
    ordered = rows[np.lexsort((-rows[:, 5], rows[:, 0]))]
    ids, starts = np.unique(ordered[:, 0], return_index=True)
    parts = np.split(ordered, starts[1:])
    return {int(image_id): part[:_DETECTIONS] for image_id, part in zip(ids, parts, strict=True)}


def _share(objects: Sequence[_Objects], by_image: Mapping[int, FloatArray], convert: Convert) -> float:
    """Returns the share of the objects that a detection of any category overlaps."""
    hits = 0
    for one in objects:
        found = by_image.get(one.image_id)
        if found is not None:
            boxes = convert(found[:, 1:5], one.height, one.width)
            hits += int((_iou(one.boxes, boxes).max(axis=1) >= _IOU).sum())
    return hits / sum(len(one.boxes) for one in objects)


def _iou(first: FloatArray, second: FloatArray) -> FloatArray:
    """Returns IoU [N, M] of boxes x, y, width, height; 0 with a side that is not positive."""
    low = np.maximum(first[:, np.newaxis, :2], second[np.newaxis, :, :2])
    high = np.minimum((first[:, :2] + first[:, 2:])[:, np.newaxis], (second[:, :2] + second[:, 2:])[np.newaxis])
    overlap = np.prod(np.maximum(high - low, 0.0), axis=2)
    union = np.prod(np.maximum(first[:, 2:], 0), axis=1)[:, np.newaxis] + np.prod(np.maximum(second[:, 2:], 0), axis=1)
    return np.divide(overlap, union - overlap, out=np.zeros_like(overlap), where=union > overlap)
