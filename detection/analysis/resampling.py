"""COCO's figures of images drawn again and again, with replacement.

An image drawn twice counts twice, as if there were two of it: with integer weights in
the sums behind precision and recall this is exact, but for the order of detections of
equal score in one image.  The engine's own `compare` leaves repeated images out, so its
intervals are about a quarter too narrow.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.analysis.instances import Found, IntArray, Objects
from detection.analysis.matching import Matches
from detection.coco.metrics import MetricDefinition, metric_definitions_of
from detection.coco.params import RECALLS, FloatArray, Params

Weights = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.integer[Any]]

_BLOCK = 2_000_000  # elements of an array that lives while a category is summed up


@dataclass(frozen=True, eq=False)
class Resampled:
    """Figures of each replicate, NaN where undefined.

    figures: name -> float64 [B].
    categories: float64 [K, B], AP of each category.
    """

    figures: dict[str, FloatArray]
    categories: FloatArray


def draw_images(count: int, replicates: int, seed: int) -> Weights:
    """How often each of `count` images is drawn in each replicate of as many draws, uint8 [B, count]."""
    generator = np.random.default_rng(seed)
    draws = np.empty((replicates, count), np.uint8)
    for replicate in range(replicates):
        draws[replicate] = np.bincount(generator.integers(0, count, count), minlength=count)
    return draws


def resample(objects: Objects, found: Found, matches: Matches, weights: Weights, params: Params) -> Resampled:
    """Figures under weights of the images.

    Args:
        objects: the ground truth.
        found: the detections.
        matches: what became of them.
        weights: [B, I], how often each image counts.
        params: of the evaluation.
    """
    sums = _Sums(objects, found, matches, params)
    sizes = (len(params.iou_thresholds), len(objects.categories), len(params.area_ranges))
    precision = np.full((len(weights), *sizes), np.nan)
    recall = np.full((len(weights), *sizes, len(params.max_dets)), np.nan)
    for category in range(len(objects.categories)):
        for block in sums.blocks(category, len(weights)):
            precision[block, :, category], recall[block, :, category] = sums.of_category(category, weights[block])
    frequencies = np.array([category.get("frequency", "") for category in objects.categories])
    figures = {
        figure.name: _figure(figure, precision, recall, params, frequencies) for figure in metric_definitions_of(params)
    }
    everywhere = list(params.area_ranges).index("all")
    return Resampled(figures, precision[..., everywhere].mean(axis=1).T)


class _Sums:
    """The detections of each category by falling score, and the sums over them."""

    def __init__(self, objects: Objects, found: Found, matches: Matches, params: Params) -> None:
        self._objects = objects
        self._found = found
        self._matches = matches
        self._params = params
        self._recalls = np.linspace(0.0, 1.0, RECALLS)
        counted = np.flatnonzero(matches.ranks < params.max_dets[-1])
        # Equal scores: images by ascending id, as COCOeval lines them up, and in an image by rank.
        keys = (matches.ranks[counted], found.image[counted], -found.scores[counted], found.category[counted])
        self._order = counted[np.lexsort(keys)]
        self._ends = np.searchsorted(found.category[self._order], np.arange(len(objects.categories) + 1))
        self._candidate = np.full(len(found.image), -1)
        self._candidate[matches.detection] = np.arange(len(matches.detection))

    def blocks(self, category: int, replicates: int) -> Iterator[slice]:
        """Replicates that are summed up at once."""
        size = max(1, _BLOCK // max(1, self._ends[category + 1] - self._ends[category]))
        return (slice(start, start + size) for start in range(0, replicates, size))

    def of_category(self, category: int, weights: Weights) -> tuple[FloatArray, FloatArray]:
        """AP [B, T, A] and recall [B, T, A, M] of one category; NaN without objects."""
        detections = self._order[self._ends[category] : self._ends[category + 1]]
        candidates = self._candidate[detections]
        near = candidates >= 0
        far, close = detections[~near], detections[near]
        far_above = np.cumsum(~near)[near]  # how many of the far ones are above each of the close ones
        right, ignored = self._matches.right[candidates[near]], self._matches.ignored[candidates[near]]
        far_weights, close_weights = weights[:, self._found.image[far]], weights[:, self._found.image[close]]
        _, thresholds, areas = right.shape
        precision = np.full((len(weights), thresholds, areas), np.nan)
        recall = np.full((len(weights), thresholds, areas, len(self._params.max_dets)), np.nan)
        for area in range(areas):
            wanted = (self._objects.category == category) & ~self._matches.uncounted[:, area]
            if not wanted.any():
                continue
            total = weights[:, self._objects.image[wanted]].sum(axis=1)
            wrong = _running(far_weights * ~self._matches.harmless[far, area])
            for threshold in range(thresholds):
                hits = np.flatnonzero(right[:, threshold, area])
                counted = np.flatnonzero(~ignored[:, threshold, area])
                among = _running(close_weights[:, counted])
                above = wrong[:, far_above[hits]] + among[:, np.searchsorted(counted, hits, side="right")]
                precision[:, threshold, area] = self._average_precision(close_weights[:, hits], above, total)
                ranks = self._matches.ranks[close[hits]]
                recall[:, threshold, area] = self._recall(close_weights[:, hits], ranks, total)
        return precision, recall

    def _average_precision(self, weights: Weights, above: Sums, total: Sums) -> FloatArray:
        """COCO's AP, the mean of the precision at 101 recalls, [B].

        Args:
            weights: [B, H] of the right detections by falling score.
            above: [B, H], weight of all detections that count, down to each of these.
            total: [B], weight of the objects.
        """
        hits = np.cumsum(weights, axis=1, dtype=np.int32)
        reached = np.searchsorted(self._recalls, hits / np.maximum(total, 1)[:, None], side="right")
        precision = hits / np.maximum(above, 1)
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        mean = (best * np.diff(reached, axis=1, prepend=0)).sum(axis=1) / RECALLS
        return np.where(total > 0, mean, np.nan)

    def _recall(self, weights: Weights, ranks: IntArray, total: Sums) -> FloatArray:
        """Recall [B, M] with each number of best detections an image; arguments as above."""
        hits = np.stack([weights[:, ranks < most].sum(axis=1) for most in self._params.max_dets], axis=1)
        return np.where(total > 0, hits.T / np.maximum(total, 1), np.nan).T


def _running(weights: Weights) -> Sums:
    """Sums of the first 0, 1, 2, ... columns, int32 [B, N + 1]."""
    sums = np.zeros((weights.shape[0], weights.shape[1] + 1), np.int32)
    np.cumsum(weights, axis=1, dtype=np.int32, out=sums[:, 1:])
    return sums


def _figure(
    figure: MetricDefinition,
    precision: FloatArray,
    recall: FloatArray,
    params: Params,
    frequencies: npt.NDArray[np.str_],
) -> FloatArray:
    """The mean over thresholds and categories [B], NaN where no category is defined.

    Args:
        figure: which one.
        precision: AP, float64 [B, T, K, A], NaN where undefined.
        recall: float64 [B, T, K, A, M], likewise.
        params: of the evaluation.
        frequencies: of the categories, [K].
    """
    if figure.area not in params.area_ranges:
        return np.full(len(precision), np.nan)
    area = list(params.area_ranges).index(figure.area)
    values = precision[..., area] if figure.array == "precision" else recall[..., area, figure.max_dets]
    if figure.iou is not None:
        values = values[:, np.isclose(params.iou_thresholds, figure.iou, rtol=0.0, atol=1e-9)]
    if figure.frequency is not None:
        values = values[:, :, frequencies == figure.frequency]
    values = values.reshape(len(values), -1)
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(defined, values, 0.0).sum(axis=1) / defined.sum(axis=1)
