"""What `watch` logs of a finished run: its record, and the categories that it gained and lost."""

from pathlib import Path

import pytest

from detection.analysis.analysis_file import write_analysis
from pipelines.runs.run_record import RunRecord
from pipelines.watch.supervisor import result_lines
from tests.detection.reports.evaluation.builders import analysis, category


def _record(root: Path) -> RunRecord:
    return RunRecord(
        id="r1",
        state="done",
        started="2026-11-23T03:00:00+00:00",
        evaluation=str(root / "evaluation"),
        metrics={"AP": 0.5, "AP50": 0.7},
        blessed=True,
        pushed_path="/serving/7",
    )


def test_a_run_is_told_with_the_categories_that_changed(tmp_path: Path) -> None:
    names = [category(1, "cat", metrics={"AP": 0.5}, baseline_metrics={"AP": 0.4})]
    names.append(category(2, "dog", metrics={"AP": 0.5}, baseline_metrics={"AP": 0.75}))
    (tmp_path / "evaluation").mkdir()
    write_analysis(tmp_path / "evaluation/analysis.json", analysis(categories=names))
    assert list(result_lines(_record(tmp_path))) == [
        f"done, AP 0.500, blessed, pushed to /serving/7; report: {tmp_path}/evaluation/report.html",
        "1 of 2 categories gained AP: cat +0.100.",
        "1 of 2 categories lost AP: dog \u22120.250.",
    ]


def test_an_evaluation_that_was_removed_or_is_another_s_leaves_its_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [line] = result_lines(_record(tmp_path))
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation/analysis.json").write_text("{}")
    assert list(result_lines(_record(tmp_path))) == [line]
    assert line.startswith("done, AP 0.500, blessed")
    assert "not an analysis of this version" in caplog.text
