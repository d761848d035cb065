"""COCO's matching with the result for every detection, at all thresholds and area ranges.

The bootstrap needs it: an evaluation of resampled images can be computed from the matches per
image.  The engine's own per-image results are Python objects, which take 9 s and 1.3 GB for 1000
images; these arrays take 0.2 s and 10 MB.  Tests compare them with the engine's arrays.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from detection.analysis.instances import BoolArray, DetectionColumns, GroundTruth, cells_of
from detection.coco.metrics import FloatArray
from detection.coco.params import IntArray, Params

_PAIRS = 2_000_000  # max pairs of a detection and an annotation in memory

Overlaps = Callable[[IntArray, IntArray], FloatArray]  # positions [D] and [G] in one image -> [D, G]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a detection and an annotation of one category in one image, with their overlap, sorted by detection.

    detection, instance: int64 [P], positions.
    overlap: float64 [P].
    """

    detection: IntArray
    instance: IntArray
    overlap: FloatArray


@dataclass(frozen=True, eq=False)
class Matches:
    """Status of the detections that overlap ground truth of their category; others are FP at any threshold.

    detection: int64 [C], positions of these detections, ascending.
    tp: bool [C, T, A] by IoU threshold and area range: matched to ground truth that is not ignored.
    ignored: bool [C, T, A]: neither TP nor FP.
    ranks: int64 [N] of all detections: rank by score within category and image, from 0.
    ignored_alone: bool [N, A]: the detection is ignored if unmatched: its area is outside of the range,
        or the image is not exhaustively annotated for its category (LVIS).
    ignored_ground_truth: bool [G, A]: annotations that are ignored in the range.
    """

    detection: IntArray
    tp: BoolArray
    ignored: BoolArray
    ranks: IntArray
    ignored_alone: BoolArray
    ignored_ground_truth: BoolArray


def candidate_pairs(
    ground_truth: GroundTruth, detections: DetectionColumns, overlaps: Overlaps, params: Params
) -> Pairs:
    """Finds all pairs of one category in one image that overlap enough for the lowest IoU threshold.

    Detections beyond the best `max_dets` have no pairs.
    """
    least = _thresholds(params).min()
    positions, instances, values = [], [], []
    counted = np.flatnonzero(_ranks(detections, len(ground_truth.categories)) < params.max_dets[-1])
    for theirs, gt in by_image(ground_truth, detections, counted):
        overlap = overlaps(theirs, gt)
        near = (overlap >= least) & (detections.category[theirs, None] == ground_truth.category[gt])
        row, column = np.nonzero(near)
        positions.append(theirs[row])
        instances.append(gt[column])
        values.append(overlap[row, column])
    if not positions:
        return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return Pairs(np.concatenate(positions), np.concatenate(instances), np.concatenate(values))


def by_image(
    ground_truth: GroundTruth, detections: DetectionColumns, positions: IntArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yields positions of detections and of ground truth for each image that has both.

    An image with many pairs is yielded several times, each time with some of its detections and
    all of its ground truth.

    Args:
        ground_truth: the ground truth.
        detections: all detections.
        positions: positions of the detections to include, ascending.
    """
    images = np.arange(len(ground_truth.images) + 1)
    starts, ends = np.searchsorted(ground_truth.image, images[:-1]), np.searchsorted(ground_truth.image, images[1:])
    splits = np.searchsorted(detections.image[positions], images)
    for image in np.flatnonzero((ends > starts) & (np.diff(splits) > 0)):
        gt = np.arange(starts[image], ends[image])
        at_once = max(1, _PAIRS // len(gt))
        for start in range(splits[image], splits[image + 1], at_once):
            yield positions[start : min(start + at_once, splits[image + 1])], gt


def match(
    ground_truth: GroundTruth, detections: DetectionColumns, areas: FloatArray, pairs: Pairs, params: Params
) -> Matches:
    """Matches greedily by score, as COCOeval's `evaluateImg` does.

    Args:
        ground_truth: the ground truth.
        detections: the detections.
        areas: float64 [N], areas of the detections in square pixels.
        pairs: `candidate_pairs`.
        params: parameters of the evaluation.
    """
    limits = np.array(list(params.area_ranges.values()))
    ignored_ground_truth = ground_truth.ignored[:, None] | _outside(ground_truth.areas, limits)
    ranks = _ranks(detections, len(ground_truth.categories))
    positions, first, sizes = np.unique(pairs.detection, return_index=True, return_counts=True)
    thresholds = _thresholds(params)
    shape = (len(positions), len(thresholds), len(limits))
    matched, ignored = np.zeros(shape, bool), np.zeros(shape, bool)
    taken = np.zeros((len(ground_truth.image), *shape[1:]), bool)
    for turn in _turns(detections, ranks, positions, sizes, len(ground_truth.categories)):
        places = first[turn, None] + np.arange(sizes[turn].max())
        present = places < (first + sizes)[turn, None]
        places = np.where(present, places, 0)
        instances = pairs.instance[places]  # [D, P]
        overlap = np.where(present, pairs.overlap[places], -1.0)
        free = ~taken[instances] | ground_truth.crowd[instances][:, :, None, None]  # [D, P, T, A]
        fits = free & (overlap[:, :, None] >= thresholds)[..., None]
        choice, hit = _choose(fits, ignored_ground_truth[instances][:, :, None, :], overlap)
        chosen = np.take_along_axis(instances, choice.reshape(len(turn), -1), axis=1).reshape(choice.shape)
        row, threshold, area = np.nonzero(hit)
        taken[chosen[row, threshold, area], threshold, area] = True
        matched[turn] = hit
        ignored[turn] = hit & ignored_ground_truth[chosen, np.arange(len(limits))]
    ignored_alone = _outside(areas, limits) | _unsure(ground_truth, detections)[:, None]
    return Matches(
        detection=positions,
        tp=matched & ~ignored,
        ignored=ignored | (~matched & ignored_alone[positions][:, None]),
        ranks=ranks,
        ignored_alone=ignored_alone,
        ignored_ground_truth=ignored_ground_truth,
    )


def _choose(fits: BoolArray, ignored_ground_truth: BoolArray, overlap: FloatArray) -> tuple[IntArray, BoolArray]:
    """Chooses the ground truth of each detection: the max overlap, ignored ones last, the last one in a tie.

    Args:
        fits: bool [D, P, T, A], whether the two may match.
        ignored_ground_truth: bool [D, P, 1, A], whether the ground truth is ignored.
        overlap: float64 [D, P].

    Returns:
        Position in P, int64 [D, T, A], and whether there is a match, bool [D, T, A].
    """
    counted = fits & ~ignored_ground_truth
    eligible = np.where(counted.any(axis=1, keepdims=True), counted, fits)
    values = np.where(eligible, overlap[:, :, None, None], -1.0)[:, ::-1]
    choice = overlap.shape[1] - 1 - values.argmax(axis=1)
    return choice, np.asarray(eligible.any(axis=1))


def _turns(
    detections: DetectionColumns, ranks: IntArray, positions: IntArray, sizes: IntArray, categories: int
) -> Iterator[IntArray]:
    """Yields positions in `positions`: the first of each category and image, the second, ..., in chunks.

    Args:
        detections: all detections.
        ranks: ranks of all detections.
        positions: positions of the detections that overlap ground truth.
        sizes: number of overlapping annotations per detection.
        categories: number of categories.
    """
    if not len(positions):
        return
    cells = detections.image[positions] * categories + detections.category[positions]
    order = np.lexsort((ranks[positions], cells))
    ordinal = _ordinals(cells[order])
    by_ordinal = np.argsort(ordinal, kind="stable")
    for turn in np.split(order[by_ordinal], np.cumsum(np.bincount(ordinal))[:-1]):
        at_once = max(1, _PAIRS // int(sizes[turn].max()))
        yield from (turn[start : start + at_once] for start in range(0, len(turn), at_once))


def _ranks(detections: DetectionColumns, categories: int) -> IntArray:
    cells = detections.image * categories + detections.category
    order = np.lexsort((-detections.scores, cells))  # stable: equal scores keep their order
    ranks = np.empty(len(cells), np.int64)
    ranks[order] = _ordinals(cells[order])
    return ranks


def _thresholds(params: Params) -> FloatArray:
    """Returns the IoU thresholds [T], lowered as in COCOeval so that 1.0 can be reached."""
    return np.minimum(params.iou_thresholds, 1 - 1e-10)


def _ordinals(groups: IntArray) -> IntArray:
    """Returns 0, 1, 2, ... within each run of equal values, int64 [N]."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    lengths = np.diff(starts, append=len(groups))
    return np.arange(len(groups)) - np.repeat(starts, lengths)


def _unsure(ground_truth: GroundTruth, detections: DetectionColumns) -> BoolArray:
    """Returns whether each detection's category is not exhaustively annotated in its image, bool [N]; LVIS only."""
    cells = detections.image * len(ground_truth.categories) + detections.category
    return np.isin(cells, cells_of(ground_truth, "not_exhaustive_category_ids"))


def _outside(areas: FloatArray, limits: FloatArray) -> BoolArray:
    """Returns whether areas [N] are outside of ranges [A, 2] with inclusive limits; bool [N, A]."""
    outside: BoolArray = (areas[:, None] < limits[:, 0]) | (areas[:, None] > limits[:, 1])
    return outside
