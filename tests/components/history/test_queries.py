"""Runs merged from the records that the process, the last component and the others write."""

import logging
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from components.history.queries import History
from components.history.records import ComponentState, Execution, Output, Run
from components.history.store import REPORTS, write_execution, write_run
from detection.storage.atomic import write_text

RUN = Run(id="mine", state="failed", started="2026-11-23T03:00:00+00:00", attempt=2, error="no space")
REPORT = replace(RUN, state="done", trigger="not recorded", error=None, model="reported", metrics={"AP": 0.5})


def test_a_report_counts_for_its_attempt_and_executions_until_there_is_one(tmp_path: Path) -> None:
    root, history = str(tmp_path), History(str(tmp_path))
    write_run(root, RUN)
    for attempt, model in ((1, "first"), (2, "second")):
        made = {"model": [Output(model, "Model")]}
        execution = Execution("DetectionTrainer", "done", run="mine", attempt=attempt, outputs=made)
        write_execution(root, execution, started=datetime.now(UTC))
    write_run(root, replace(REPORT, attempt=1), folder=REPORTS)
    [run] = history.runs()
    assert run == RUN
    so_far = history.with_results(run)
    assert (so_far.model, so_far.components["DetectionTrainer"].state, so_far.metrics) == ("second", "done", {})
    components = {"DetectionTrainer": ComponentState("reused", 0.0)}
    write_run(root, replace(REPORT, components=components), folder=REPORTS)
    reported = history.with_results(run)
    assert reported == replace(RUN, model="reported", metrics={"AP": 0.5}, components=components)


def test_a_run_with_a_damaged_report_is_known_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    submitted = replace(RUN, state="submitted", attempt=1, error=None)
    write_run(str(tmp_path), submitted)
    path = tmp_path / "history/reports/mine.json"
    write_text(path, "{")
    with caplog.at_level(logging.WARNING, "cocoflow.history"):
        assert History(str(tmp_path)).with_results(submitted) == submitted
    assert f"{path}: not a record of a run of this version: Invalid JSON" in caplog.text
    path.unlink()
    write_run(str(tmp_path), replace(REPORT, attempt=1, ended="2026-11-23T03:00:07+00:00"), folder=REPORTS)
    done = History(str(tmp_path)).with_results(submitted)
    assert (done.state, done.seconds, done.trigger, done.model) == ("done", 7.0, "command", "reported")
