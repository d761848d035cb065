"""`status`: what the records of a run.root say, also while a run goes on, and without TFX."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from components.history.files import entries_of
from components.history.records import DataRead, Execution, Failure, Output, Run
from components.history.store import write_execution, write_run
from detection.storage.atomic import write_text
from detection.storage.processes import this_process
from tests.pipelines.recorded_root import local_root, publish_rollback, record_day, record_report, run_of
from tests.storage_emulator.fixture import Bucket


def _status(capsys: pytest.CaptureFixture[str], root: str, *flags: str) -> str:
    assert pipeline_runner.main(["status", "--root", root, *flags]) == 0
    return capsys.readouterr().out


def _json(capsys: pytest.CaptureFixture[str], root: str, *flags: str) -> Any:
    return json.loads(_status(capsys, root, "--json", *flags))


def test_runs_are_listed_the_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    day = record_day(root, 3)
    unfinished: dict[str, Any] = {"ended": None, "metrics": {}, "blessed": None, "pushed_path": None}
    dead = this_process() | {"started": "another"}
    write_run(root, run_of(day, 3, state="running", process=dead, **unfinished))
    rows = [line.split("  ") for line in _status(capsys, root).splitlines() if "run-" in line]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[:3] for row in cells] == [
        ["run-3", "span 3", "dead: process ended"],
        ["run-2", "span 2", "done"],
        ["run-1", "span 1", "done"],
    ]
    assert cells[0][4:] == ["-", "3, version 2", "-", "-", "-"]
    assert cells[1][4:] == ["1:00:00", "2, version 2", "0.2000", "yes", "1002"]
    assert [run["id"] for run in _json(capsys, root, "--limit", "2")["runs"]] == ["run-3", "run-2"]
    assert len(_json(capsys, root, "--limit", "0")["runs"]) == 3
    assert [run["dead"] for run in _json(capsys, root)["runs"]] == [True, False, False]
    assert _json(capsys, root)["now"] == {}


@pytest.mark.parametrize("place", ["local", "gs"])
def test_submitted_runs_are_done_or_failed_as_their_components_recorded(
    place: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket: Bucket | None = request.getfixturevalue("gcs") if place == "gs" else None
    root = str(tmp_path / "run") if bucket is None else f"{bucket.path}/run"
    day = record_day(root, 1, with_run=False)
    for number, run in enumerate(("good", "bad", "retried", "unknown")):
        started = f"2026-01-0{number + 2}T00:00:00+00:00"
        write_run(root, Run(id=run, started=started, trigger="submit", state="submitted", runner="vertex"))
    record_report(day, root, 1, run="good", ended="2026-01-02T01:00:00+00:00")
    record_report(day, root, 1, run="nightly", ended="2026-01-02T04:00:00+00:00")  # of a schedule: nobody submitted it
    failure = Failure("DataError", "no images")
    for run in ("bad", "retried"):
        record = Execution("CocoEvaluator", "failed", run=run, error=failure)
        write_execution(root, record, started=datetime.now(UTC))
    write_execution(root, Execution("CocoEvaluator", "done", run="retried"), started=datetime.now(UTC))
    runs = {run["id"]: run for run in _json(capsys, root)["runs"]}
    states = {"good": "done", "bad": "failed", "retried": "submitted", "unknown": "submitted", "nightly": "done"}
    assert {id_: run["state"] for id_, run in runs.items()} == states
    assert (runs["good"]["metrics"], runs["good"]["blessed"], runs["good"]["seconds"]) == ({"AP": 0.1}, True, 3600.0)
    assert (runs["good"]["pushed_path"], runs["good"]["push_state"]) == (day.pushed, "live")
    assert (runs["nightly"]["trigger"], runs["nightly"]["seconds"]) == ("not recorded", 26 * 3600.0)
    assert runs["bad"]["error"] == "CocoEvaluator: no images"


def test_versions_that_were_rolled_back_or_removed_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    publish_rollback(root, to=1001, refused=1002)
    assert "1002, rolled back" in _status(capsys, root)
    shutil.rmtree(f"{root}/serving/1001")
    assert [run["push_state"] for run in _json(capsys, root)["runs"]] == ["rolled back", "removed"]


def test_spans_of_dates_are_dates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    run = run_of(record_day(root, 1), 1)
    data = DataRead(source="/data/{YYYY}-{MM}-{DD}", span=20778)
    write_run(root, replace(run, id="dated", data=data))
    table = _status(capsys, root)
    assert "2026-11-21" in table
    assert "20778" not in table


def test_the_component_that_runs_now_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    day = record_day(root, 3)
    running = run_of(day, 3, state="running", ended=None)
    write_run(root, running)
    assert "Running now: run-3\n" in _status(capsys, root)
    write_run(root, replace(running, now="DetectionTrainer"))
    assert "Running now: run-3, in DetectionTrainer\n" in _status(capsys, root)
    assert _json(capsys, root)["now"] == {"run-3": ["DetectionTrainer"]}


def test_artifacts_whose_files_are_gone_or_changed_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(tmp_path)
    for name in ("kept", "changed", "gone"):
        model = Output(f"{root}/artifacts/{name}", "Model")
        write_text(f"{model.uri}/config.yaml", "a")
        files = entries_of([model])
        record = Execution("DetectionTrainer", "done", key="0" * 16, outputs={"model": [model]}, files=files)
        write_execution(root, record, started=datetime.now(UTC))
    write_text(f"{root}/artifacts/changed/config.yaml", "b")
    shutil.rmtree(f"{root}/artifacts/gone")
    artifacts = _json(capsys, root, "--artifacts")["artifacts"]
    assert [(one["node"], one["type"], one["state"]) for one in artifacts] == [
        ("DetectionTrainer", "Model", "live"),
        ("DetectionTrainer", "Model", "damaged"),
        ("DetectionTrainer", "Model", "missing"),
    ]


@pytest.mark.parametrize("place", ["local", "gs"])
def test_artifacts_are_those_recorded(
    place: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket: Bucket | None = request.getfixturevalue("gcs") if place == "gs" else None
    root = str(tmp_path / "run") if bucket is None else f"{bucket.path}/run"
    day = record_day(root, 1, with_run=False)
    assert {one["folder"] for one in _json(capsys, root, "--artifacts")["artifacts"]} == set(day[:4])
    assert day.model in _status(capsys, root), "a compiled pipeline has no records of runs"


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--root", "{tmp}/nowhere"], 1, "nowhere: no such folder. Name the run.root"),
        (["--root", "{tmp}"], 1, "no run was recorded here"),
        (["--root", "{tmp}", "--limit", "-1"], 2, "--limit -1: give a number"),
        (["--root", "s3://bucket"], 2, "--root"),
    ],
)
def test_what_cannot_be_shown_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, message: str
) -> None:
    assert pipeline_runner.main(["status", *(flag.format(tmp=tmp_path) for flag in flags)]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status", "--artifacts", "--root"], ["lineage"]])
def test_tfx_and_tensorflow_are_not_loaded(tmp_path: Path, command: list[str]) -> None:
    arguments = [*command, local_root(tmp_path)]
    code = (
        f"import pipeline_runner, sys; assert pipeline_runner.main({arguments}) == 0;"
        "print(set(sys.modules) & {'tfx', 'tensorflow', 'apache_beam', 'keras'}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize(
    ("kind", "content", "place"),
    [
        ("DetectionTrainer", "5", ""),
        ("DetectionTrainer", '{"component": "DetectionTrainer", "state": "perhaps"}', "state: "),
        ("DetectionTrainer", '{"component": "DetectionTrainer", "state": "done", "version": 2}', "version: "),
    ],
)
def test_a_wrong_record_is_named(
    kind: str, content: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = local_root(tmp_path)
    path = Path(root, "history", kind, f"{3:020d}-0.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    for arguments in (["status", "--artifacts", "--root", root], ["lineage", root]):
        assert pipeline_runner.main(arguments) == 1
        message = capsys.readouterr().err
        assert f"{kind}/{3:020d}-0.json: not a record of a run of this version: {place}" in message
        assert "Restore the file, or remove it" in message


@pytest.mark.parametrize("time", ["soon", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_run_of_no_known_time_is_the_oldest(time: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    record = Path(root, "history/runs/run-2.json")
    record.write_text(record.read_text().replace("2026-01-02T02:00:00+00:00", time))
    assert [run["id"] for run in _json(capsys, root)["runs"]] == ["run-1", "run-2"]
    assert time in _status(capsys, root)
