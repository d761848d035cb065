"""Precision, recall and F1 over the score threshold, and the counts that the page's slider moves."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detection.analysis.analysis_file import Analysis
from detection.coco.metrics import UNDEFINED, FloatArray
from detection.reports.evaluation.charts import Curve, polyline
from detection.reports.evaluation.metric_tables import is_defined, metric_cell, ordered_categories
from detection.reports.html.table import Cell, Table, cell_text, shown_name

_RATIOS, _COUNTS = ("precision", "recall", "F1"), ("TP", "FP", "FN")


class Thresholds(NamedTuple):
    """The section on score thresholds, complete without scripts.

    curves: precision, recall and F1 of all categories over the threshold.
    step: the threshold with the highest F1, in hundredths.
    totals: name -> text of each metric of all categories at this threshold.
    table: these metrics per category.
    counts: for thresholds.js, by row of the table: `instances` [K]; `tp` and `fp` [K][101] by bin of scores.
    """

    curves: Sequence[Curve]
    step: int
    totals: dict[str, str]
    table: Table
    counts: dict[str, Any]


def thresholds(analysis: Analysis) -> Thresholds | None:
    """Returns the section on score thresholds; None without a true positive, or if scores are not probabilities."""
    rows = ordered_categories(analysis)
    instances = np.array([row.ground_truth for row in rows])
    tp_by_score, fp_by_score = [row.tp_by_score for row in rows], [row.fp_by_score for row in rows]
    if not any(map(any, tp_by_score)):
        return None
    # Detections at or above each threshold, [K, 101].
    tp, fp = (np.cumsum(np.array(bins)[:, ::-1], axis=1)[:, ::-1] for bins in (tp_by_score, fp_by_score))
    ratios = _ratios(tp.sum(axis=0), fp.sum(axis=0), instances.sum())
    step = int(np.argmax(ratios[2]))
    by_row = [_cells(*counts) for counts in zip(tp[:, step], fp[:, step], instances, strict=True)]
    total = _cells(tp[:, step].sum(), fp[:, step].sum(), instances.sum())
    return Thresholds(
        curves=[_curve(name, values) for name, values in zip(_RATIOS, ratios, strict=True)],
        step=step,
        totals=dict(zip((*_RATIOS, *_COUNTS), map(cell_text, total), strict=True)),
        table=Table(
            "",
            ("category", "ground truth", *_RATIOS, *_COUNTS),
            [[shown_name(row.name), row.ground_truth, *cells] for row, cells in zip(rows, by_row, strict=True)],
        ),
        counts={"instances": instances.tolist(), "tp": tp_by_score, "fp": fp_by_score},
    )


def _ratios(tp: npt.NDArray[Any], fp: npt.NDArray[Any], instances: Any) -> FloatArray:
    """Returns precision, recall and F1, [3, ...]; -1 where undefined."""
    whole = np.stack(np.broadcast_arrays(tp + fp, instances, (tp + fp + instances) / 2))
    return np.divide(tp, whole, out=np.full(whole.shape, UNDEFINED), where=whole > 0)


def _cells(tp: Any, fp: Any, instances: Any) -> list[Cell]:
    ratios = [metric_cell(float(value)) for value in _ratios(tp, fp, instances)]
    return [*ratios, int(tp), int(fp), int(instances - tp)]


def _curve(name: str, values: FloatArray) -> Curve:
    at = [step for step, value in enumerate(values) if is_defined(value)]
    return Curve(name, polyline([step / (len(values) - 1) for step in at], values[at].tolist()))
