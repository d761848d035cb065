"""Records of runs: written at start and end, closed after a kill, taken up again."""

import json
import logging
import multiprocessing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from components.history.queries import History
from components.history.records import DataRead, Run
from components.history.store import config_path, read_run, write_run
from detection.storage.file_system import FolderLock
from detection.storage.files import is_file
from detection.storage.lock import lock_folder
from detection.storage.processes import this_process
from pipelines.runs.recorded_run import deciding_digest, new_id, recorded_run
from schemas.config.config import Config
from schemas.errors import CocoflowError, ConfigError, DataError
from tests.storage_emulator.fixture import Bucket

CONFIG = Config()
LONG_AGO = "2026-01-01T00:00:00+00:00"


@pytest.fixture(params=["local", pytest.param("gs", marks=pytest.mark.slow)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path)
    bucket: Bucket = request.getfixturevalue("gcs")
    return f"{bucket.path}/run"


def _record(root: str, run_id: str | None, use: FolderLock | None = None, **fields: Any) -> Any:
    return recorded_run(root, FolderLock(True) if use is None else use, run_id=run_id, config=CONFIG, **fields)


def _dead_process() -> dict[str, Any]:
    return this_process() | {"started": "another"}


def test_a_run_is_recorded_at_its_start_and_at_its_end(root: str) -> None:
    history = History(root)
    with _record(root, "monday", trigger="cron", data=DataRead("data", span=3)):
        started = read_run(root, "monday")
        assert started is not None
        assert (started.state, started.trigger, started.ended, started.attempt) == ("running", "cron", None, 1)
        assert started.data is not None
        assert started.data.span == 3
        assert not started.is_dead
    done = read_run(root, "monday")
    assert done is not None
    assert done.state == "done"
    began, ended = datetime.fromisoformat(done.started), datetime.fromisoformat(str(done.ended))
    assert began.tzinfo is not None
    assert done.seconds == pytest.approx((ended - began).total_seconds())
    assert is_file(config_path(root, str(done.config)))
    assert done.deciding == deciding_digest(CONFIG)
    assert history.runs() == [done]
    assert read_run(root, "tuesday") is None


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (DataError("no\nsuch data"), "failed", "no\\nsuch data"),
        (ValueError("bug"), "failed", "ValueError: bug"),
        (KeyboardInterrupt(), "interrupted", None),
    ],
)
def test_a_run_that_fails_says_why_and_is_taken_up_again(
    tmp_path: Path, error: BaseException, state: str, reason: str | None
) -> None:
    history = History(str(tmp_path))
    with pytest.raises(type(error)), _record(str(tmp_path), "a"):
        raise error
    record = read_run(str(tmp_path), "a")
    assert record is not None
    assert (record.state, record.error) == (state, reason)
    assert record.ended is not None
    with _record(str(tmp_path), "a") as again:
        assert (again.attempt, again.error) == (2, None)
    with (
        pytest.raises(CocoflowError, match=r"--run-id a: this run is done, since .*another id"),
        _record(str(tmp_path), "a"),
    ):
        pytest.fail("a run of this id is done")
    assert [record.attempt for record in history.runs()] == [2]


def test_the_next_run_closes_killed_ones(root: str) -> None:
    history = History(root)
    for name, state, process in (
        ("killed", "running", _dead_process()),
        ("other-machine", "running", {"process": 1, "host": "h"}),
        ("submitted", "submitted", _dead_process()),
    ):
        record = Run(id=name, state=state, started=LONG_AGO, process=process)
        write_run(root, record)
    assert [record.id for record in history.runs() if record.is_dead] == ["killed"]
    with _record(root, None, FolderLock(False)):
        states = {record.id: record.state for record in history.runs()}
        assert states | {"killed": "interrupted", "other-machine": "running", "submitted": "submitted"} == states
    with _record(root, "killed") as again:
        assert again.attempt == 2
    states = {record.id: record.state for record in history.runs()}
    assert states | {"killed": "done", "other-machine": "interrupted", "submitted": "submitted"} == states


def test_a_run_that_goes_on_is_not_taken_up(tmp_path: Path) -> None:
    """On a file system without locks, only the record tells of the other process."""
    record = Run(id="a", state="running", started=LONG_AGO, process=this_process())
    write_run(str(tmp_path), record)
    with (
        pytest.raises(CocoflowError, match=r"--run-id a: this run is still running, in process \d+ on "),
        _record(str(tmp_path), "a", FolderLock(False)),
    ):
        pytest.fail("the run goes on")
    assert read_run(str(tmp_path), "a") == record


def test_a_run_that_was_skipped_may_begin(root: str) -> None:
    data = DataRead(source="data/{SPAN}", span=3, input_fingerprint="f")
    record = Run(id="a", state="skipped", started=LONG_AGO, attempt=0, data=data, skipped="nothing changed")
    write_run(root, record)
    with _record(root, "other"):
        assert read_run(root, "a") == record, "not a killed run"
    with _record(root, "a") as run:
        assert (run.attempt, run.skipped) == (1, None)


def _lost() -> None:
    raise CocoflowError("another process has taken the folder over")


def test_a_run_that_lost_its_folder_writes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use = FolderLock(True)

    def lose() -> None:
        with _record(str(tmp_path), "a", use):
            monkeypatch.setattr(use, "require_held", _lost)
            _lost()

    with pytest.raises(CocoflowError, match="taken the folder over"):
        lose()
    record = read_run(str(tmp_path), "a")
    assert record is not None
    assert record.state == "running"


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "a b", "é", "a" * 101])
def test_an_id_is_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"--run-id .*: an id has letters"), _record(str(tmp_path), name):
        pytest.fail("no id")


def test_an_id_of_its_own_is_valid_and_new(tmp_path: Path) -> None:
    assert len({new_id() for _ in range(20)}) > 1
    assert read_run(str(tmp_path), new_id()) is None


def test_records_of_later_versions_are_read_and_damaged_ones_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history, folder = History(str(tmp_path)), tmp_path / "history" / "runs"
    write_run(str(tmp_path), Run(id="a", state="done", started=LONG_AGO))
    content = json.loads((folder / "a.json").read_text())
    (folder / "b.json").write_text(json.dumps(content | {"id": "b", "later": {"x": 1}, "started": "no time"}))
    (folder / "c.json").write_text(json.dumps({"id": "c"}))
    (folder / "d.json").write_text("{")
    caplog.set_level(logging.WARNING, "cocoflow")
    assert [record.id for record in history.runs()] == ["a", "b"]
    assert "c.json: not a record of a run of this version: state: Field required" in caplog.text
    assert "d.json: not a record of a run of this version: Invalid JSON" in caplog.text
    with pytest.raises(DataError, match=r"c\.json: not a record of a run"):
        read_run(str(tmp_path), "c")


def _hold(root: str, held: Any, end: Any) -> None:
    with lock_folder(root, instead="wait") as use, _record(root, "first", use):
        held.set()
        end.wait(60)


def test_a_killed_process_leaves_a_dead_record(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, end = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path), held, end))
    process.start()
    assert held.wait(60)
    history = History(str(tmp_path))
    [record] = history.runs()
    assert not record.is_dead
    process.kill()
    process.join()
    [record] = history.runs()
    assert (record.state, record.is_dead) == ("running", True)
