"""The page of a comparison: two models on the same images."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from detection.analysis.comparison import Comparison
from detection.reports.box_styles import DETECTION_STATUSES
from detection.reports.evaluation.comparison_tables import (
    category_change_table,
    change_table,
    error_change_table,
    has_intervals,
    image_change_table,
)
from detection.reports.evaluation.illustrated import write_illustrated_page
from detection.reports.evaluation.numbers import is_significant
from detection.reports.evaluation.panels import compared
from detection.reports.evaluation.pictures import PictureSource, measured
from detection.reports.evaluation.sentences import FIRST, change_headline, sample_note

_BETTER, _WORSE = "better", "worse"  # ids of the sections


def write_comparison_page(
    path: str | Path,
    comparison: Comparison,
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    pictures: PictureSource | None = None,
) -> None:
    """Writes the page: one HTML file that needs nothing else, at most 5 MB, whole or not at all.

    Args:
        path: of the file.
        comparison: what is told.
        title: heading.
        facts: name -> text, beside the models' names.
        pictures: of the images; None: there are none to be had.

    Raises:
        DataError: the file cannot be written.
    """
    names = {category.id: category.name for category in comparison.categories}
    images = {_WORSE: comparison.worse, _BETTER: comparison.better}
    told = {
        "comparison": comparison,
        "title": title,
        "facts": {"A": comparison.a, "B": comparison.b, **(facts or {})},
        "verdict": {"tone": _tone(comparison), "text": change_headline(comparison)},
        "remarks": _remarks(comparison),
        "sections": _sections(comparison),
        "figures": change_table(comparison),
        "intervals": has_intervals(comparison),
        "errors": error_change_table(comparison),
        "categories": category_change_table(comparison),
        "legend_groups": {"Ground truth": ("Miss",), "Detections": DETECTION_STATUSES},
        "images": {name: image_change_table(changes) for name, changes in images.items()},
    }
    write_illustrated_page(
        path,
        "comparison.html.j2",
        scripts=("tables.js",),
        galleries={
            name: [compared(replace(change, b=measured(change.b, pictures)), names) for change in changes]
            for name, changes in images.items()
        },
        source=pictures,
        content=lambda _: told,
    )


def _tone(comparison: Comparison) -> str:
    first = comparison.figures.get(FIRST)
    if first is None or first.difference is None or not is_significant(first.interval):
        return "plain"
    return "good" if first.difference > 0 else "bad"


def _remarks(comparison: Comparison) -> list[str]:
    note = sample_note(comparison.sample) if comparison.sample else ""
    return [*comparison.remarks, *([note] if note else [])]


def _sections(comparison: Comparison) -> dict[str, str]:
    """Id -> heading of those that have something to tell, in their order."""
    told = {
        "metrics": ("Metrics", True),
        "errors": ("Error types (TIDE)", bool(comparison.errors)),
        "categories": ("Categories", bool(comparison.categories)),
        _WORSE: ("Images where B is worse", bool(comparison.worse)),
        _BETTER: ("Images where B is better", bool(comparison.better)),
    }
    return {name: heading for name, (heading, there) in told.items() if there}
