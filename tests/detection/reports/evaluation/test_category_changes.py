"""What an update gained and forgot, by category: sentences, table and section of the page."""

from pathlib import Path
from typing import Any

import pytest

from detection.analysis.analysis_file import Category, Interval
from detection.reports.evaluation.category_changes import category_gains, gain_sentences
from tests.detection.reports.evaluation.builders import analysis, category
from tests.detection.reports.evaluation.test_page import report

SIGNIFICANT = {"up": Interval(0.2, 0.1, 0.3, 1.0), "down": Interval(-0.1, -0.2, -0.01, 0.0)}
UNCLEAR = Interval(0.05, -0.1, 0.2, 0.7)


def changed(number: int, name: str, before: float, after: float, interval: Interval | None = None) -> Category:
    metrics: dict[str, Any] = {"metrics": {"AP": after}, "baseline_metrics": {"AP": before}}
    return category(number, name, ap_difference=interval, **metrics)


FEW = [
    changed(1, "cat", 0.5, 0.7, SIGNIFICANT["up"]),
    changed(2, "dog", 0.5, 0.55, UNCLEAR),
    changed(3, "emu", 0.5, 0.4, SIGNIFICANT["down"]),
    changed(4, "frog", 0.5, 0.5, Interval(0.0, -0.1, 0.1, 0.5)),
    changed(5, "unseen", -1.0, -1.0),
]


@pytest.mark.parametrize(
    ("categories", "sentences"),
    [
        (
            FEW,
            [
                "2 of 4 categories gained AP, 1 of them significantly: cat +0.200*, dog +0.050 (* significant).",
                "1 of 4 categories lost AP, 1 of them significantly: emu \u22120.100* (* significant).",
            ],
        ),
        ([FEW[1]], ["1 of 1 categories gained AP, 0 of them significantly: dog +0.050.", "No category lost AP."]),
        (
            [changed(number, f"c{number}", 0.5, 0.5 - number / 100) for number in range(1, 8)],
            [
                "No category gained AP.",
                "7 of 7 categories lost AP: c7 \u22120.070, c6 \u22120.060, c5 \u22120.050, c4 \u22120.040, "
                "c3 \u22120.030 and 2 more.",
            ],
        ),
        ([FEW[4]], []),
        ([category(1, "cat", baseline_metrics={})], []),
    ],
    ids=["gains and losses", "not significant", "many without intervals", "undefined", "no baseline"],
)
def test_sentences(categories: list[Category], sentences: list[str]) -> None:
    assert gain_sentences(category_gains(analysis(categories=categories))) == sentences


def test_the_page_has_the_largest_loss_first(tmp_path: Path) -> None:
    _, page = report(tmp_path, analysis(categories=FEW))
    assert page.header("gains") == [
        *("category", "AP, baseline", "AP", "difference"),
        *("its 95 % interval", "judgement", "ground truth"),
    ]
    rows = page.tables["gains"][0][1:]
    assert [row[0] for row in rows] == ["emu", "frog", "dog", "cat"]
    assert rows[0][1:6] == ["0.500", "0.400", "\u22120.100", "\u22120.200 to \u22120.010", "worse"]
    assert [row[5] for row in rows] == ["worse", "not significant", "not significant", "better"]
    assert "1 of 4 categories lost AP, 1 of them significantly: emu" in page.texts["gains"]


def test_without_a_baseline_the_page_has_no_such_section(tmp_path: Path) -> None:
    _, page = report(tmp_path, analysis(categories=[category(1, "cat", baseline_metrics={})]))
    assert "gains" not in page.texts
