"""Mergeable matching of images in any order and from several workers, in bounded memory."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import hotcoco
import numpy as np
import numpy.typing as npt

from detection.coco.params import RECALLS, FloatArray, Params, chosen, counted_detections
from detection.datasets.annotations.entries import Entry, Ids, Rows
from detection.datasets.annotations.entry_rules import column
from schemas.errors import DataError

MOST_BYTES = 3 << 30  # max size of the arrays of an evaluation or analysis
PAIRS_AT_ONCE = 50_000_000  # pairs of a detection and an annotation, 8 bytes each
MOST_PAIRS = 300_000_000  # max pairs in one image
_AT_ONCE = 5_000  # images per call, which determines the engine's additional memory
_CATEGORIES = 500  # categories per accumulation
_CONFUSION_BYTES = 24  # per pair of categories: counts in the engine, as integers, and as a list


def array_bytes(categories: int, params: Params) -> int:
    """Returns the size in bytes of `Arrays` for a number of categories."""
    cells = len(params.iou_thresholds) * len(params.area_ranges) * len(params.max_dets)
    return 8 * (2 * RECALLS + 1) * cells * (categories if params.use_cats else 1)


def require_arrays(categories: int, params: Params, *, where: str) -> None:
    """Checks that precision, recall and scores of all categories fit into memory.

    Raises:
        DataError: the arrays are too large.
    """
    needed = array_bytes(categories, params)
    if needed > MOST_BYTES:
        most = MOST_BYTES * categories // needed
        raise DataError(
            f"{where}: {categories} categories: their precision, recall and scores would need {needed / 2**30:.1f} GiB "
            f"of memory; with these parameters, at most {most} categories can be evaluated at once. Evaluate the "
            "categories in several files, or as one category (--no-cats, use_cats=False)."
        )


def require_analysis(categories: int, params: Params, *, models: int, replicates: int) -> None:
    """Checks that the arrays of an analysis fit into memory: of each model, the bootstrap, and the confusion matrix.

    Raises:
        DataError: the arrays are too large.
    """
    cells = len(params.iou_thresholds) * len(params.area_ranges) * (1 + len(params.max_dets))
    bootstrap = 8 * replicates * cells * categories
    needed = models * array_bytes(categories, params) + bootstrap + _CONFUSION_BYTES * categories**2
    if needed > MOST_BYTES:
        raise DataError(
            f"{categories} categories: an analysis (report, comparison) would need about {needed / 2**30:.1f} GiB of "
            f"memory, more than {MOST_BYTES >> 30}. Evaluate without analysis, or the categories in several files."
        )


def pairs_by_image(
    image_ids: Ids, annotations: Sequence[Entry], detections: Sequence[Entry] | Rows, *, by_category: bool
) -> Ids:
    """Returns the number of pairs of a detection and an annotation per image, int64 [N], by ascending image id.

    Args:
        image_ids: int64 [N], in any order.
        annotations: COCO entries of these images.
        detections: COCO results, or rows, of these images.
        by_category: if there are many pairs, count only pairs of one category.
    """
    ordered = np.sort(image_ids)
    annotated, detected = (
        np.searchsorted(ordered, column(entries, "image_id")) for entries in (annotations, detections)
    )
    counts = [np.bincount(places, minlength=len(ordered)).astype(np.int64) for places in (annotated, detected)]
    pairs = counts[0] * counts[1]
    if not by_category or pairs.sum() <= PAIRS_AT_ONCE:
        return pairs
    categories = np.concatenate([column(entries, "category_id") for entries in (annotations, detections)])
    cells = np.stack([np.concatenate([annotated, detected]), categories.astype(np.int64)])
    unique, places = np.unique(cells, axis=1, return_inverse=True)
    in_cell = [
        np.bincount(some, minlength=unique.shape[1]) for some in np.split(places.reshape(-1), [len(annotations)])
    ]
    totals = np.zeros(len(ordered), np.int64)
    np.add.at(totals, unique[0], in_cell[0] * in_cell[1])
    return totals


def require_pairs(image_ids: Ids, pairs: Ids, *, where: str) -> None:
    """Checks that the overlaps of each image fit into memory.

    Args:
        image_ids: int64 [N], in any order.
        pairs: pairs per image by ascending id, from `pairs_by_image`.
        where: source of the data, for the error.

    Raises:
        DataError: an image has too many pairs.
    """
    if pairs.size and pairs.max() > MOST_PAIRS:
        image = np.sort(image_ids)[pairs.argmax()]
        raise DataError(
            f"{where}: image {image} has {pairs.max():,} pairs of a detection and an annotation to compare, which need "
            f"{8 * int(pairs.max()) / 2**30:.1f} GiB of memory; the limit is {MOST_PAIRS:,} per image. "
            "Lower --max-dets (max_dets), or cut the image into tiles."
        )


def groups_of(category_ids: Iterable[int], params: Params) -> list[list[int]]:
    """Divides categories by their keypoints' sigmas, of which the engine has one list; [[]]: all categories."""
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for category_id in sorted(category_ids):
        groups[params.sigmas_of.get(category_id, ())].append(category_id)
    return list(groups.values()) if len(groups) > 1 else [[]]


def engine_parameters(params: Params, category_ids: list[int]) -> Any:
    """`hotcoco.Params` of the params, for all images and categories of the same sigmas; []: all categories."""
    parameters = hotcoco.Params(params.iou_type)
    parameters.max_dets = list(params.max_dets)
    parameters.use_cats = params.use_cats
    parameters.iou_thrs = list(params.iou_thresholds)
    parameters.area_rng = [list(limits) for limits in params.area_ranges.values()]
    parameters.area_rng_lbl = list(params.area_ranges)
    parameters.cat_ids = category_ids
    if params.sigmas_of:
        parameters.kpt_oks_sigmas = list(params.sigmas_of[category_ids[0] if category_ids else min(params.sigmas_of)])
    return parameters


@dataclass(frozen=True, eq=False)
class Arrays:
    """Results of COCOeval's `accumulate`, -1 without ground truth.

    precision: float64 [T, R, K, A, M]: IoU thresholds, recall thresholds 0, 0.01,
        ... 1, categories by ascending id, area ranges, `max_dets`.
    recall: float64 [T, K, A, M].
    scores: float64 [T, R, K, A, M].
    category_ids: the K ids; with `use_cats` False, all ids, although K is 1.
    """

    precision: FloatArray
    recall: FloatArray
    scores: FloatArray
    category_ids: tuple[int, ...]


class MatchingEngine:
    """Mergeable state of an evaluation; its inputs must be valid."""

    def __init__(self, categories: Sequence[Entry], params: Params, *, category_id: int | None = None) -> None:
        """Args: `categories` of the data set; `params`; `category_id`, the only category to match, default all."""
        ids = [category["id"] for category in categories]
        groups = groups_of(ids, params) if category_id is None else [[category_id]]
        names = [{"id": category["id"], "name": str(category.get("name", category["id"]))} for category in categories]
        self._params = params
        self._states = [
            hotcoco.StreamingEval(names, params.iou_type, params.lvis, engine_parameters(params, group))
            for group in groups
        ]

    def add(
        self, images: Sequence[Entry], annotations: Sequence[Entry], detections: Sequence[Entry] | Rows, *, where: str
    ) -> None:
        """Matches the detections of some images.

        Args:
            images: COCO entries, each image added only once.
            annotations: COCO entries of these images.
            detections: COCO results, or float64 [N, 7] rows (image_id, x, y, width,
                height, score, category_id).
            where: source of the entries, for errors.

        Raises:
            DataError: the engine refuses a value; an image has too many pairs of a detection and
                an annotation.
        """
        counted = counted_detections(detections, self._params)
        if counted is not None:
            detections = chosen(detections, counted)
        try:
            for some in _groups(list(images), list(annotations), detections, self._params, where):
                for state in self._states:
                    state.update(*some)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{where}: cannot be evaluated: {error}. Correct it in the file.") from error

    def merge(self, other: "MatchingEngine") -> None:
        """Merges the images of another engine with the same categories and params."""
        self._states = [hotcoco.StreamingEval.merge(pair) for pair in zip(self._states, other._states, strict=True)]

    def to_bytes(self) -> list[bytes]:
        """Serializes the state, for another process."""
        return [bytes(state.to_bytes()) for state in self._states]

    def restore(self, states: Iterable[list[bytes]]) -> None:
        """Replaces the state by the merged images of some states from `to_bytes`, at least one.

        They are read one at a time, unless there are several groups of categories.
        """
        groups = zip(*states, strict=True) if len(self._states) > 1 else [(state for [state] in states)]
        self._states = [hotcoco.StreamingEval.merge(map(hotcoco.StreamingEval.from_bytes, group)) for group in groups]

    def arrays(self, *, last: bool = False) -> Arrays:
        """Accumulates the images so far; more may be added afterwards unless `last`, which saves a copy."""
        states = self._states if last else map(copy.copy, self._states)
        return accumulated([state.finalize() for state in states], self._params)


def accumulated(evaluations: Sequence[Any], params: Params) -> Arrays:
    """Accumulates the matched `hotcoco.COCOeval`s of the groups of categories, some categories at a time.

    The engine copies its arrays when it returns them, which would double the memory for all
    categories at once.
    """
    groups = [list(evaluated.params.cat_ids) for evaluated in evaluations]
    ids = tuple(sorted(category_id for group in groups for category_id in group))
    if not params.use_cats or (len(groups) == 1 and len(ids) <= _CATEGORIES):
        return Arrays(**_sums(evaluations[0]), category_ids=ids)
    whole = blank_arrays(ids, params)
    for evaluated, group in zip(evaluations, groups, strict=True):
        for start in range(0, len(group), _CATEGORIES):
            evaluated.params.cat_ids = group[start : start + _CATEGORIES]
            places = np.searchsorted(ids, evaluated.params.cat_ids)
            some = _sums(evaluated)
            whole.precision[:, :, places] = some["precision"]
            whole.recall[:, places] = some["recall"]
            whole.scores[:, :, places] = some["scores"]
        evaluated.params.cat_ids = group
    return whole


def _sums(evaluated: Any) -> dict[str, FloatArray]:
    evaluated.accumulate()
    sums: dict[str, Any] = evaluated.eval or {}
    return {name: np.asarray(sums[name]) for name in ("precision", "recall", "scores")}


def blank_arrays(category_ids: Sequence[int], params: Params) -> Arrays:
    """Returns arrays of the right shapes, filled with -1."""
    thresholds = len(params.iou_thresholds)
    rows = len(category_ids) if params.use_cats else 1
    shape = (rows, len(params.area_ranges), len(params.max_dets))
    return Arrays(
        precision=np.empty((thresholds, RECALLS, *shape)),
        recall=np.empty((thresholds, *shape)),
        scores=np.empty((thresholds, RECALLS, *shape)),
        category_ids=tuple(category_ids),
    )


def _groups(
    images: list[Any], annotations: list[Any], detections: Sequence[Entry] | Rows, params: Params, where: str
) -> Iterator[tuple[list[Any], list[Any], Any]]:
    """Yields groups of some thousand images, fewer if crowded, with their entries, in the given order."""
    image_ids = column(images, "id")
    pairs = pairs_by_image(image_ids, annotations, detections, by_category=params.use_cats)
    require_pairs(image_ids, pairs, where=where)
    groups = _numbers(pairs)  # group of each image by ascending id
    if not groups.size or groups[-1] == 0:
        yield images, annotations, detections if isinstance(detections, np.ndarray) else list(detections)
        return
    order = np.argsort(image_ids)
    starts = np.flatnonzero(np.diff(groups, prepend=-1))

    def divided(ids: npt.NDArray[Any]) -> list[npt.NDArray[np.int64]]:
        """Returns the positions of the entries of each group's images."""
        theirs = groups[np.searchsorted(image_ids[order], ids)]
        by_group = np.argsort(theirs, kind="stable")
        return np.split(by_group, np.searchsorted(theirs[by_group], range(1, len(starts))))

    of_annotations = divided(column(annotations, "image_id"))
    of_detections = divided(column(detections, "image_id"))
    ends = [*starts[1:].tolist(), len(images)]
    for start, end, mine, theirs in zip(starts.tolist(), ends, of_annotations, of_detections, strict=True):
        yield (
            [images[position] for position in order[start:end]],
            [annotations[position] for position in mine],
            chosen(detections, theirs),
        )


def _numbers(pairs: Ids) -> Ids:
    """Returns the group of each image, 0, 1, 2, ..., ascending, int64 [N]."""
    by_images = np.arange(len(pairs)) // _AT_ONCE
    by_pairs = np.cumsum(pairs) // PAIRS_AT_ONCE
    changes = (np.diff(by_images, prepend=0) > 0) | (np.diff(by_pairs, prepend=0) > 0)
    changes[:1] = False
    return np.cumsum(changes)
