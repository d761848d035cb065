"""COCO's matching with what became of every detection, which the engine keeps to itself.

The bootstrap needs it: an evaluation of resampled images follows from the matches
of the images alone.  Equal to the engine's arrays, see the tests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from detection.analysis.instances import BoolArray, Found, IntArray, Objects, cells_of
from detection.coco.params import FloatArray, Params

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
    right: bool [C, T, A] by IoU threshold and area range: an object that counts was found.
    ignored: bool [C, T, A]: neither right nor wrong.
    ranks: int64 [N] of all detections by score among those of their category in the image, from 0.
    harmless: bool [N, A]: the detection is no error where it finds nothing: its area is outside the range, or
        LVIS does not know whether all objects of its category were annotated.
    uncounted: bool [G, A]: objects that need not be found in the range.
    """

    detection: IntArray
    right: BoolArray
    ignored: BoolArray
    ranks: IntArray
    harmless: BoolArray
    uncounted: BoolArray


def candidate_pairs(objects: Objects, found: Found, overlaps: Overlaps, params: Params) -> Pairs:
    """All pairs of one category in one image that overlap enough for the least IoU threshold.

    Detections beyond the best `max_dets` are in none.
    """
    least = _thresholds(params).min()
    detections, instances, values = [], [], []
    counted = np.flatnonzero(_ranks(found, len(objects.categories)) < params.max_dets[-1])
    for theirs, truth in by_image(objects, found, counted):
        overlap = overlaps(theirs, truth)
        near = (overlap >= least) & (found.category[theirs, None] == objects.category[truth])
        row, column = np.nonzero(near)
        detections.append(theirs[row])
        instances.append(truth[column])
        values.append(overlap[row, column])
    if not detections:
        return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return Pairs(np.concatenate(detections), np.concatenate(instances), np.concatenate(values))


def by_image(objects: Objects, found: Found, detections: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Positions of detections and of objects of each image that has both.

    An image whose pairs are many comes several times, with some of its detections and
    with all of its objects.

    Args:
        objects: the ground truth.
        found: all detections.
        detections: the positions of those that are wanted, ascending.
    """
    images = np.arange(len(objects.images) + 1)
    starts, ends = np.searchsorted(objects.image, images[:-1]), np.searchsorted(objects.image, images[1:])
    splits = np.searchsorted(found.image[detections], images)
    for image in np.flatnonzero((ends > starts) & (np.diff(splits) > 0)):
        truth = np.arange(starts[image], ends[image])
        at_once = max(1, _PAIRS // len(truth))
        for start in range(splits[image], splits[image + 1], at_once):
            yield detections[start : min(start + at_once, splits[image + 1])], truth


def match(objects: Objects, found: Found, areas: FloatArray, pairs: Pairs, params: Params) -> Matches:
    """Matches greedily by score, as COCOeval's `evaluateImg`.

    Args:
        objects: the ground truth.
        found: the detections.
        areas: float64 [N], square pixels, of the detections.
        pairs: `candidate_pairs`.
        params: of the evaluation.
    """
    limits = np.array(list(params.area_ranges.values()))
    uncounted = objects.ignored[:, None] | _outside(objects.areas, limits)
    ranks = _ranks(found, len(objects.categories))
    detections, first, sizes = np.unique(pairs.detection, return_index=True, return_counts=True)
    thresholds = _thresholds(params)
    shape = (len(detections), len(thresholds), len(limits))
    matched, ignored = np.zeros(shape, bool), np.zeros(shape, bool)
    taken = np.zeros((len(objects.image), *shape[1:]), bool)
    for turn in _turns(found, ranks, detections, sizes, len(objects.categories)):
        places = first[turn, None] + np.arange(sizes[turn].max())
        present = places < (first + sizes)[turn, None]
        places = np.where(present, places, 0)
        instances = pairs.instance[places]  # [D, P]
        overlap = np.where(present, pairs.overlap[places], -1.0)
        free = ~taken[instances] | objects.crowd[instances][:, :, None, None]  # [D, P, T, A]
        fits = free & (overlap[:, :, None] >= thresholds)[..., None]
        choice, hit = _choose(fits, uncounted[instances][:, :, None, :], overlap)
        chosen = np.take_along_axis(instances, choice.reshape(len(turn), -1), axis=1).reshape(choice.shape)
        row, threshold, area = np.nonzero(hit)
        taken[chosen[row, threshold, area], threshold, area] = True
        matched[turn] = hit
        ignored[turn] = hit & uncounted[chosen, np.arange(len(limits))]
    harmless = _outside(areas, limits) | _unsure(objects, found)[:, None]
    return Matches(
        detection=detections,
        right=matched & ~ignored,
        ignored=ignored | (~matched & harmless[detections][:, None]),
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


def _turns(found: Found, ranks: IntArray, detections: IntArray, sizes: IntArray, categories: int) -> Iterator[IntArray]:
    """Positions in `detections`: those first in their category and image, those second, ..., some at a time.

    Args:
        found: all detections.
        ranks: of all detections.
        detections: the positions of those that overlap objects.
        sizes: how many objects each of them overlaps.
        categories: how many there are.
    """
    if not len(detections):
        return
    cells = found.image[detections] * categories + found.category[detections]
    order = np.lexsort((ranks[detections], cells))
    ordinal = _ordinals(cells[order])
    by_ordinal = np.argsort(ordinal, kind="stable")
    for turn in np.split(order[by_ordinal], np.cumsum(np.bincount(ordinal))[:-1]):
        at_once = max(1, _PAIRS // int(sizes[turn].max()))
        yield from (turn[start : start + at_once] for start in range(0, len(turn), at_once))


def _ranks(found: Found, categories: int) -> IntArray:
    cells = found.image * categories + found.category
    order = np.lexsort((-found.scores, cells))  # stable: equal scores stay as they came
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


def _unsure(objects: Objects, found: Found) -> BoolArray:
    """Whether detections are of a category that was not exhaustively annotated in the image, bool [N]; LVIS only."""
    cells = found.image * len(objects.categories) + found.category
    return np.isin(cells, cells_of(objects, "not_exhaustive_category_ids"))


def _outside(areas: FloatArray, limits: FloatArray) -> BoolArray:
    """Whether areas [N] lie outside ranges [A, 2], whose ends both belong to them; bool [N, A]."""
    outside: BoolArray = (areas[:, None] < limits[:, 0]) | (areas[:, None] > limits[:, 1])
    return outside
