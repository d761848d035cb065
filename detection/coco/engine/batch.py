"""Evaluates images in one batch, and provides the results that an analysis needs beyond the metrics.

An evaluator of streamed images returns zeros for these results, because it has dropped the
detections.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hotcoco
import numpy as np
import numpy.typing as npt

from detection.coco.engine.geometry import Geometry
from detection.coco.engine.streaming import (
    Arrays,
    accumulated,
    engine_parameters,
    groups_of,
    pairs_by_image,
    require_pairs,
)
from detection.coco.params import IntArray, Params, chosen, counted_detections
from detection.datasets.annotations.entries import Entry, Rows
from detection.datasets.annotations.entry_rules import column
from schemas.errors import DataError

TP, FP, IGNORED = 1, 0, -1  # status of a detection; IGNORED: by COCOeval, or below the best `max_dets`
MATCHED, FN = 1, 0  # status of an annotation; IGNORED: a crowd, or without keypoints


@dataclass(frozen=True)
class TideErrors:
    """Counts of TIDE's error types, and the AP gained by fixing each type alone, by type name."""

    counts: dict[str, int]
    gains: dict[str, float]


@dataclass(frozen=True)
class CalibrationBins:
    """Scores compared with precision, bin by bin.

    expected_error: mean over the bins, weighted by count (ECE).
    max_error: max over the bins (MCE).
    bins: low, high, mean score, precision, count.
    by_category: category id -> expected error.
    """

    expected_error: float
    max_error: float
    bins: list[tuple[float, float, float, float, int]]
    by_category: dict[int, float]


@dataclass(frozen=True)
class LabelErrorCandidate:
    """A detection that disagrees with the ground truth: positions of both; None: no annotation overlaps it."""

    detection: int
    annotation: int | None


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """TP, FP and FN at one IoU threshold.

    detections: int8 [N], `TP`, `FP` or `IGNORED`, by position.
    annotations: int8 [G], `MATCHED`, `FN` or `IGNORED`, by position.
    matches: int64 [G], position of the detection matched with each annotation; -1: none.
    label_error_candidates: likely errors of the ground truth, by descending score, then by position.
    """

    detections: npt.NDArray[np.int8]
    annotations: npt.NDArray[np.int8]
    matches: IntArray
    label_error_candidates: list[LabelErrorCandidate]


class BatchEvaluation:
    """One matching of a set of images; detections and annotations are referenced by their position in the input."""

    def __init__(
        self,
        images: Sequence[Entry],
        annotations: Sequence[Entry],
        categories: Sequence[Entry],
        detections: Sequence[Entry] | Rows,
        params: Params,
    ) -> None:
        """Matches detections; the arguments are those of `MatchingEngine`, validated, with `use_cats`.

        Raises:
            DataError: the engine refuses a value; an image has too many pairs of a detection and
                an annotation.
        """
        self._annotations = annotations
        self._detections = detections
        self._params = params
        counted = counted_detections(detections, params)
        self._positions = np.arange(len(detections)) if counted is None else counted
        if counted is not None:
            detections = chosen(detections, counted)
        image_ids = column(images, "id")
        require_pairs(
            image_ids, pairs_by_image(image_ids, annotations, detections, by_category=False), where="detections"
        )
        self._annotation_ids = column(annotations, "id")
        # Ids as names, because the engine merges categories of the same name in some results.
        names = [{"id": category["id"], "name": str(category["id"])} for category in categories]
        self._ground_truth = hotcoco.COCO(
            {"images": list(images), "annotations": list(annotations), "categories": names}
        )
        results: Any = detections if isinstance(detections, np.ndarray) else list(detections)
        try:
            # Ids 1, 2, ... in the given order.
            self._loaded = self._ground_truth.load_res(results if len(results) else np.zeros((0, 7)))
            # One per group of categories with the same sigmas.
            self._evaluations = []
            for group in groups_of((category["id"] for category in categories), params):
                evaluation = hotcoco.COCOeval(self._ground_truth, self._loaded, params.iou_type, params.lvis)
                evaluation.params = engine_parameters(params, group)
                evaluation.evaluate()
                self._evaluations.append(evaluation)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"detections: cannot be evaluated: {error}. Correct them.") from error

    def arrays(self) -> Arrays:
        """Accumulates precision and recall as COCOeval's `accumulate` does."""
        return accumulated(self._evaluations, self._params)

    def geometry(self) -> Geometry:
        """Returns shapes and overlaps of the detections and annotations."""
        every: Any = self._detections if isinstance(self._detections, np.ndarray) else list(self._detections)
        complete = len(self._positions) == len(every)
        return Geometry(
            self._ground_truth,
            self._loaded if complete else self._ground_truth.load_res(every),
            annotations=self._annotations,
            detections=self._detections,
            iou_type=self._params.iou_type,
            sigmas_of=self._params.sigmas_of,
        )

    def tide_errors(self, *, match_iou: float, background_iou: float) -> TideErrors:
        """Counts the error types of Bolya et al., ECCV 2020, with the AP gained by fixing them.

        Between categories with different sigmas, nothing is confused.
        """
        errors = [one.tide_errors(pos_thr=match_iou, bg_thr=background_iou) for one in self._evaluations]
        if len(errors) == 1:
            return TideErrors(dict(errors[0]["counts"]), dict(errors[0]["delta_ap"]))
        present = {one["category_id"] for one in self._annotations if not one["iscrowd"] and one["num_keypoints"]}
        # AP is a mean over the categories with ground truth.
        shares = [len(present.intersection(one.params.cat_ids)) / max(len(present), 1) for one in self._evaluations]
        gains = {
            name: sum(share * one["delta_ap"][name] for share, one in zip(shares, errors, strict=True))
            for name in errors[0]["delta_ap"]
        }
        return TideErrors({name: sum(one["counts"][name] for one in errors) for name in errors[0]["counts"]}, gains)

    def confusion(self, *, iou: float, score: float) -> IntArray:
        """Counts [K + 1, K + 1] by category of ground truth (rows) and detections, ascending ids and then none."""
        [evaluation] = self._evaluations  # boxes or masks: one IoU type
        return np.asarray(evaluation.confusion_matrix(iou_thr=iou, min_score=score)["matrix"]).astype(np.int64)

    def calibration(self, *, iou: float, bins: int) -> CalibrationBins:
        """Computes the calibration of the scores, in [0, 1], at one of the IoU thresholds."""
        measured = [one.calibration(n_bins=bins, iou_threshold=iou) for one in self._evaluations]
        keys = ("bin_lower", "bin_upper", "avg_confidence", "avg_accuracy", "count")
        parts = np.array([[[entry[key] for key in keys] for entry in one["bins"]] for one in measured])
        counts = parts[:, :, 4].sum(axis=0)
        means = (parts[:, :, 2:4] * parts[:, :, 4:]).sum(axis=0) / np.maximum(counts, 1)[:, None]
        errors = np.abs(means[:, 0] - means[:, 1])
        return CalibrationBins(
            expected_error=float((errors * counts).sum() / max(counts.sum(), 1)),
            max_error=float(errors.max()),
            bins=[
                (low, high, score, precision, int(count))
                for (low, high), (score, precision), count in zip(
                    parts[0, :, :2].tolist(), means.tolist(), counts, strict=True
                )
            ],
            by_category={int(name): error for one in measured for name, error in one["per_category"].items()},
        )

    def diagnose(self, *, iou: float, score: float) -> Diagnosis:
        """Finds TP, FP, FN and label-error candidates.

        Args:
            iou: one of the IoU thresholds.
            score: minimum score of label-error candidates.
        """
        parts = [one.image_diagnostics(iou_thr=iou, score_thr=score) for one in self._evaluations]
        diagnostics: dict[str, Any] = {
            key: dict(ChainMap(*(one[key] for one in parts))) for key in ("dt_status", "gt_status", "gt_match")
        }
        annotation_ids = self._annotation_ids
        order = np.argsort(annotation_ids, kind="stable")

        def positions(ids: IntArray) -> IntArray:
            return order[np.searchsorted(annotation_ids, ids, sorter=order)]

        matches = np.full(len(annotation_ids), -1)
        pairs = np.array(list(diagnostics["gt_match"].items()), np.int64).reshape(-1, 2)
        matches[positions(pairs[:, 0])] = self._positions[pairs[:, 1] - 1]
        label_error_candidates = [
            LabelErrorCandidate(
                int(self._positions[error["dt_id"] - 1]),
                None if error["gt_id"] is None else int(positions(error["gt_id"])),
            )
            for one in parts
            for error in one["label_errors"]
        ]
        if len(parts) > 1:
            scores = column(self._detections, "score")
            label_error_candidates.sort(key=lambda one: (-scores[one.detection], one.detection))
        return Diagnosis(
            detections=_statuses(
                diagnostics["dt_status"], "tp", lambda ids: self._positions[ids - 1], len(self._detections)
            ),
            annotations=_statuses(diagnostics["gt_status"], "matched", positions, len(annotation_ids)),
            matches=matches,
            label_error_candidates=label_error_candidates,
        )


def _statuses(
    statuses_by_id: Mapping[int, str], good: str, positions: Callable[[IntArray], IntArray], count: int
) -> npt.NDArray[np.int8]:
    """Returns 1 for ids with status `good`, 0 for other statuses, `IGNORED` for ids without status; by position."""
    statuses = np.full(count, IGNORED, np.int8)
    ids = np.fromiter(statuses_by_id, np.int64, len(statuses_by_id))
    statuses[positions(ids)] = np.fromiter((status == good for status in statuses_by_id.values()), np.int8, len(ids))
    return statuses
