"""Comparison of two evaluations from their folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from detection.analysis.analysis_file import Analysis, read_analysis
from detection.analysis.comparison import CategoryChange, Comparison, ErrorChange, changes, compare_detections
from detection.coco.evaluation import read_detections
from detection.coco.params import make_params
from detection.coco.summary import MetricsFile, read_metrics
from detection.storage.files import is_file
from detection.storage.paths import join
from schemas.artifacts import ANALYSIS_JSON, DETECTIONS_JSON, METRICS_JSON
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import DataError
from schemas.metrics import IouType


class _Evaluation(NamedTuple):
    """The content of an evaluation's folder for one IoU type; `analysis` is None without its file."""

    folder: str | Path
    metrics: MetricsFile
    analysis: Analysis | None

    def categories(self) -> dict[int, tuple[str, int | None, dict[str, float]]]:
        """Returns category id -> name, number of objects, metrics."""
        if self.analysis:
            return {one.id: (one.name, one.ground_truth, one.metrics) for one in self.analysis.categories}
        return {
            entry.id: (entry.name, None, {"AP": entry.AP, "AP50": entry.AP50}) for entry in self.metrics.per_category
        }


def compare_evaluations(
    a: str | Path,
    b: str | Path,
    *,
    ground_truth: Mapping[str, Any] | None = None,
    options: AnalysisConfig | None = None,
) -> list[Comparison]:
    """Compares two evaluations of the same images, for each IoU type of both.

    Args:
        a: folder with `metrics.json`, and if possible `analysis.json` and `detections.json`.
        b: folder of the other evaluation.
        ground_truth: COCO tree of both evaluations, to compare the detections image by image;
            None: compare only the metrics.
        options: options of the analysis.

    Raises:
        ConfigError: COCO's IoU thresholds do not include that of `options`.
        DataError: a file is missing or invalid, or the evaluations have no common IoU type.
    """
    options = options or AnalysisConfig()
    first, second = _read(a), _read(b)
    common = [iou_type for iou_type in first if iou_type in second]
    if not common:
        raise DataError(f"{a} evaluated {', '.join(first)}, {b} {', '.join(second)}. Compare the same IoU type.")
    if ground_truth is None:
        return [_compare_metrics(first[iou_type], second[iou_type], options) for iou_type in common]
    return [
        compare_detections(
            ground_truth,
            _read_detections(a, iou_type),
            _read_detections(b, iou_type),
            params=make_params(iou_type),
            names=(str(a), str(b)),
            options=options,
        )
        for iou_type in common
    ]


def _read(folder: str | Path) -> dict[IouType, _Evaluation]:
    path = join(folder, ANALYSIS_JSON)
    analyses = read_analysis(path).of_all_types if is_file(path) else []
    by_type = {analysis.iou_type: analysis for analysis in analyses}
    metrics = read_metrics(join(folder, METRICS_JSON)).of_all_types
    return {one.iou_type: _Evaluation(folder, one, by_type.get(one.iou_type)) for one in metrics}


def _read_detections(folder: str | Path, iou_type: str) -> Any:
    path = join(folder, DETECTIONS_JSON)
    detections = read_detections(path, iou_type)
    if not isinstance(detections, list | np.ndarray):
        raise DataError(f"{path}: not COCO results: a {type(detections).__name__}, not a list. Evaluate again.")
    return detections


def _compare_metrics(a: _Evaluation, b: _Evaluation, options: AnalysisConfig) -> Comparison:
    remarks = [
        "Intervals and images are missing: they require the ground truth, to evaluate both models on the same "
        "resampled images. Pass it, too."
    ]
    errors = zip(a.analysis.errors, b.analysis.errors, strict=True) if a.analysis and b.analysis else ()
    return Comparison(
        iou_type=a.metrics.iou_type,
        a=str(a.folder),
        b=str(b.folder),
        sample=None,
        remarks=remarks + _differing_ground_truth(a, b),
        confidence=options.confidence,
        replicates=0,
        iou=options.iou,
        score=options.score,
        metrics=changes(a.metrics.metrics, b.metrics.metrics),
        categories=_category_changes(a, b),
        errors=[ErrorChange(*both) for both in errors],
        better=[],
        worse=[],
    )


def _category_changes(a: _Evaluation, b: _Evaluation) -> list[CategoryChange]:
    first, second = a.categories(), b.categories()
    nothing: tuple[str, int | None, dict[str, float]] = ("", None, {})
    rows = []
    for category_id in sorted(first.keys() | second.keys()):
        name, ground_truth, metrics = first.get(category_id, nothing)
        other_name, other_objects, other_metrics = second.get(category_id, nothing)
        count = ground_truth if category_id in first else other_objects
        rows.append(CategoryChange(category_id, name or other_name, count, changes(metrics, other_metrics)))
    return rows


def _differing_ground_truth(a: _Evaluation, b: _Evaluation) -> list[str]:
    """Returns a sentence if the evaluations have different ground truths."""
    first, second = a.categories(), b.categories()
    if first.keys() != second.keys():
        ids = ", ".join(map(str, sorted(first.keys() ^ second.keys())[:5]))
        return [f"The ground truths differ: category {ids} is in only one of them."]
    if not (a.analysis and b.analysis) or a.analysis.sample != b.analysis.sample:
        return []
    for category_id, (name, count, _) in first.items():
        others = second[category_id][1]
        if count != others:
            return [f"The ground truths differ: {name} has {count} instances in {a.folder}, {others} in {b.folder}."]
    return []
