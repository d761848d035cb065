"""The table of categories: figures, numbers of objects and the operating point of each."""

from detection.coco.analysis.findings import Analysis, Category, OperatingPoint
from detection.coco.evaluation_report.numbers import change_cell, difference, figure_cell
from detection.coco.evaluation_report.sentences import FIRST
from detection.pages.names import shown_name
from detection.pages.table import Cell, Number, Table


def category_table(analysis: Analysis) -> Table:
    """One row a category, the least AP first, categories without objects last."""
    figures = list(dict.fromkeys(name for category in analysis.categories for name in category.figures))
    compared = any(category.before for category in analysis.categories)
    header = [
        "category",
        "id",
        *figures,
        *([f"{FIRST} difference"] if compared else []),
        "objects",
        "images",
        "detections",
        "best F1",
        "at score",
        "precision there",
        "recall there",
        "calibration error",
    ]
    return Table("", header, [_row(category, figures, compared) for category in ordered_categories(analysis)])


def ordered_categories(analysis: Analysis) -> list[Category]:
    """The least AP first: where to look; undefined ones last."""

    def rank(category: Category) -> tuple[float, int]:
        value = figure_cell(category.figures.get(FIRST)).value
        return (2.0 if value is None else value, category.id)

    return sorted(analysis.categories, key=rank)


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
        *_operating_point(category.best),
        figure_cell(category.calibration_error),
    ]


def _operating_point(best: OperatingPoint | None) -> list[Cell]:
    if best is None:
        return [None] * 4
    return [figure_cell(value) for value in (best.f1, best.score, best.precision, best.recall)]
