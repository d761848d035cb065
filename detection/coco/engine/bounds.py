"""Memory that an evaluation needs, bounded before the engine starts: it ends the process if there is too little."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.coco.params import RECALLS, Params
from detection.datasets.entries import Entry, Ids, Rows
from schemas.errors import DataError

MOST_BYTES = 3 << 30  # of the arrays of an evaluation or analysis
PAIRS_AT_ONCE = 50_000_000  # of a detection and an object, 8 bytes each
MOST_PAIRS = 300_000_000  # in one image
_CONFUSION_BYTES = 24  # of each pair of categories: as the engine counts them, as integers, and as a list


def array_bytes(categories: int, params: Params) -> int:
    """Returns the size of `Arrays` of that many categories."""
    cells = len(params.iou_thresholds) * len(params.area_ranges) * len(params.max_dets)
    return 8 * (2 * RECALLS + 1) * cells * (categories if params.use_cats else 1)


def require_arrays(categories: int, params: Params, *, where: str) -> None:
    """Checks that precision, recall and scores of all categories can be held.

    Raises:
        DataError: they are too large.
    """
    needed = array_bytes(categories, params)
    if needed > MOST_BYTES:
        most = MOST_BYTES * categories // needed
        raise DataError(
            f"{where}: {categories} categories: their precision, recall and scores would take {needed / 2**30:.1f} GiB "
            f"of memory; with these parameters at most {most} categories are evaluated at once. Evaluate the "
            "categories in several files, or all as one (--no-cats, use_cats=False)."
        )


def require_analysis(categories: int, params: Params, *, models: int, replicates: int) -> None:
    """Checks that the arrays of an analysis can be held: of each model, of the bootstrap, and the confusion matrix.

    Raises:
        DataError: they are too large.
    """
    cells = len(params.iou_thresholds) * len(params.area_ranges) * (1 + len(params.max_dets))
    bootstrap = 8 * replicates * cells * categories
    needed = models * array_bytes(categories, params) + bootstrap + _CONFUSION_BYTES * categories**2
    if needed > MOST_BYTES:
        raise DataError(
            f"{categories} categories: an analysis (report, comparison) would take about {needed / 2**30:.1f} GiB of "
            f"memory, more than {MOST_BYTES >> 30}. Evaluate without it, or the categories in several files."
        )


def pairs_by_image(
    image_ids: Ids, annotations: Sequence[Entry], detections: Sequence[Entry] | Rows, *, by_category: bool
) -> Ids:
    """Returns how many pairs of a detection and an object each image has, int64 [N], by ascending image id.

    Args:
        image_ids: int64 [N], in any order.
        annotations: COCO entries of these images.
        detections: COCO results, or rows, of these images.
        by_category: count pairs of one category alone if there are many pairs.
    """
    ordered = np.sort(image_ids)
    objects, found = (np.searchsorted(ordered, _column(entries, "image_id")) for entries in (annotations, detections))
    counts = [np.bincount(places, minlength=len(ordered)).astype(np.int64) for places in (objects, found)]
    pairs = counts[0] * counts[1]
    if not by_category or pairs.sum() <= PAIRS_AT_ONCE:
        return pairs
    categories = np.concatenate([_column(entries, "category_id") for entries in (annotations, detections)])
    cells = np.stack([np.concatenate([objects, found]), categories.astype(np.int64)])
    unique, places = np.unique(cells, axis=1, return_inverse=True)
    in_cell = [
        np.bincount(some, minlength=unique.shape[1]) for some in np.split(places.reshape(-1), [len(annotations)])
    ]
    totals = np.zeros(len(ordered), np.int64)
    np.add.at(totals, unique[0], in_cell[0] * in_cell[1])
    return totals


def _column(entries: Sequence[Entry] | Rows, key: str) -> npt.NDArray[Any]:
    if isinstance(entries, np.ndarray):
        return entries[:, 0 if key == "image_id" else 6]
    return np.array([entry[key] for entry in entries], np.int64)


def require_pairs(image_ids: Ids, pairs: Ids, *, where: str) -> None:
    """Checks that the overlaps of each image can be held.

    Args:
        image_ids: int64 [N], in any order.
        pairs: of the images by ascending id, from `pairs_by_image`.
        where: names the source in the error.

    Raises:
        DataError: an image has too many.
    """
    if pairs.size and pairs.max() > MOST_PAIRS:
        image = np.sort(image_ids)[pairs.argmax()]
        raise DataError(
            f"{where}: image {image} has {pairs.max():,} pairs of a detection and an object to compare, which need "
            f"{8 * int(pairs.max()) / 2**30:.1f} GiB of memory; at most {MOST_PAIRS:,} are compared in an image. "
            "Lower --max-dets (max_dets), or divide the image."
        )
