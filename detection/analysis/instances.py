"""Objects and detections as columns, in an order that does not depend on that of the images."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.coco.params import FloatArray, Params, best_of_images
from detection.coco.validation.checks import (
    check_annotations,
    check_categories,
    check_detections,
    known_of,
    lvis_annotations,
    valid_images,
)
from detection.datasets.entries import Entry, Rows

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Objects:
    """Ground truth: images and categories by ascending id, annotations by image and in an image as they came.

    sound: of the images what an evaluation needs.
    image, category: int64 [G], positions in `images` and `categories`.
    boxes: float64 [G, 4], x, y, width, height in pixels.
    areas: float64 [G], square pixels.
    crowd: bool [G].
    ignored: bool [G], which need not be found: crowds, for keypoints objects without
        any, for LVIS those it ignores.
    """

    images: list[Entry]
    sound: list[Entry]
    categories: list[Entry]
    annotations: list[Entry]
    image: IntArray
    category: IntArray
    boxes: FloatArray
    areas: FloatArray
    crowd: BoolArray
    ignored: BoolArray


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


def read_objects(tree: Mapping[str, Any], params: Params, *, where: str) -> Objects:
    """Checks a COCO tree and fills in what it may leave out.

    Raises:
        DataError: see `detection.coco.validation.checks`.
    """
    sound = valid_images(tree["images"], iou_type=params.iou_type, where=where, lvis=params.lvis)
    check_categories(tree["categories"], where=where, lvis=params.lvis)
    annotations = check_annotations(tree["annotations"], known_of(sound, _ids(tree["categories"]), params), where=where)
    if params.lvis:
        annotations = lvis_annotations(annotations)
    return _objects(tree["images"], sound, tree["categories"], annotations, params)


def objects_of_images(objects: Objects, image_ids: Collection[int], params: Params) -> Objects:
    """The part of the ground truth that lies in some of its images."""
    wanted = set(image_ids)
    return _objects(
        [image for image in objects.images if image["id"] in wanted],
        [image for image in objects.sound if image["id"] in wanted],
        objects.categories,
        [annotation for annotation in objects.annotations if annotation["image_id"] in wanted],
        params,
    )


def read_found(detections: Sequence[Entry] | Rows, objects: Objects, params: Params, *, where: str) -> Found:
    """Checks detections against the ground truth they belong to.

    Raises:
        DataError: see `detection.coco.validation.checks`.
    """
    entries = check_detections(detections, known_of(objects.sound, _ids(objects.categories), params), where=where)
    if params.lvis:
        entries = best_of_images(entries, params.max_dets[-1])
    if isinstance(entries, np.ndarray):
        images, scores, categories = entries[:, 0].astype(np.int64), entries[:, 5], entries[:, 6].astype(np.int64)
    else:
        images = np.array([entry["image_id"] for entry in entries], np.int64)
        scores = np.array([entry["score"] for entry in entries], np.float64)
        categories = np.array([entry["category_id"] for entry in entries], np.int64)
    image, category = (
        np.searchsorted(_ids(objects.images), images),
        np.searchsorted(_ids(objects.categories), categories),
    )
    order = np.argsort(image, kind="stable")
    if params.lvis:
        order = order[_looked_for(objects, image[order], category[order])]
    return Found(
        entries=entries[order] if isinstance(entries, np.ndarray) else [entries[i] for i in order],
        image=image[order],
        category=category[order],
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


def cells_of(objects: Objects, key: str) -> IntArray:
    """The pairs of image and category that LVIS lists under `key`, as image * K + category."""
    places = {category["id"]: position for position, category in enumerate(objects.categories)}
    cells = [
        position * len(places) + places[category_id]
        for position, image in enumerate(objects.sound)
        for category_id in image.get(key, ())
        if category_id in places
    ]
    return np.array(cells, np.int64)


def _looked_for(objects: Objects, image: IntArray, category: IntArray) -> BoolArray:
    """Whether LVIS knows of a detection's category whether it is in the image; others are not evaluated there."""
    present = objects.image * len(objects.categories) + objects.category
    absent = cells_of(objects, "neg_category_ids")
    return np.isin(image * len(objects.categories) + category, np.concatenate([present, absent]))


def _objects(
    images: Sequence[Entry],
    sound: Sequence[Entry],
    categories: Sequence[Entry],
    annotations: Sequence[Entry],
    params: Params,
) -> Objects:
    images, sound, categories = (
        sorted(entries, key=lambda entry: entry["id"]) for entries in (images, sound, categories)
    )
    annotations = sorted(annotations, key=lambda annotation: annotation["image_id"])
    crowd = np.array([annotation["iscrowd"] for annotation in annotations], bool)
    blank = [params.iou_type == "keypoints" and not annotation["num_keypoints"] for annotation in annotations]
    left_out = [params.lvis and bool(annotation.get("ignore")) for annotation in annotations]
    return Objects(
        images=images,
        sound=sound,
        categories=categories,
        annotations=annotations,
        image=np.searchsorted(_ids(images), [annotation["image_id"] for annotation in annotations]),
        category=np.searchsorted(_ids(categories), [annotation["category_id"] for annotation in annotations]),
        boxes=np.array([annotation["bbox"] for annotation in annotations], np.float64).reshape(-1, 4),
        areas=np.array([annotation["area"] for annotation in annotations], np.float64),
        crowd=crowd,
        ignored=crowd | np.array(blank, bool) | np.array(left_out, bool),
    )


def _ids(entries: Sequence[Entry]) -> IntArray:
    return np.array([entry["id"] for entry in entries], np.int64)
