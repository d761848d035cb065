"""Metrics as a JSON file and as a table on the screen."""

from collections.abc import Mapping, Sequence
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
    return figures_table(
        metrics.figures,
        iou_type=metrics.iou_type,
        iou_thresholds=metrics.iou_thresholds,
        max_dets=metrics.max_dets,
    )


def figures_table(
    figures: Mapping[str, float],
    *,
    iou_type: str = "bbox",
    iou_thresholds: Sequence[float] = (0.5, 0.95),
    max_dets: Sequence[int] = (1, 10, 100),
) -> Table:
    """Figures by name, as a metrics file holds them, as a table in COCOeval's order.

    Args:
        figures: by name; -1 is shown as undefined.
        iou_type: which figures there are.
        iou_thresholds: that the means are over.
        max_dets: detections counted an image, ascending.
    """
    table = Table(title=f"COCO metrics, {iou_type}", title_justify="left")
    table.add_column("figure")
    table.add_column("IoU")
    table.add_column("area")
    table.add_column("max dets", justify="right")
    table.add_column("value", justify="right")
    for figure in FIGURES[iou_type]:
        value = figures[figure.name]
        table.add_row(
            figure.name,
            f"{figure.iou:.2f}" if figure.iou else _span(iou_thresholds),
            figure.area,
            str(max_dets[figure.max_dets]),
            "undefined" if value == UNDEFINED else f"{value:.4f}",
        )
    return table


def _span(thresholds: Sequence[float]) -> str:
    low, high = min(thresholds), max(thresholds)
    return f"{low:.2f}" if low == high else f"{low:.2f}:{high:.2f}"
