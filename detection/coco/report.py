"""Metrics as a JSON file and as a table on the screen."""

from pathlib import Path
from typing import Any

from rich.table import Table

from detection.atomic_files import write_json
from detection.coco.figures import FIGURES, UNDEFINED
from detection.coco.metrics import CocoMetrics


def metrics_to_json(metrics: CocoMetrics) -> dict[str, Any]:
    """Content of a metrics file: `iou_type`, `stats`, `metrics` by name and `per_category`."""
    return {
        "iou_type": metrics.iou_type,
        "stats": metrics.stats.tolist(),
        "metrics": metrics.figures,
        "per_category": metrics.per_category,
    }


def write_metrics(path: str | Path, metrics: CocoMetrics) -> None:
    """Writes a metrics file, whole or not at all.

    Raises:
        DataError: the file cannot be written.
    """
    write_json(path, metrics_to_json(metrics))


def summary_table(metrics: CocoMetrics) -> Table:
    """The figures as a table in COCOeval's order, for `rich.console.Console.print`."""
    table = Table(title=f"COCO metrics, {metrics.iou_type}", title_justify="left")
    table.add_column("figure")
    table.add_column("IoU")
    table.add_column("area")
    table.add_column("max dets", justify="right")
    table.add_column("value", justify="right")
    for figure in FIGURES[metrics.iou_type]:
        value = metrics.figures[figure.name]
        table.add_row(
            figure.name,
            f"{figure.iou:.2f}" if figure.iou else _span(metrics.iou_thresholds),
            figure.area,
            str(metrics.max_dets[figure.max_dets]),
            "undefined" if value == UNDEFINED else f"{value:.4f}",
        )
    return table


def _span(thresholds: tuple[float, ...]) -> str:
    low, high = min(thresholds), max(thresholds)
    return f"{low:.2f}" if low == high else f"{low:.2f}:{high:.2f}"
