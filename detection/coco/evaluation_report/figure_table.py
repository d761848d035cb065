"""The figures of the whole evaluation, against the baseline's where there is one."""

from detection.coco.analysis.findings import Analysis, Interval
from detection.coco.evaluation_report.numbers import (
    change_cell,
    change_text,
    difference,
    figure_cell,
    figure_text,
    interval_cell,
    interval_text,
    is_defined,
    is_significant,
)
from detection.pages.table import Cell, Table

FIRST = "AP"


def figure_table(analysis: Analysis) -> Table:
    """One row a figure: value, interval and, with a baseline, the difference and what it says."""
    percent = f"{100 * analysis.confidence:g} %"
    header = ["figure", "value", f"{percent} interval"]
    if analysis.before:
        header += ["baseline", "difference", f"its {percent} interval", "judgement"]
    return Table("", header, [_row(analysis, name) for name in analysis.figures])


def headline(analysis: Analysis) -> str:
    """The first figure in a sentence, and how it compares."""
    value = analysis.figures.get(FIRST)
    if not is_defined(value):
        return f"{FIRST} is undefined: there is no object to measure it on."
    percent = f"{100 * analysis.confidence:g} %"
    interval = analysis.intervals.get(FIRST)
    text = f"{FIRST} {figure_text(value)}"
    if interval:
        text += f" ({percent} interval {interval_text(interval)})"
    change = difference(value, analysis.before.get(FIRST))
    if change is None:
        return f"{text}."
    text += f", {change_text(change)} against the baseline's {figure_text(analysis.before[FIRST])}"
    of_change = analysis.differences.get(FIRST)
    if of_change:
        text += f" ({percent} interval {interval_text(of_change, signed=True)}): {judgement(of_change)}"
    return f"{text}."


def judgement(change: Interval | None) -> str:
    """What a difference's interval says: "better", "worse", or that it does not tell."""
    if change is None:
        return ""
    if not is_significant(change):
        return "no clear difference"
    return "better" if change.low > 0 else "worse"


def _row(analysis: Analysis, name: str) -> list[Cell]:
    value = analysis.figures[name]
    row: list[Cell] = [name, figure_cell(value, bar=True), interval_cell(analysis.intervals.get(name))]
    if analysis.before:
        before, interval = analysis.before.get(name), analysis.differences.get(name)
        change = change_cell(difference(value, before), significant=is_significant(interval))
        row += [figure_cell(before), change, interval_cell(interval, signed=True), judgement(interval)]
    return row
