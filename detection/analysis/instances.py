"""Ground truth and detections as columns, in an order independent of the images' order; the sample of images."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.coco.params import FloatArray, IntArray, Params, best_of_images, chosen, lvis_annotations
from detection.coco.validation.checks import (
    check_annotations,
    check_categories,
    check_detections,
    references_of,
    valid_images,
)
from detection.datasets.annotations.entries import Entry, Rows
from detection.datasets.annotations.entry_rules import column
from detection.datasets.sampling import key_hash

BoolArray = npt.NDArray[np.bool_]


def sample_rank(image_id: int, seed: int) -> int:
    """Returns the rank of an image for sampling, 0 <= rank < 2^64: a hash of its id and the seed.

    The images of lowest rank are the sample, independent of their order, so each of several workers can
    select the lowest ranks of its images.
    """
    return key_hash(f"{seed}:{image_id}")


def sample_ids(image_ids: Iterable[int], count: int, seed: int) -> list[int]:
    """Samples at most `count` image ids, ascending."""
    ids = sorted(image_ids, key=lambda image_id: (sample_rank(image_id, seed), image_id))
    return sorted(ids[:count])


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """Ground truth: images and categories by ascending id, annotations by image in their original order.

    checked_images: validated images of the evaluation.
    image, category: int64 [G], positions in `images` and `categories`.
    boxes: float64 [G, 4], x, y, width, height in pixels.
    areas: float64 [G], square pixels.
    crowd: bool [G].
    ignored: bool [G]: crowds; for keypoints, annotations without keypoints; for LVIS, those
        marked `ignore`.
    """

    images: list[Entry]
    checked_images: list[Entry]
    categories: list[Entry]
    annotations: list[Entry]
    image: IntArray
    category: IntArray
    boxes: FloatArray
    areas: FloatArray
    crowd: BoolArray
    ignored: BoolArray


@dataclass(frozen=True, eq=False)
class DetectionColumns:
    """Detections by image, in their original order within an image.

    results: COCO results, or float64 [N, 7] rows (image_id, x, y, width, height, score, category_id).
    image, category: int64 [N], positions in the images and categories of `GroundTruth`.
    scores: float64 [N].
    """

    results: list[Entry] | Rows
    image: IntArray
    category: IntArray
    scores: FloatArray


def ground_truth_columns(tree: Mapping[str, Any], params: Params, *, where: str) -> GroundTruth:
    """Validates a COCO tree and fills in optional keys.

    Raises:
        DataError: an entry is invalid.
    """
    checked = valid_images(tree["images"], iou_type=params.iou_type, where=where, lvis=params.lvis)
    references = references_of(checked, check_categories(tree["categories"], where=where, lvis=params.lvis), params)
    annotations = check_annotations(tree["annotations"], references, where=where)
    if params.lvis:
        annotations = lvis_annotations(annotations)
    return _objects(tree["images"], checked, tree["categories"], annotations, params)


def ground_truth_of_images(ground_truth: GroundTruth, image_ids: Collection[int], params: Params) -> GroundTruth:
    """Returns the ground truth of some of the images."""
    wanted = set(image_ids)
    return _objects(
        [image for image in ground_truth.images if image["id"] in wanted],
        [image for image in ground_truth.checked_images if image["id"] in wanted],
        ground_truth.categories,
        [annotation for annotation in ground_truth.annotations if annotation["image_id"] in wanted],
        params,
    )


def detection_columns(
    detections: Sequence[Entry] | Rows, ground_truth: GroundTruth, params: Params, *, where: str
) -> DetectionColumns:
    """Validates detections against their ground truth.

    Raises:
        DataError: a detection is invalid.
    """
    references = references_of(ground_truth.checked_images, column(ground_truth.categories, "id"), params)
    entries = check_detections(detections, references, where=where)
    if params.lvis:
        entries = best_of_images(entries, params.max_dets[-1])
    image = np.searchsorted(column(ground_truth.images, "id"), column(entries, "image_id"))
    category = np.searchsorted(column(ground_truth.categories, "id"), column(entries, "category_id"))
    order = np.argsort(image, kind="stable")
    if params.lvis:
        order = order[_looked_for(ground_truth, image[order], category[order])]
    return DetectionColumns(
        results=chosen(entries, order),
        image=image[order],
        category=category[order],
        scores=column(entries, "score")[order],
    )


def detections_in(detections: DetectionColumns, whole: GroundTruth, part: GroundTruth) -> DetectionColumns:
    """Returns the detections on the images of a subset of the ground truth."""
    positions = np.searchsorted(column(part.images, "id"), column(whole.images, "id"))
    kept = np.isin(column(whole.images, "id"), column(part.images, "id"))
    inside = np.flatnonzero(kept[detections.image])
    return DetectionColumns(
        results=chosen(detections.results, inside),
        image=positions[detections.image[inside]],
        category=detections.category[inside],
        scores=detections.scores[inside],
    )


def cells_of(ground_truth: GroundTruth, key: str) -> IntArray:
    """Returns the pairs of image and category that LVIS lists under `key`, as image * K + category."""
    places = {category["id"]: position for position, category in enumerate(ground_truth.categories)}
    cells = [
        position * len(places) + places[category_id]
        for position, image in enumerate(ground_truth.checked_images)
        for category_id in image.get(key, ())
        if category_id in places
    ]
    return np.array(cells, np.int64)


def _looked_for(ground_truth: GroundTruth, image: IntArray, category: IntArray) -> BoolArray:
    """Returns whether LVIS has annotated each detection's category in its image; others are not evaluated."""
    present = ground_truth.image * len(ground_truth.categories) + ground_truth.category
    absent = cells_of(ground_truth, "neg_category_ids")
    return np.isin(image * len(ground_truth.categories) + category, np.concatenate([present, absent]))


def _objects(
    images: Sequence[Entry],
    checked: Sequence[Entry],
    categories: Sequence[Entry],
    annotations: Sequence[Entry],
    params: Params,
) -> GroundTruth:
    images, checked, categories = (
        sorted(entries, key=lambda entry: entry["id"]) for entries in (images, checked, categories)
    )
    annotations = sorted(annotations, key=lambda annotation: annotation["image_id"])
    crowd = np.array([annotation["iscrowd"] for annotation in annotations], bool)
    blank = [params.iou_type == "keypoints" and not annotation["num_keypoints"] for annotation in annotations]
    left_out = [params.lvis and bool(annotation.get("ignore")) for annotation in annotations]
    return GroundTruth(
        images=images,
        checked_images=checked,
        categories=categories,
        annotations=annotations,
        image=np.searchsorted(column(images, "id"), column(annotations, "image_id")),
        category=np.searchsorted(column(categories, "id"), column(annotations, "category_id")),
        boxes=np.array([annotation["bbox"] for annotation in annotations], np.float64).reshape(-1, 4),
        areas=np.array([annotation["area"] for annotation in annotations], np.float64),
        crowd=crowd,
        ignored=crowd | np.array(blank, bool) | np.array(left_out, bool),
    )
