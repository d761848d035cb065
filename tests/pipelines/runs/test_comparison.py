"""Whether a run would change anything since the newest finished one, and the record of one that would not."""

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from components.history.queries import History
from components.history.records import DataRead, Run
from components.history.store import read_run, write_run
from detection.storage.file_system import FolderLock
from pipelines.runs.comparison import (
    RunInputs,
    compare,
    data_name,
    find_data,
    newest_done,
    observe,
    plan_run,
    unsettled_data,
)
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError
from tests.components.coco_example_gen.data_set import write_data_set

DATA = DataRead(source="/data/{SPAN}", span=3, version=1, input_fingerprint="f")
INPUTS = RunInputs(DATA, "d")


def _run(folder: Path, inputs: RunInputs = INPUTS, **fields: Any) -> Run:
    (folder / "evaluation").mkdir(exist_ok=True)
    (folder / "evaluation/report.html").touch()
    record = Run(id="last", state="done", started="2026-11-23T03:00:00+00:00", data=inputs.data)
    return replace(record, **{"evaluation": str(folder / "evaluation"), "deciding": inputs.deciding} | fields)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (RunInputs(DATA, "other"), "the configuration changed since run last"),
        (RunInputs(replace(DATA, input_fingerprint="g"), "d"), "the files of the data changed since run"),
        (RunInputs(replace(DATA, input_fingerprint="g"), "e"), "the files of the data and the conf"),
        (RunInputs(replace(DATA, version=None), "d"), "span 3, version 1 is there, and run last trained on span 3"),
        (RunInputs(replace(DATA, span=4), "d"), "span 3, version 1 is there, and run last trained on"),
        (RunInputs(replace(DATA, input_fingerprint=None), "d"), "no run is done yet"),
    ],
)
def test_a_run_that_would_read_something_else_has_a_reason(tmp_path: Path, last: RunInputs, reason: str) -> None:
    record = _run(tmp_path, last)
    would_change, told = compare(INPUTS, record)
    assert would_change
    assert told.startswith(reason)


def test_a_run_that_would_read_the_same_has_none(tmp_path: Path) -> None:
    assert compare(INPUTS, None) == (True, "no run is done yet")
    # The record of a run names its Examples, too.
    made = replace(DATA, identity="i", examples="e", source="/data/{SPAN}/")
    record = _run(tmp_path, RunInputs(made, "d"))
    told = "neither span 3, version 1 nor the configuration changed since run last"
    assert compare(INPUTS, record) == (False, told)
    (tmp_path / "evaluation/report.html").unlink()
    assert compare(INPUTS, record) == (True, "the report of run last is missing")


@pytest.mark.parametrize(
    ("source", "span", "version", "name"),
    [
        ("/data/{YYYY}-{MM}-{DD}", 20778, None, "2026-11-21"),
        ("/data/{SPAN:3}", 0, None, "span 0"),
        ("/data", 0, None, "the data"),
        ('{"train": "/data/train.json"}', 0, None, "the data"),
        ('{"train": "/data/{SPAN}/v{VERSION}.json"}', 2, 5, "span 2, version 5"),
    ],
)
def test_data_is_named_as_its_paths_have_it(source: str, span: int, version: int | None, name: str) -> None:
    assert data_name(DataRead(source=source, span=span, version=version)) == name


def test_the_newest_run_counts_whose_inputs_are_known(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    assert newest_done(history, history.runs()) is None
    others: list[dict[str, Any]] = [{}, {"state": "failed"}, {"data": None}, {"deciding": None}, {"state": "skipped"}]
    for number, fields in enumerate(others):
        write_run(str(tmp_path), _run(tmp_path, id=f"r{number}", started=f"2026-11-23T0{number}:00:00+00:00", **fields))
    found = newest_done(history, history.runs())
    assert found is not None
    assert found.id == "r0"


class Skips:
    """A data set, a finished run on it, and `run --if-changed` in its folder."""

    def __init__(self, folder: Path) -> None:
        write_data_set(folder / "data", images=1)
        self.root = str(folder / "run")
        write_run(self.root, _run(folder, observe(self.config(), find_data(self.config()))[0]))

    def config(self, *assignments: str) -> Config:
        return load_config(None, [f"data.root={Path(self.root).parent}/data", f"run.root={self.root}", *assignments])

    def __call__(self, run_id: str | None = None, *assignments: str, settle: float = 0.0) -> str | None:
        config = self.config(*assignments)
        use = FolderLock(True)
        planned = plan_run(config, find_data(config), self.root, use, run_id=run_id, settle=settle, trigger="cron")
        return planned if isinstance(planned, str) else None

    def skipped(self) -> list[Run]:
        """The records of skipped runs, the newest first."""
        return [record for record in History(self.root).runs() if record.state == "skipped"]


@pytest.fixture
def skips(tmp_path: Path) -> Skips:
    return Skips(tmp_path)


def test_skipped_runs_on_the_same_data_leave_one_record(skips: Skips) -> None:
    reason = "neither the data nor the configuration changed since run last"
    assert [skips(), skips(), skips(None, "train.log_every=7")] == [reason] * 3
    [record] = skips.skipped()
    assert (record.skipped, record.trigger, record.attempt) == (reason, "cron", 0)
    assert skips(None, "train.steps=7") is None
    assert skips("mine") == reason, "an id that was asked for"
    assert skips("mine") == reason
    assert [one.id for one in skips.skipped()] == ["mine", record.id]


def test_a_finished_run_is_not_skipped_afterwards(skips: Skips) -> None:
    with pytest.raises(CocoflowError, match=r"--run-id last: this run is done, since .*another id"):
        skips("last")
    done = read_run(skips.root, "last")
    assert done is not None
    assert done.state == "done"


def test_data_that_changes_is_left_alone(skips: Skips) -> None:
    changed = time.time() - 30
    for path in (Path(skips.root).parent / "data").rglob("*.*"):
        os.utime(path, (changed, changed))
    for path in (Path(skips.root).parent / "data").rglob("*.json"):
        path.write_text(path.read_text() + " ")
        os.utime(path, (changed, changed))
    told = skips(settle=60.0)
    assert told is not None
    assert re.fullmatch(r"the data may still be written: a file changed 3\d s ago, less than --settle 60", told)
    assert skips(settle=20.0) is None
    assert skips(settle=60.0) is not None
    assert len(skips.skipped()) == 1, "one record for both"


def test_data_that_is_not_there_yet_is_waited_for_while_it_changes(skips: Skips) -> None:
    data = Path(skips.root).parent / "data"
    for path in data.rglob("*.json"):
        path.unlink()
    assert unsettled_data(skips.config(), 60.0) is not None
    by_span = load_config(None, [f"data.root={data.parent}/da-{{SPAN}}"])
    assert unsettled_data(by_span, 60.0) is not None
    for root in ("/no/{SPAN}", "/no", f"{data}/no", f"{data}/no/{{SPAN}}"):
        assert unsettled_data(load_config(None, [f"data.root={root}"]), 60.0) is None, "what lies beside it is not"
    for path in data.rglob("*"):
        os.utime(path, (0, 0))
    assert unsettled_data(skips.config(), 60.0) is None


def test_the_program_tells_it_before_tfx_is_loaded(
    skips: Skips, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipelines.runs.execute._run_pipeline", None)
    arguments = ["run", "--if-changed", "--data", f"{Path(skips.root).parent}/data", "--set", f"run.root={skips.root}"]
    monkeypatch.setattr("pipelines.runs.comparison.deciding_digest", lambda config: "d")
    last = read_run(skips.root, "last")
    assert last is not None
    write_run(skips.root, replace(last, deciding="d"))
    assert pipeline_runner.main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == "nothing to do: neither the data nor the configuration changed since run last\n"
    assert [record.trigger for record in skips.skipped()] == ["command"]
    assert not Path(skips.root, "summary.json").exists()
