"""Objects and detections as columns, in an order that does not depend on that of the images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.coco.checks import check_annotations, check_categories, check_detections, check_images
from detection.coco.columns import Entry, Rows
from detection.coco.figures import FloatArray

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Objects:
    """Ground truth: images and categories by ascending id, annotations by image and in an image as they came.

    image, category: int64 [G], positions in `images` and `categories`.
    boxes: float64 [G, 4], x, y, width, height in pixels.
    areas: float64 [G], square pixels.
    crowd: bool [G].
    ignored: bool [G], crowds and, for keypoints, objects without any.
    """

    images: list[Entry]
    categories: list[Entry]
    annotations: list[Entry]
    image: IntArray
    category: IntArray
    boxes: FloatArray
    areas: FloatArray
    crowd: npt.NDArray[np.bool_]
    ignored: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Found:
    """Detections by image, in an image as they came.

    entries: COCO results, or float64 [N, 7] rows (image_id, x, y, width, height, score, category_id).
    image, category: int64 [N], positions in the images and categories of `Objects`.
    scores: float64 [N].
    """

    entries: list[Entry] | Rows
    image: IntArray
    category: IntArray
    scores: FloatArray


def read_objects(tree: Mapping[str, Any], iou_type: str, *, where: str) -> Objects:
    """Checks a COCO tree and fills in what it may leave out.

    Raises:
        DataError: see `detection.coco.checks`.
    """
    image_ids = check_images(tree["images"], iou_type=iou_type, where=where)
    category_ids = check_categories(tree["categories"], where=where)
    annotations = check_annotations(
        tree["annotations"], image_ids=image_ids, category_ids=category_ids, iou_type=iou_type, where=where
    )
    return _objects(tree["images"], tree["categories"], annotations, iou_type)


def objects_of_images(objects: Objects, image_ids: Sequence[int], iou_type: str) -> Objects:
    """The part of the ground truth that lies in some of its images."""
    wanted = set(image_ids)
    return _objects(
        [image for image in objects.images if image["id"] in wanted],
        objects.categories,
        [annotation for annotation in objects.annotations if annotation["image_id"] in wanted],
        iou_type,
    )


def read_found(detections: Sequence[Entry] | Rows, objects: Objects, iou_type: str, *, where: str) -> Found:
    """Checks detections against the ground truth they belong to.

    Raises:
        DataError: see `detection.coco.checks`.
    """
    image_ids, category_ids = _ids(objects.images), _ids(objects.categories)
    entries = check_detections(
        detections, image_ids=image_ids, category_ids=category_ids, iou_type=iou_type, where=where
    )
    if isinstance(entries, np.ndarray):
        images, scores, categories = entries[:, 0].astype(np.int64), entries[:, 5], entries[:, 6].astype(np.int64)
    else:
        images = np.array([entry["image_id"] for entry in entries], np.int64)
        scores = np.array([entry["score"] for entry in entries], np.float64)
        categories = np.array([entry["category_id"] for entry in entries], np.int64)
    order = np.argsort(images, kind="stable")
    return Found(
        entries=entries[order] if isinstance(entries, np.ndarray) else [entries[i] for i in order],
        image=np.searchsorted(image_ids, images[order]),
        category=np.searchsorted(category_ids, categories[order]),
        scores=scores[order],
    )


def found_in(found: Found, whole: Objects, part: Objects) -> Found:
    """The detections that lie in the images of a part of the ground truth."""
    positions = np.searchsorted(_ids(part.images), _ids(whole.images))
    kept = np.isin(_ids(whole.images), _ids(part.images))
    inside = np.flatnonzero(kept[found.image])
    return Found(
        entries=found.entries[inside] if isinstance(found.entries, np.ndarray) else [found.entries[i] for i in inside],
        image=positions[found.image[inside]],
        category=found.category[inside],
        scores=found.scores[inside],
    )


def _objects(
    images: Sequence[Entry], categories: Sequence[Entry], annotations: Sequence[Entry], iou_type: str
) -> Objects:
    images = sorted(images, key=lambda image: image["id"])
    categories = sorted(categories, key=lambda category: category["id"])
    annotations = sorted(annotations, key=lambda annotation: annotation["image_id"])
    crowd = np.array([annotation["iscrowd"] for annotation in annotations], bool)
    blank = [iou_type == "keypoints" and not annotation["num_keypoints"] for annotation in annotations]
    return Objects(
        images=images,
        categories=categories,
        annotations=annotations,
        image=np.searchsorted(_ids(images), [annotation["image_id"] for annotation in annotations]),
        category=np.searchsorted(_ids(categories), [annotation["category_id"] for annotation in annotations]),
        boxes=np.array([annotation["bbox"] for annotation in annotations], np.float64).reshape(-1, 4),
        areas=np.array([annotation["area"] for annotation in annotations], np.float64),
        crowd=crowd,
        ignored=crowd | np.array(blank, bool),
    )


def _ids(entries: Sequence[Entry]) -> IntArray:
    return np.array([entry["id"] for entry in entries], np.int64)
