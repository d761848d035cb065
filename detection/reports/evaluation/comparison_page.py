"""The comparison page of two models: its tables, and the file."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detection.analysis.analysis_file import ERROR_TYPES
from detection.analysis.comparison import CategoryChange, Change, Comparison, ImageChange
from detection.reports.box_styles import DETECTION_STATUSES
from detection.reports.evaluation.metric_tables import (
    FIRST,
    change_cell,
    count_change_cell,
    interval_cell,
    is_significant,
    judgement,
    metric_cell,
)
from detection.reports.evaluation.panels import Figure, compared
from detection.reports.evaluation.pictures import PictureSource, measured, write_illustrated_page
from detection.reports.evaluation.summary import COMPARED, change_headline, remarks
from detection.reports.html.table import Cell, Number, Table, shown_name

_BETTER, _WORSE = "better", "worse"  # ids of the sections


def change_table(comparison: Comparison) -> Table:
    """Returns one row per metric."""
    header = ["metric", "A", "B", "difference"]
    with_intervals = has_intervals(comparison)
    if with_intervals:
        header += [f"its {100 * comparison.confidence:g} % interval", "judgement of B"]
    rows: list[list[Cell]] = []
    for name, change in comparison.metrics.items():
        row = [name, *_change_cells(change)]
        if with_intervals:
            row += [interval_cell(change.interval, signed=True), judgement(change.interval)]
        rows.append(row)
    return Table("", header, rows)


def error_change_table(comparison: Comparison) -> Table:
    """Returns one row per error type."""
    rows: list[list[Cell]] = [
        [
            ERROR_TYPES.get(change.a.name, change.a.name),
            change.a.count,
            change.b.count,
            count_change_cell(change.b.count - change.a.count),
            metric_cell(change.a.ap_gain),
            metric_cell(change.b.ap_gain),
        ]
        for change in comparison.errors
    ]
    return Table("", ("error type", "count, A", "count, B", "difference", "AP50 gain, A", "AP50 gain, B"), rows)


def category_change_table(comparison: Comparison) -> Table:
    """Returns one row per category, the largest loss of AP first, categories without a difference last."""
    metrics = list(dict.fromkeys(name for category in comparison.categories for name in category.metrics))
    others = [name for name in metrics if name != FIRST]
    with_intervals = has_intervals(comparison)
    header = ["category", "id", "ground truth", f"{FIRST}, A", f"{FIRST}, B", f"{FIRST} difference"]
    header += [f"its {100 * comparison.confidence:g} % interval"] * with_intervals
    header += [f"{name} difference" for name in others]
    return Table("", header, [_category_row(one, others, with_intervals) for one in _by_loss(comparison.categories)])


def image_change_table(changes: Sequence[ImageChange]) -> Table:
    """Returns one row per image."""
    rows: list[list[Cell]] = [
        [
            shown_name(change.b.file_name),
            str(change.b.image_id),
            count_change_cell(change.errors),
            *(count for result in (change.a, change.b) for count in (result.fp, result.fn, result.tp)),
        ]
        for change in changes
    ]
    header = ["file", "image", "errors, B minus A"]
    header += [f"{what}, {model}" for model in ("A", "B") for what in ("FP", "FN", "TP")]
    return Table("", header, rows)


def has_intervals(comparison: Comparison) -> bool:
    """Returns whether differences have intervals."""
    return any(change.interval for change in comparison.metrics.values())


def _change_cells(change: Change) -> list[Cell]:
    difference = change_cell(change.difference, significant=is_significant(change.interval))
    return [metric_cell(change.a), metric_cell(change.b), difference]


def _by_loss(categories: Sequence[CategoryChange]) -> list[CategoryChange]:
    def rank(category: CategoryChange) -> tuple[float, int]:
        change = category.metrics.get(FIRST)
        return (2.0 if change is None or change.difference is None else change.difference, category.id)

    return sorted(categories, key=rank)


def _category_row(category: CategoryChange, others: Sequence[str], with_intervals: bool) -> list[Cell]:
    nothing = Change(-1.0, -1.0, None, None)
    first = category.metrics.get(FIRST, nothing)
    return [
        shown_name(category.name),
        Number(str(category.id), category.id),
        category.ground_truth,
        *_change_cells(first),
        *([interval_cell(first.interval, signed=True)] if with_intervals else []),
        *(change_cell(category.metrics.get(name, nothing).difference) for name in others),
    ]


def write_comparison_page(
    path: str | Path, comparisons: Sequence[Comparison], *, title: str, pictures: PictureSource | None = None
) -> None:
    """Writes the page: one self-contained HTML file of at most 5 MB, written atomically.

    Args:
        path: path of the HTML file.
        comparisons: comparison by each IoU type; further types have separate sections.
        title: heading.
        pictures: source of the images; None: no pictures.

    Raises:
        DataError: the file cannot be written.
    """
    first = comparisons[0]
    views = [_view(one, "" if one is first else f"{one.iou_type}-") for one in comparisons]
    content = {
        "title": title,
        "facts": {"A": first.a, "B": first.b},
        "verdict": {"tone": _tone(first), "text": change_headline(first)},
        "headlines": [change_headline(one) for one in comparisons[1:]],
        "remarks": list(dict.fromkeys(remark for one in comparisons for remark in remarks(one))),
        "sections": {id_: heading for view in views for id_, heading in view["sections"].items()},
        "views": views,
        "legend_groups": {"Ground truth": ("Miss",), "Detections": DETECTION_STATUSES},
    }
    write_illustrated_page(
        path,
        "comparison.html.j2",
        scripts=("tables.js",),
        galleries={name: images for view in views for name, images in _galleries(view, pictures).items()},
        source=pictures,
        content=lambda _: content,
    )


def _view(comparison: Comparison, prefix: str) -> dict[str, Any]:
    """Returns the content of the sections of one IoU type; `prefix`: prefix of their ids."""
    return {
        "comparison": comparison,
        "prefix": prefix,
        "sections": _sections(comparison, prefix),
        "metrics": change_table(comparison),
        "intervals": has_intervals(comparison),
        "errors": error_change_table(comparison),
        "categories": category_change_table(comparison),
        "images": {
            f"{prefix}{_WORSE}": image_change_table(comparison.worse),
            f"{prefix}{_BETTER}": image_change_table(comparison.better),
        },
    }


def _galleries(view: Mapping[str, Any], pictures: PictureSource | None) -> dict[str, list[Figure]]:
    comparison: Comparison = view["comparison"]
    names = {category.id: category.name for category in comparison.categories}
    images = {_WORSE: comparison.worse, _BETTER: comparison.better}
    return {
        f"{view['prefix']}{name}": [
            compared(replace(change, b=measured(change.b, pictures)), names) for change in changes
        ]
        for name, changes in images.items()
    }


def _tone(comparison: Comparison) -> str:
    first = comparison.metrics.get(FIRST)
    if first is None or first.difference is None or not is_significant(first.interval):
        return "plain"
    return "good" if first.difference > 0 else "bad"


def _sections(comparison: Comparison, prefix: str) -> dict[str, str]:
    """Returns id -> heading of the sections with content, in order."""
    sections = {
        "metrics": ("Metrics", True),
        "errors": ("Error types (TIDE)", bool(comparison.errors)),
        "categories": ("Categories", bool(comparison.categories)),
        _WORSE: ("Images where B is worse", bool(comparison.worse)),
        _BETTER: ("Images where B is better", bool(comparison.better)),
    }
    of_type = f"{COMPARED[comparison.iou_type].capitalize()}: " if prefix else ""
    return {f"{prefix}{name}": f"{of_type}{heading}" for name, (heading, there) in sections.items() if there}
