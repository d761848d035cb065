"""COCO's matching with what became of every detection, which the engine keeps to itself.

The bootstrap needs it: an evaluation of resampled images follows from the matches
of the images alone.  Equal to the engine's arrays, see the tests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from detection.analysis.instances import BoolArray, DetectionColumns, GroundTruth, IntArray, cells_of
from detection.coco.metrics import FloatArray
from detection.coco.params import Params

_PAIRS = 2_000_000  # of a detection and an object, looked at together

Overlaps = Callable[[IntArray, IntArray], FloatArray]  # positions [D] and [G] in one image -> [D, G]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Detections and objects of one category in one image, and how far they overlap, by detection.

    detection, instance: int64 [P], positions.
    overlap: float64 [P].
    """

    detection: IntArray
    instance: IntArray
    overlap: FloatArray


@dataclass(frozen=True, eq=False)
class Matches:
    """What became of the detections that overlap an object of their category; the others are wrong at any threshold.

    detection: int64 [C], their positions, ascending.
    tp: bool [C, T, A] by IoU threshold and area range: matched to ground truth that counts.
    ignored: bool [C, T, A]: neither right nor wrong.
    ranks: int64 [N] of all detections by score among those of their category in the image, from 0.
    harmless: bool [N, A]: the detection is no error where it finds nothing: its area is outside the range, or
        LVIS does not know whether all objects of its category were annotated.
    uncounted: bool [G, A]: objects that need not be found in the range.
    """

    detection: IntArray
    tp: BoolArray
    ignored: BoolArray
    ranks: IntArray
    harmless: BoolArray
    uncounted: BoolArray


def candidate_pairs(
    ground_truth: GroundTruth, detections: DetectionColumns, overlaps: Overlaps, params: Params
) -> Pairs:
    """All pairs of one category in one image that overlap enough for the least IoU threshold.

    Detections beyond the best `max_dets` are in none.
    """
    least = _thresholds(params).min()
    positions, instances, values = [], [], []
    counted = np.flatnonzero(_ranks(detections, len(ground_truth.categories)) < params.max_dets[-1])
    for theirs, truth in by_image(ground_truth, detections, counted):
        overlap = overlaps(theirs, truth)
        near = (overlap >= least) & (detections.category[theirs, None] == ground_truth.category[truth])
        row, column = np.nonzero(near)
        positions.append(theirs[row])
        instances.append(truth[column])
        values.append(overlap[row, column])
    if not positions:
        return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return Pairs(np.concatenate(positions), np.concatenate(instances), np.concatenate(values))


def by_image(
    ground_truth: GroundTruth, detections: DetectionColumns, positions: IntArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Positions of detections and of objects of each image that has both.

    An image whose pairs are many comes several times, with some of its detections and
    with all of its objects.

    Args:
        ground_truth: the ground truth.
        detections: all detections.
        positions: the positions of those that are wanted, ascending.
    """
    images = np.arange(len(ground_truth.images) + 1)
    starts, ends = np.searchsorted(ground_truth.image, images[:-1]), np.searchsorted(ground_truth.image, images[1:])
    splits = np.searchsorted(detections.image[positions], images)
    for image in np.flatnonzero((ends > starts) & (np.diff(splits) > 0)):
        truth = np.arange(starts[image], ends[image])
        at_once = max(1, _PAIRS // len(truth))
        for start in range(splits[image], splits[image + 1], at_once):
            yield positions[start : min(start + at_once, splits[image + 1])], truth


def match(
    ground_truth: GroundTruth, detections: DetectionColumns, areas: FloatArray, pairs: Pairs, params: Params
) -> Matches:
    """Matches greedily by score, as COCOeval's `evaluateImg`.

    Args:
        ground_truth: the ground truth.
        detections: the detections.
        areas: float64 [N], square pixels, of the detections.
        pairs: `candidate_pairs`.
        params: of the evaluation.
    """
    limits = np.array(list(params.area_ranges.values()))
    uncounted = ground_truth.ignored[:, None] | _outside(ground_truth.areas, limits)
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
        choice, hit = _choose(fits, uncounted[instances][:, :, None, :], overlap)
        chosen = np.take_along_axis(instances, choice.reshape(len(turn), -1), axis=1).reshape(choice.shape)
        row, threshold, area = np.nonzero(hit)
        taken[chosen[row, threshold, area], threshold, area] = True
        matched[turn] = hit
        ignored[turn] = hit & uncounted[chosen, np.arange(len(limits))]
    harmless = _outside(areas, limits) | _unsure(ground_truth, detections)[:, None]
    return Matches(
        detection=positions,
        tp=matched & ~ignored,
        ignored=ignored | (~matched & harmless[positions][:, None]),
        ranks=ranks,
        harmless=harmless,
        uncounted=uncounted,
    )


def _choose(fits: BoolArray, uncounted: BoolArray, overlap: FloatArray) -> tuple[IntArray, BoolArray]:
    """The object each detection takes: the one it overlaps most, counted ones first, the last of equals.

    Args:
        fits: bool [D, P, T, A], whether it may take the object.
        uncounted: bool [D, P, 1, A], whether the object need not be found.
        overlap: float64 [D, P].

    Returns:
        Position in P, int64 [D, T, A], and whether there is any, bool [D, T, A].
    """
    counted = fits & ~uncounted
    eligible = np.where(counted.any(axis=1, keepdims=True), counted, fits)
    values = np.where(eligible, overlap[:, :, None, None], -1.0)[:, ::-1]
    choice = overlap.shape[1] - 1 - values.argmax(axis=1)
    return choice, eligible.any(axis=1)


def _turns(
    detections: DetectionColumns, ranks: IntArray, positions: IntArray, sizes: IntArray, categories: int
) -> Iterator[IntArray]:
    """Positions in `detections`: those first in their category and image, those second, ..., some at a time.

    Args:
        detections: all detections.
        ranks: of all detections.
        positions: the positions of those that overlap objects.
        sizes: how many objects each of them overlaps.
        categories: how many there are.
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
    order = np.lexsort((-detections.scores, cells))  # stable: equal scores stay as they came
    ranks = np.empty(len(cells), np.int64)
    ranks[order] = _ordinals(cells[order])
    return ranks


def _thresholds(params: Params) -> FloatArray:
    """IoU thresholds [T], as COCOeval lowers them so that 1.0 can be reached."""
    return np.minimum(params.iou_thresholds, 1 - 1e-10)


def _ordinals(groups: IntArray) -> IntArray:
    """0, 1, 2, ... within each run of equal values, int64 [N]."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    lengths = np.diff(starts, append=len(groups))
    return np.arange(len(groups)) - np.repeat(starts, lengths)


def _unsure(ground_truth: GroundTruth, detections: DetectionColumns) -> BoolArray:
    """Whether detections are of a category that was not exhaustively annotated in the image, bool [N]; LVIS only."""
    cells = detections.image * len(ground_truth.categories) + detections.category
    return np.isin(cells, cells_of(ground_truth, "not_exhaustive_category_ids"))


def _outside(areas: FloatArray, limits: FloatArray) -> BoolArray:
    """Whether areas [N] lie outside ranges [A, 2], whose ends both belong to them; bool [N, A]."""
    outside: BoolArray = (areas[:, None] < limits[:, 0]) | (areas[:, None] > limits[:, 1])
    return outside
