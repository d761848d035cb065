"""The section on score thresholds: without scripts, and with its slider in a browser."""

from pathlib import Path

import numpy as np
import pytest

from detection.analysis.analyse import analyse
from detection.coco.params import make_params
from detection.reports.evaluation.page import write_evaluation_report
from detection.reports.evaluation.thresholds import thresholds
from detection.reports.html.plot import HEIGHT, WIDTH
from detection.reports.html.table import DASH, cell_text
from schemas.config.evaluate import AnalysisConfig
from tests.browser import Browser, Page
from tests.detection.analysis.cases import counted_detections, objects_to_find
from tests.detection.coco.generated_cases import generate, pycocotools_eval
from tests.detection.reports.evaluation.builders import analysis, by_score, category

Row = tuple[int, int, int]  # TP, FP, FN


def assert_shows(texts: list[str], tp: int, fp: int, fn: int) -> None:
    """Precision, recall and F1 with three digits, TP, FP and FN."""
    assert texts[3:] == [str(tp), str(fp), str(fn)]
    fractions = [(tp, tp + fp), (tp, tp + fn), (2 * tp, 2 * tp + fp + fn)]
    for text, (part, whole) in zip(texts[:3], fractions, strict=True):
        if whole:
            assert len(text) == 5
            assert float(text) == pytest.approx(part / whole, abs=0.0005 + 1e-9)
        else:
            assert text == DASH


def test_the_highest_f1_is_shown_without_scripts() -> None:
    one = category(1, "one", ground_truth=10, tp_by_score=by_score({90: 4, 60: 2}), fp_by_score=by_score({60: 3}))
    two = category(2, "two", ground_truth=2, tp_by_score=by_score({100: 1, 0: 1}), fp_by_score=by_score({0: 50, 20: 1}))
    shown = thresholds(analysis(categories=[one, two]))
    assert shown is not None
    # From 0.21 to 0.60 TP 7, FP 3, FN 5; from 0.61 to 0.90 TP 5, FP 0, FN 7.
    assert shown.step == 21
    assert_shows(list(shown.totals.values()), 7, 3, 5)
    first, second = ([cell_text(cell) for cell in row] for row in shown.table.rows)
    assert first[:2] == ["one", "10"]
    assert_shows(first[2:], 6, 3, 4)
    assert second[:2] == ["two", "2"]
    assert_shows(second[2:], 1, 0, 1)
    precision, recall, f1 = (
        np.array([pair.split(",") for pair in curve.points.split()], float) for curve in shown.curves
    )
    np.testing.assert_allclose(precision[[0, 1, 50, 95], 0] / WIDTH, [0, 0.01, 0.5, 0.95], atol=1e-3)
    np.testing.assert_allclose(1 - precision[[0, 1, 50, 95], 1] / HEIGHT, [8 / 62, 7 / 11, 0.7, 1], atol=1e-3)
    np.testing.assert_allclose(1 - recall[[0, 1, 95], 1] / HEIGHT, [8 / 12, 7 / 12, 1 / 12], atol=1e-3)
    np.testing.assert_allclose(1 - f1[[0, 50], 1] / HEIGHT, [16 / 74, 14 / 22], atol=1e-3)


def test_without_detections_above_a_threshold_precision_has_no_point() -> None:
    shown = thresholds(analysis(categories=[category(1, "one", fp_by_score=by_score({}))]))
    assert shown is not None
    assert [len(curve.points.split()) for curve in shown.curves] == [81, 101, 101]


@pytest.mark.parametrize("bins", [[], by_score({})])
def test_without_a_true_positive_there_is_no_section(bins: list[int]) -> None:
    given = analysis(categories=[category(1, "one", tp_by_score=bins, fp_by_score=bins)])
    assert thresholds(given) is None


class Slider:
    """The page's slider, used by keyboard, and what a reader sees at its threshold."""

    def __init__(self, page: Page) -> None:
        self._page = page
        page.evaluate("document.querySelector('#thresholds input[type=range]').focus()")

    def move_to(self, step: int) -> None:
        self._page.press("Home", code=36)
        for _ in range(step):
            self._page.press("ArrowRight", code=39)

    def totals(self) -> list[str]:
        shown: list[str] = self._page.evaluate(
            "[...document.querySelectorAll('#thresholds :is(p output, .value)')].map(value => value.textContent)"
        )
        return shown

    def rows(self) -> dict[str, list[str]]:
        rows = self._page.evaluate(
            "[...document.querySelectorAll('#thresholds tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
        )
        return {name: shown for name, _, *shown in rows}


def counts_at(threshold: float, seed: int) -> dict[str, Row]:
    """TP, FP and FN of each category among the detections with this score or more, of pycocotools."""
    evaluation = pycocotools_eval(*generate(seed))
    kept = [one for one in counted_detections(evaluation) if one.score >= threshold]
    rows = {}
    for number, instances in objects_to_find(evaluation).items():
        hits = [one.right for one in kept if one.category == number]
        rows[f"category {number}"] = (sum(hits), len(hits) - sum(hits), instances - sum(hits))
    return rows


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Page:
    ground_truth, detections = generate(3)
    given = analyse(ground_truth, detections, params=make_params(), options=AnalysisConfig(replicates=0))
    write_evaluation_report(tmp_path / "report.html", given, title="t")
    return Page(browser, tmp_path / "report.html")


def test_the_slider_shows_pycocotools_counts(page: Page) -> None:
    slider = Slider(page)
    page.click("#thresholds th:nth-child(6) button")  # rows in another order than the counts
    page.evaluate("document.querySelector('#thresholds input[type=range]').focus()")
    for step in (0, 10, 11, 50, 51, 90, 100):
        slider.move_to(step)
        expected = counts_at(step / 100, 3)
        threshold, *totals = slider.totals()
        assert threshold == f"{step / 100:.2f}"
        assert_shows(totals, *np.sum(list(expected.values()), axis=0).tolist())
        rows = slider.rows()
        assert rows.keys() == expected.keys()
        for name, counts in expected.items():
            assert_shows(rows[name], *counts)
    assert page.complaints() == []
    page.close()


def test_rows_are_sorted_by_the_numbers_at_the_threshold(page: Page) -> None:
    slider = Slider(page)
    slider.move_to(90)
    button = "#thresholds th:nth-child(8) button"
    page.click(button)
    misses = [int(row[-1]) for row in slider.rows().values()]
    assert misses == sorted((row[2] for row in counts_at(0.9, 3).values()), reverse=True)
    assert page.evaluate("document.querySelectorAll('#thresholds [aria-sort=descending]').length") == 1
    slider = Slider(page)
    slider.move_to(0)
    assert page.evaluate("document.querySelectorAll('#thresholds [aria-sort=descending]').length") == 0
    page.close()


def test_the_slider_has_a_name_a_value_and_a_thumb_below_the_line_of_the_chart(page: Page) -> None:
    slider = Slider(page)
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    for step in (0, 25, 100):
        slider.move_to(step)
        nodes = page.send("Accessibility.getFullAXTree")["nodes"]
        (node,) = [one for one in nodes if one.get("role", {}).get("value") == "slider"]
        assert node["name"]["value"] == "Score threshold"
        assert float(node["value"]["value"]) == step / 100
        line = page.evaluate("document.querySelector('#scores line.chosen').getBoundingClientRect().x")
        box = page.evaluate("document.querySelector('#thresholds input[type=range]').getBoundingClientRect().toJSON()")
        assert box["x"] + 8 + (box["width"] - 16) * step / 100 == pytest.approx(line, abs=1.5)
        assert box["height"] >= 44, "for a finger"
    page.close()
