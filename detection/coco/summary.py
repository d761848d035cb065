"""Metrics as the content of a JSON file, and as a table in the terminal; the list of skipped entries."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.table import Table

from detection.coco.metrics import UNDEFINED, CocoMetrics
from detection.coco.validation.checks import InvalidEntry
from detection.storage.json_files import not_of_this_version, parse_file
from detection.storage.paths import stem, with_name
from schemas.metrics import (
    FREQUENCIES,
    KEYPOINT_MAX_DETS,
    MAX_DETS,
    METRIC_DEFINITIONS,
    IouType,
    MetricDefinition,
    is_other,
    main_metrics,
    metrics_by_iou_type,
    metrics_by_name,
    other_metric,
)

_SHOWN = 10  # max skipped entries in the terminal


def metrics_to_json(metrics: CocoMetrics, *others: CocoMetrics) -> dict[str, Any]:
    """Returns the content of a metrics file.

    `iou_type`, `stats`, `metrics` by name, `per_category`, and the number of `skipped`
    entries.

    Args:
        metrics: metrics of the first IoU type.
        *others: metrics of further IoU types; the same content for each, with its type as key.
    """
    return {
        "iou_type": metrics.iou_type,
        "stats": metrics.stats.tolist(),
        "metrics": metrics.by_name,
        "per_category": metrics.per_category,
        "skipped": len(metrics.skipped),
        **{other.iou_type: metrics_to_json(other) for other in others},
    }


def skipped_path(path: str | Path) -> str:
    """Returns the path of the list of skipped entries for the metrics file at `path`."""
    return with_name(path, f"{stem(path)}_skipped.jsonl")


def skipped_to_json_lines(skipped: Sequence[InvalidEntry]) -> str:
    """Returns the content of the list of skipped entries: a JSON object per line."""
    return "".join(f"{json.dumps(entry._asdict(), ensure_ascii=False)}\n" for entry in skipped)


def skipped_lines(skipped: Sequence[InvalidEntry]) -> list[str]:
    """Summarizes skipped entries for the terminal: counts per kind, and the first ones."""
    if not skipped:
        return []
    kinds = ", ".join(f"{count} {what}" for what, count in Counter(record.what for record in skipped).most_common())
    lines = [f"Skipped {len(skipped)} entries and evaluated the rest: {kinds}."]
    lines += [f"  {record.source}: {record.what}: {record.named}" for record in skipped[:_SHOWN]]
    rest = len(skipped) - _SHOWN
    return [*lines, f"  and {rest} more"] if rest > 0 else lines


def summary_table(metrics: CocoMetrics) -> Table:
    """Formats the metrics as a table in COCOeval's order, for `rich.console.Console.print`."""
    return metrics_table(
        metrics.by_name,
        definitions=metrics.definitions,
        iou_type=metrics.iou_type,
        iou_thresholds=metrics.iou_thresholds,
        max_dets=metrics.max_dets,
    )


def metrics_table(
    values: Mapping[str, float],
    *,
    definitions: Sequence[MetricDefinition] = METRIC_DEFINITIONS["bbox"],
    iou_type: str = "bbox",
    iou_thresholds: Sequence[float] = (0.5, 0.95),
    max_dets: Sequence[int] = (),
) -> Table:
    """Formats metrics by name, as in a metrics file, as a table.

    Args:
        values: metrics by name; -1 is shown as undefined.
        definitions: metrics to show, in order.
        iou_type: IoU type.
        iou_thresholds: IoU thresholds of the means.
        max_dets: max detections per image, ascending; (): COCO's.
    """
    max_dets = max_dets or (KEYPOINT_MAX_DETS if iou_type == "keypoints" else MAX_DETS)
    lvis = any(definition.frequency for definition in definitions)
    table = Table(title=f"{'LVIS' if lvis else 'COCO'} metrics, {iou_type}", title_justify="left")
    table.add_column("metric")
    table.add_column("IoU")
    table.add_column("area")
    if lvis:
        table.add_column("categories")
    table.add_column("max dets", justify="right")
    table.add_column("value", justify="right")
    for definition in definitions:
        value = values[definition.name]
        categories = FREQUENCIES[definition.frequency] if definition.frequency else "all"
        table.add_row(
            definition.name,
            f"{definition.iou:.2f}" if definition.iou else _span(iou_thresholds),
            definition.area,
            *([categories] if lvis else []),
            "all" if is_other(definition.name) else str(max_dets[definition.max_dets]),
            _shown(value),
        )
    return table


def metrics_tables(values: Mapping[str, float], *, iou_type: str) -> list[Table]:
    """Returns a table per IoU type, with COCO's params.

    Args:
        values: metrics by name, those of further IoU types as `segm/AP`.
        iou_type: first IoU type, whose metrics have no prefix.
    """
    nested = metrics_by_iou_type(values)
    by_type = {iou_type: nested} | {name: own for name, own in nested.items() if isinstance(own, dict)}
    return [metrics_table(own, definitions=_definitions(own, name), iou_type=name) for name, own in by_type.items()]


def _definitions(values: Mapping[str, float], iou_type: str) -> list[MetricDefinition]:
    known = [definition for definition in METRIC_DEFINITIONS[iou_type] if definition.name in values]
    return [*known, *(other_metric(name) for name in values if is_other(name))]


def slice_table(slices: Sequence[Mapping[str, Any]]) -> Table:
    """Formats the slices of a metrics file as a table.

    Args:
        slices: entries `slice`, `images` and `metrics`, by IoU type as in `metrics_by_iou_type`.
    """
    table = Table(title="Slices", title_justify="left")
    table.add_column("slice")
    table.add_column("images", justify="right")
    names = main_metrics(metrics_by_name(slices[0]["metrics"]))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for one in slices:
        values = metrics_by_name(one["metrics"])
        table.add_row(str(one["slice"]), str(one["images"]), *(_shown(values[name]) for name in names))
    return table


def _shown(value: float) -> str:
    return "undefined" if value == UNDEFINED else f"{value:.4f}"


def _span(thresholds: Sequence[float]) -> str:
    low, high = min(thresholds), max(thresholds)
    return f"{low:.2f}" if low == high else f"{low:.2f}:{high:.2f}"


@dataclass(frozen=True)
class CategoryMetrics:
    """AP and AP50 of one category, -1 if undefined."""

    id: int
    name: str
    AP: float
    AP50: float


@dataclass(frozen=True)
class MetricsFile:
    """Content of a file written by `metrics_to_json`, as far as it is read back.

    metrics: metrics by name, -1 if undefined.
    per_category: by ascending id; empty with `use_cats` False.
    slices: slices, added by the evaluator.
    bbox, segm, keypoints: metrics of further IoU types.
    """

    iou_type: IouType
    metrics: dict[str, float]
    per_category: list[CategoryMetrics]
    slices: list[dict[str, Any]] = field(default_factory=list)
    bbox: "MetricsFile | None" = None
    segm: "MetricsFile | None" = None
    keypoints: "MetricsFile | None" = None

    @property
    def of_all_types(self) -> list["MetricsFile"]:
        """Returns the metrics of each IoU type, the first type first."""
        return [self, *(other for other in (self.bbox, self.segm, self.keypoints) if other is not None)]

    @property
    def by_name(self) -> dict[str, float]:
        """Returns the metrics of all IoU types by name, with the type as prefix for further types."""
        others = {
            f"{other.iou_type}/{name}": value
            for other in self.of_all_types[1:]
            for name, value in other.metrics.items()
        }
        return self.metrics | others


_STRUCTURE = TypeAdapter(MetricsFile)


def read_metrics(path: str | Path) -> MetricsFile:
    """Reads a metrics file.

    Raises:
        DataError: the file cannot be read, or is not a metrics file; the message names the key.
    """
    metrics = parse_file(_STRUCTURE, path, what="a metrics file")
    for one in metrics.of_all_types:
        ids = [entry.id for entry in one.per_category]
        if len(set(ids)) < len(ids):
            raise not_of_this_version(path, "a metrics file", "per_category: duplicate id")
    return metrics
