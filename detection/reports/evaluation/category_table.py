"""The table of categories: metrics, numbers of instances, main error and operating point of each."""

from detection.analysis.analysis_file import ERROR_TYPES, Analysis, Category, OperatingPoint
from detection.reports.evaluation.numbers import change_cell, difference, figure_cell
from detection.reports.evaluation.sentences import FIRST
from detection.reports.html.names import shown_name
from detection.reports.html.table import Cell, Number, Table


def category_table(analysis: Analysis) -> Table:
    """One row per category, the lowest AP first, categories without ground truth last."""
    figures = list(dict.fromkeys(name for category in analysis.categories for name in category.figures))
    compared = any(category.before for category in analysis.categories)
    header = [
        "category",
        "id",
        *figures,
        *([f"{FIRST} difference"] if compared else []),
        "ground truth",
        "images",
        "detections",
        "main error",
        "best F1",
        "at score",
        "precision",
        "recall",
        "calibration error",
    ]
    return Table("", header, [_row(category, figures, compared) for category in ordered_categories(analysis)])


def ordered_categories(analysis: Analysis) -> list[Category]:
    """The categories, the lowest AP first, undefined ones last."""

    def rank(category: Category) -> tuple[float, int]:
        value = figure_cell(category.figures.get(FIRST)).value
        return (2.0 if value is None else value, category.id)

    return sorted(analysis.categories, key=rank)


def main_error(category: Category) -> tuple[str, int] | None:
    """The most frequent error type of a category and its count, the first of equals; None without an error."""
    name = max(ERROR_TYPES, key=lambda name: category.errors.get(name, 0))
    count = category.errors.get(name, 0)
    return (name, count) if count else None


def main_error_text(category: Category) -> str | None:
    """Such as "missed ground truth (5 of 8)"; None without an error."""
    found = main_error(category)
    return f"{ERROR_TYPES[found[0]]} ({found[1]:,} of {sum(category.errors.values()):,})" if found else None


def _row(category: Category, figures: list[str], compared: bool) -> list[Cell]:
    change = difference(category.figures.get(FIRST), category.before.get(FIRST))
    return [
        shown_name(category.name),
        Number(str(category.id), category.id),
        *(figure_cell(category.figures.get(name), bar=name == FIRST) for name in figures),
        *([change_cell(change)] if compared else []),
        category.objects,
        category.images,
        category.detections,
        main_error_text(category),
        *_operating_point(category.best),
        figure_cell(category.calibration_error),
    ]


def _operating_point(best: OperatingPoint | None) -> list[Cell]:
    if best is None:
        return [None] * 4
    return [figure_cell(value) for value in (best.f1, best.score, best.precision, best.recall)]
