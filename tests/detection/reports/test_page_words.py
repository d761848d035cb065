"""The words of the pages are the field's: none of those that the terms of this project replace."""

import re
from pathlib import Path

import pytest

from detection.datasets.issues import Issue
from detection.reports.dataset.page import write_report
from detection.reports.evaluation.comparison_page import write_comparison_page
from detection.reports.evaluation.page import write_evaluation_report
from schemas.config.issues import ISSUE_KINDS
from tests.detection.reports.dataset.test_data_report import CATEGORIES, two_splits
from tests.detection.reports.evaluation.builders import analysis, boundaries, category, smooth_pictures
from tests.detection.reports.evaluation.test_comparison_page import comparison
from tests.html_page import HtmlPage

# Word -> what to write instead.  Only words that have no other meaning on these pages.
REPLACED = {
    "figure": "metric",
    "fault": "issue",
    "finding": "issue",
    "bad record": "issue",
    "problem": "issue",
    "sound": "valid",
    "unsound": "invalid",
    "soundness": "validation",
    "found": "detected, matched",
    "object": "ground truth, instance, annotation",
    "right": "TP",
    "wrong": "FP",
    "uncounted": "ignored",
    "not counted": "ignored",
    "suspicion": "label-error candidate",
    "likely label error": "label-error candidate",
    "poor box": "localisation error",
    "wrong class": "classification error",
    "found twice": "duplicate detection",
    "mended": "fixed",
    "averages": "EMA weights",
    "shadow": "EMA weights",
    "cut off": "truncated",
    "foreign": "source format",
    "dialect": "source format",
    "verb": "command",
    "least": "min, lowest",
    "greatest": "max, largest",
    "there twice": "duplicate",
    "taken for": "confused with",
}
ALLOWED = ("data.on_fault", "at least")  # a key of the configuration; an inequality


def evaluation(path: Path) -> None:
    categories = [*analysis().categories, category(8, "rare", ground_truth=3), category(9, "none", ground_truth=0)]
    given = analysis(categories=categories, boundaries=boundaries())
    write_evaluation_report(path, given, title="evaluation", pictures=smooth_pictures())


def compared(path: Path) -> None:
    write_comparison_page(path, [comparison()], title="comparison", pictures=smooth_pictures())


def data(path: Path) -> None:
    issues = [
        Issue(kind, policy, f"train: {kind}.jpg", number, number, "A message.")
        for number, kind in enumerate(ISSUE_KINDS)
        for policy in ISSUE_KINDS[kind].allowed
        if policy not in ("repair", "move")  # become others before an issue is told
    ]
    splits = two_splits()
    write_report(path, title="data", splits=splits, categories=CATEGORIES, issues=issues, concerned={3: 7, 90: 2})


def replaced_words(text: str) -> list[str]:
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    return [word for word in REPLACED if re.search(rf"\b{word}s?\b", text, re.IGNORECASE)]


@pytest.mark.parametrize("write", [evaluation, compared, data])
def test_pages_use_the_words_of_the_field(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path / "page.html")
    page = HtmlPage((tmp_path / "page.html").read_text(encoding="utf-8"))
    spoken = [str(given[name]) for _, given in page.tags for name in ("alt", "aria-label", "title") if given.get(name)]
    text = "\n".join([*page.texts.values(), *spoken])
    assert len(text) > 1000
    assert replaced_words(text) == []


def test_a_replaced_word_is_noticed() -> None:
    assert replaced_words("2 Faults and a cut off figure") == ["figure", "fault", "cut off"]
    assert replaced_words("--set data.on_fault=drop, at least 2, default, verbose, bright") == []
