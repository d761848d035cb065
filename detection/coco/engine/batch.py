"""Evaluation of images whose detections are all kept, and what the engine tells beyond the metrics.

An evaluator made of streamed images answers the same questions with zeros: it has
dropped the detections.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hotcoco
import numpy as np
import numpy.typing as npt

from detection.coco.engine.bounds import pairs_by_image, require_pairs
from detection.coco.engine.geometry import Geometry, IntArray
from detection.coco.engine.parameters import engine_parameters
from detection.coco.engine.streaming import Arrays, accumulated, chosen
from detection.coco.max_dets import counted_detections
from detection.coco.params import Params
from detection.datasets.entries import Entry, Rows
from schemas.errors import DataError

RIGHT, WRONG, UNCOUNTED = 1, 0, -1  # of a detection; uncounted: ignored, or below the best `max_dets`
FOUND, MISSED = 1, 0  # of an object; UNCOUNTED: a crowd, or without keypoints


@dataclass(frozen=True)
class TideErrors:
    """Counts of TIDE's error types and the AP that mending each alone would win, by the types' names."""

    counts: dict[str, int]
    gains: dict[str, float]


@dataclass(frozen=True)
class CalibrationBins:
    """Scores against the share of right detections.

    expected_error, greatest_error: over the bins.
    bins: low, high, mean score, share right, count.
    by_category: category id -> expected error.
    """

    expected_error: float
    greatest_error: float
    bins: list[tuple[float, float, float, float, int]]
    by_category: dict[int, float]


@dataclass(frozen=True)
class Suspicion:
    """A detection that disagrees with the ground truth: its position; the object's, or None where there is none."""

    detection: int
    annotation: int | None


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What became of each detection and object at one IoU threshold.

    detections: int8 [N], `RIGHT`, `WRONG` or `UNCOUNTED`, by position.
    annotations: int8 [G], `FOUND`, `MISSED` or `UNCOUNTED`, by position.
    finders: int64 [G], the detection that found the object, -1 where none did.
    suspicions: likely faults of the ground truth, by descending score, then by position.
    """

    detections: npt.NDArray[np.int8]
    annotations: npt.NDArray[np.int8]
    finders: IntArray
    suspicions: list[Suspicion]


class BatchEvaluation:
    """Images matched once; detections and objects are named by their position in the input."""

    def __init__(
        self,
        images: Sequence[Entry],
        annotations: Sequence[Entry],
        categories: Sequence[Entry],
        detections: Sequence[Entry] | Rows,
        params: Params,
    ) -> None:
        """Matches; the arguments are those of `MatchingEngine`, checked before, with categories told apart.

        Raises:
            DataError: the engine refuses a value; an image has too many detections and
                objects to compare.
        """
        self._annotations = annotations
        self._detections = detections
        self._params = params
        counted = counted_detections(detections, params)
        self._positions = np.arange(len(detections)) if counted is None else counted
        if counted is not None:
            detections = chosen(detections, counted)
        image_ids = np.array([image["id"] for image in images], np.int64)
        require_pairs(
            image_ids, pairs_by_image(image_ids, annotations, detections, by_category=False), where="detections"
        )
        self._annotation_ids = np.array([annotation["id"] for annotation in annotations], np.int64)
        # Named by their ids, as the engine takes categories of one name for one in places.
        names = [{"id": category["id"], "name": str(category["id"])} for category in categories]
        self._truth = hotcoco.COCO({"images": list(images), "annotations": list(annotations), "categories": names})
        found: Any = detections if isinstance(detections, np.ndarray) else list(detections)
        try:
            # Ids 1, 2, ... in the order given.
            self._found = self._truth.load_res(found if len(found) else np.zeros((0, 7)))
            self._evaluation = hotcoco.COCOeval(self._truth, self._found, params.iou_type, params.lvis)
            self._evaluation.params = engine_parameters(params)
            self._evaluation.evaluate()
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"detections: cannot be evaluated: {error}. Correct them.") from error

    def arrays(self) -> Arrays:
        """What COCOeval's `accumulate` leaves."""
        return accumulated(self._evaluation, self._params)

    def geometry(self) -> Geometry:
        """Shapes and overlaps of the detections and objects."""
        parameters = self._evaluation.params
        every: Any = self._detections if isinstance(self._detections, np.ndarray) else list(self._detections)
        complete = len(self._positions) == len(every)
        return Geometry(
            self._truth,
            self._found if complete else self._truth.load_res(every),
            annotations=self._annotations,
            detections=self._detections,
            iou_type=parameters.iou_type,
            sigmas=parameters.kpt_oks_sigmas,
        )

    def tide_errors(self, *, right_iou: float, background_iou: float) -> TideErrors:
        """The error types of Bolya et al., ECCV 2020, counted and weighed."""
        errors = self._evaluation.tide_errors(pos_thr=right_iou, bg_thr=background_iou)
        return TideErrors(dict(errors["counts"]), dict(errors["delta_ap"]))

    def confusion(self, *, iou: float, score: float) -> IntArray:
        """Counts [K + 1, K + 1]: objects' categories by ascending id, then none, against detections'."""
        return np.asarray(self._evaluation.confusion_matrix(iou_thr=iou, min_score=score)["matrix"]).astype(np.int64)

    def calibration(self, *, iou: float, bins: int) -> CalibrationBins:
        """Calibration of the scores, which must lie in [0, 1], at one of the IoU thresholds."""
        found = self._evaluation.calibration(n_bins=bins, iou_threshold=iou)
        return CalibrationBins(
            expected_error=found["ece"],
            greatest_error=found["mce"],
            bins=[
                (entry["bin_lower"], entry["bin_upper"], entry["avg_confidence"], entry["avg_accuracy"], entry["count"])
                for entry in found["bins"]
            ],
            by_category={int(name): error for name, error in found["per_category"].items()},
        )

    def diagnose(self, *, iou: float, score: float) -> Diagnosis:
        """What became of each detection and object.

        Args:
            iou: one of the IoU thresholds.
            score: detections below it say nothing about the ground truth.
        """
        told = self._evaluation.image_diagnostics(iou_thr=iou, score_thr=score)
        annotation_ids = self._annotation_ids
        order = np.argsort(annotation_ids, kind="stable")

        def positions(ids: IntArray) -> IntArray:
            return order[np.searchsorted(annotation_ids, ids, sorter=order)]

        finders = np.full(len(annotation_ids), -1)
        pairs = np.array(list(told["gt_match"].items()), np.int64).reshape(-1, 2)
        finders[positions(pairs[:, 0])] = self._positions[pairs[:, 1] - 1]
        suspicions = [
            Suspicion(
                int(self._positions[error["dt_id"] - 1]),
                None if error["gt_id"] is None else int(positions(error["gt_id"])),
            )
            for error in told["label_errors"]
        ]
        return Diagnosis(
            detections=_statuses(told["dt_status"], "tp", lambda ids: self._positions[ids - 1], len(self._detections)),
            annotations=_statuses(told["gt_status"], "matched", positions, len(annotation_ids)),
            finders=finders,
            suspicions=suspicions,
        )


def _statuses(
    told: Mapping[int, str], good: str, positions: Callable[[IntArray], IntArray], count: int
) -> npt.NDArray[np.int8]:
    """1 where an id's status is `good`, 0 where it is another, `UNCOUNTED` where none is told; by position."""
    statuses = np.full(count, UNCOUNTED, np.int8)
    ids = np.fromiter(told, np.int64, len(told))
    statuses[positions(ids)] = np.fromiter((status == good for status in told.values()), np.int8, len(told))
    return statuses
