"""The metrics of the whole evaluation, compared with the baseline's if there is one."""

from detection.analysis.analysis_file import Analysis
from detection.reports.evaluation.numbers import (
    change_cell,
    difference,
    figure_cell,
    interval_cell,
    is_significant,
)
from detection.reports.evaluation.sentences import judgement
from detection.reports.html.table import Cell, Table


def figure_table(analysis: Analysis) -> Table:
    """One row per metric: value, interval and, with a baseline, the difference and its significance."""
    percent = f"{100 * analysis.confidence:g} %"
    header = ["metric", "value", f"{percent} interval"]
    if analysis.before:
        header += ["baseline", "difference", f"its {percent} interval", "judgement"]
    return Table("", header, [_row(analysis, name) for name in analysis.figures])


def _row(analysis: Analysis, name: str) -> list[Cell]:
    value = analysis.figures[name]
    row: list[Cell] = [name, figure_cell(value, bar=True), interval_cell(analysis.intervals.get(name))]
    if analysis.before:
        before, interval = analysis.before.get(name), analysis.differences.get(name)
        change = change_cell(difference(value, before), significant=is_significant(interval))
        row += [figure_cell(before), change, interval_cell(interval, signed=True), judgement(interval)]
    return row
