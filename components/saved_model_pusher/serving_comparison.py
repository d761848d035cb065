"""Compares the detections of a served model with those of the evaluator's model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from detection.datasets.masks import decode_counts
from schemas.serving import BOXES, CLASSES, COUNT, ENCODED_SIGNATURE, MASKS, SCORES, VALID

_TYPES = {BOXES: ("float32", 3), SCORES: ("float32", 2), CLASSES: ("int64", 2), COUNT: ("int32", 1)}

_EDGE_FRACTION = 0.05  # max fraction of a full list that may differ: detections tied with the last one
_ROUNDING = 1e-6  # tolerance of scores
_MASK_FRACTION, _MASK_PIXELS = 0.02, 4  # pixels that may differ, of the union of two masks, and at least

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]  # by the names of the outputs


class DifferenceError(Exception):
    """The model does not serve what was evaluated; the message says why."""


class Comparison:
    """Differences between the evaluator's detections and the served ones.

    Args:
        tolerance: max difference of scores, of box corners, which are fractions of the image's
            sides, of keypoints and of mask probabilities.

    Attributes:
        images: number of images compared so far.
        detections: number of detections that have a counterpart.
        unmatched: number of detections without a counterpart.
        max_difference: largest difference by output.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self.images = self.detections = self.unmatched = 0
        self.max_difference: dict[str, float] = {}

    def add(self, evaluated: Outputs, served: Outputs, where: str) -> None:
        """Compares the detections of one image, in any order.

        Args:
            evaluated: rows of the evaluator's model by output.
            served: outputs of the served model, with a batch dimension of 1.
            where: the image, for messages.

        Raises:
            DifferenceError: the outputs are not detections, or a detection has no counterpart of its class within
                the tolerance.
        """
        count, slots = _check_outputs(served, where)
        if missing := sorted(set(evaluated) - set(served)):
            raise DifferenceError(f"{where}: the evaluator's model also gave {', '.join(missing)}")
        served = {name: served[name][0][:count] for name in evaluated}
        distance = _distances(evaluated, served)
        near = (distance <= self._tolerance) & (evaluated[CLASSES][:, None] == served[CLASSES][None, :])
        rows, columns = match(near, distance)
        noise = float(np.abs(evaluated[SCORES][rows] - served[SCORES][columns]).max(initial=0.0))
        unmatched = np.delete(np.arange(len(near)), rows), np.delete(np.arange(near.shape[1]), columns)
        rounding = 2 * noise + _ROUNDING
        self._require_ties(evaluated, served, unmatched[0], slots=slots, rounding=rounding, where=where)
        self._require_ties(served, evaluated, unmatched[1], slots=slots, rounding=rounding, where=f"{where}, served")
        for name in evaluated:
            if name != CLASSES:
                self._compare(name, evaluated[name][rows], served[name][columns], where)
        self.images += 1
        self.detections += len(rows)

    def _require_ties(
        self, own: Outputs, other: Outputs, unmatched: Array, *, slots: int, rounding: float, where: str
    ) -> None:
        """Requires that unmatched rows are ties at the cut-off score of a full list.

        A model returns only its best detections.  If the score of the last one is tied with others up to rounding,
        any of them may be missing.
        """
        if not len(unmatched):
            return
        scores = own[SCORES]
        full = len(other[SCORES]) == slots
        lowest = float(other[SCORES].min()) + rounding if full and slots else -1.0
        best = unmatched[np.argmax(scores[unmatched])]
        if scores[best] > lowest or len(unmatched) > max(1, _EDGE_FRACTION * slots):
            raise DifferenceError(
                f"{where}: {len(unmatched)} of {len(scores)} detections have no counterpart within "
                f"{self._tolerance:g} among the {len(other[SCORES])} of the other model, such as one of class "
                f"{int(own[CLASSES][best])} with score {float(scores[best]):.6f} at "
                f"{[round(float(side), 4) for side in own[BOXES][best]]}"
            )
        self.unmatched += len(unmatched)

    def _compare(self, name: str, evaluated: Array, served: Array, where: str) -> None:
        """Compares the matched rows of an output."""
        if evaluated.dtype.kind == "f":
            if evaluated.shape != served.shape:
                raise DifferenceError(
                    f"{where}: {name} is {list(served.shape)}, the evaluator's {list(evaluated.shape)}"
                )
            difference = float(np.abs(evaluated.astype(np.float64) - served).max(initial=0.0))
            allowed = self._tolerance
        else:
            both = zip(evaluated, served, strict=True)
            difference = max((_mask_difference(one, other, where) for one, other in both), default=0.0)
            allowed = _MASK_FRACTION
        if difference > allowed:
            raise DifferenceError(
                f"{where}: {name} differs from the evaluator's by {difference:g}, more than {allowed:g}"
            )
        self.max_difference[name] = max(self.max_difference.get(name, 0.0), difference)


def _check_outputs(served: Outputs, where: str) -> tuple[int, int]:
    """Requires detections of the documented types, without NaN.

    Returns:
        The number of detections, and the model's max number.
    """
    if lacking := sorted(set(_TYPES) - set(served)):
        raise DifferenceError(f"its signature {ENCODED_SIGNATURE} lacks the output {', '.join(lacking)}")
    for name, (dtype, rank) in _TYPES.items():
        value = served[name]
        if value.dtype != dtype or value.ndim != rank:
            raise DifferenceError(
                f"{where}: {name} is {value.dtype} {list(value.shape)}, not {dtype} of rank {rank} for one image"
            )
    slots = int(served[BOXES].shape[1])
    shapes = {name: list(served[name].shape[1:]) for name in (BOXES, SCORES, CLASSES)}
    if shapes != {BOXES: [slots, 4], SCORES: [slots], CLASSES: [slots]}:
        raise DifferenceError(f"{where}: the shapes of its outputs do not fit each other: {shapes}")
    count = int(served[COUNT][0])
    if not 0 <= count <= slots:
        raise DifferenceError(f"{where}: {COUNT} is {count}, of at most {slots} detections")
    if VALID in served and not served[VALID][0]:
        raise DifferenceError(f"{where}: it cannot decode the image, which the evaluator's model did")
    for name, value in served.items():
        if value.dtype.kind == "f" and value.ndim > 1 and not np.isfinite(value[0][:count]).all():
            raise DifferenceError(f"{where}: {name} has NaN or infinity")
    return count, slots


def _distances(evaluated: Outputs, served: Outputs) -> npt.NDArray[np.float64]:
    """Returns the largest difference of score and corners of each pair, float64 [E, S]."""
    scores = np.abs(evaluated[SCORES][:, None].astype(np.float64) - served[SCORES][None, :])
    corners = np.abs(evaluated[BOXES][:, None].astype(np.float64) - served[BOXES][None, :])
    return np.maximum(scores, corners.max(axis=2, initial=0.0))


def match(near: npt.NDArray[np.bool_], distance: Array) -> tuple[Array, Array]:
    """Pairs as many rows as possible with columns, each at most once, and the nearest ones among such pairings.

    Args:
        near: bool [E, S], allowed pairs.
        distance: float [E, S].

    Returns:
        Rows and columns of the pairs, int64 [P] each, by ascending row.
    """
    # One more pair outweighs all distances.
    excluded = 1.0 + min(near.shape) * distance.max(initial=0.0, where=near)
    rows, columns = linear_sum_assignment(np.where(near, distance, excluded))
    allowed = near[rows, columns]
    return rows[allowed], columns[allowed]


def _mask_difference(one: Array | bytes, other: Array | bytes, where: str) -> float:
    """Returns the fraction of the union of two masks in which they differ; 0 for a few pixels.

    Args:
        one: uint8 [H, W], or a compressed RLE.
        other: the same.
        where: the image, for messages.
    """
    first, second = (_pixels(mask, where) for mask in (one, other))
    if first.shape != second.shape:
        raise DifferenceError(f"{where}: {MASKS} are {list(second.shape)}, the evaluator's {list(first.shape)}")
    different = int((first != second).sum())
    return different / int((first | second).sum()) if different > _MASK_PIXELS else 0.0


def _pixels(mask: Array | bytes, where: str) -> npt.NDArray[np.bool_]:
    """Returns the pixels of a mask: [H, W], or of an RLE [H * W], column by column."""
    if not isinstance(mask, bytes):
        return mask.astype(bool)
    try:
        counts = decode_counts(mask.decode("latin-1"))
        return np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    except ValueError as error:
        raise DifferenceError(f"{where}: {MASKS} has an invalid RLE: {error}") from None
