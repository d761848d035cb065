"""The categories with a gain or loss against the baseline, as a table and as sentences."""

from typing import NamedTuple

from detection.analysis.analysis_file import Analysis, Interval
from detection.reports.evaluation.metric_tables import (
    FIRST,
    change_cell,
    change_text,
    interval_cell,
    is_defined,
    is_significant,
    judgement,
    metric_cell,
)
from detection.reports.html.table import Cell, Table, shown_name

_NAMED = 5  # max categories in a sentence


class CategoryGain(NamedTuple):
    """Change of a category's AP against the baseline's.

    interval: interval of the difference; None without replicates.
    ground_truth: number of annotated instances.
    """

    name: str
    before: float
    after: float
    difference: float
    interval: Interval | None
    ground_truth: int


def category_gains(analysis: Analysis) -> list[CategoryGain]:
    """Returns the categories with a defined AP for both models, the largest loss first; empty without a baseline."""
    gains = []
    for one in analysis.categories:
        after, before = one.metrics.get(FIRST), one.baseline_metrics.get(FIRST)
        if is_defined(after) and is_defined(before):
            gains.append(CategoryGain(one.name, before, after, after - before, one.ap_difference, one.ground_truth))
    return sorted(gains, key=lambda gain: round(gain.difference, 9))


def gain_sentences(gains: list[CategoryGain]) -> list[str]:
    """Returns a sentence each on gains and losses; empty without a comparison."""
    if not gains:
        return []
    gained = [one for one in reversed(gains) if one.difference > 0]
    lost = [one for one in gains if one.difference < 0]
    return [_sentence("gained", gained, len(gains)), _sentence("lost", lost, len(gains))]


def _sentence(what: str, changed: list[CategoryGain], of: int) -> str:
    if not changed:
        return f"No category {what} {FIRST}."
    intervals = any(one.interval for one in changed)
    significant = sum(is_significant(one.interval) for one in changed)
    of_these = f", {significant:,} of them significantly" if intervals else ""
    named = ", ".join(
        f"{shown_name(one.name)} {change_text(one.difference)}{'*' if is_significant(one.interval) else ''}"
        for one in changed[:_NAMED]
    )
    more = f" and {len(changed) - _NAMED:,} more" if len(changed) > _NAMED else ""
    note = " (* significant)" if any(is_significant(one.interval) for one in changed[:_NAMED]) else ""
    return f"{len(changed):,} of {of:,} categories {what} {FIRST}{of_these}: {named}{more}{note}."


def gain_table(analysis: Analysis) -> Table:
    """Returns one row per category, the largest loss first."""
    gains = category_gains(analysis)
    with_intervals = any(one.interval for one in gains)
    header = ["category", f"{FIRST}, baseline", FIRST, "difference"]
    if with_intervals:
        header += [f"its {100 * analysis.confidence:g} % interval", "judgement"]
    rows: list[list[Cell]] = []
    for one in gains:
        change = change_cell(one.difference, significant=is_significant(one.interval))
        row: list[Cell] = [shown_name(one.name), metric_cell(one.before), metric_cell(one.after), change]
        if with_intervals:
            row += [interval_cell(one.interval, signed=True), judgement(one.interval)]
        rows.append([*row, one.ground_truth])
    return Table("", [*header, "ground truth"], rows)
