"""Runs that are killed in one component after the other, and run again under the same id."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.history.queries import History
from components.history.records import Run
from components.history.store import read_executions
from tests.folder_holder import folder_holder
from tests.forked_calls import ForkedCalls, forked_calls
from tests.pipelines import stubbed_run
from tests.pipelines.small_run import read_summary
from tests.pipelines.stubbed_run import NODES, lines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def call() -> Iterator[ForkedCalls]:
    with forked_calls(*stubbed_run.MODULES) as calls:
        yield calls


RUN = f"{stubbed_run.__name__}:run"
# When each component is killed: one half of them at the start, the other at the end; or all alike.
MIXED = {node: ("start", "end")[number % 2] for number, node in enumerate(NODES)}
ALIKE = [dict.fromkeys(NODES, when) for when in ("start", "end")]


@pytest.mark.parametrize(
    ("stubs", "kills"),
    [
        pytest.param(True, MIXED, id="stubs"),
        *(pytest.param(stubs, kills, marks=pytest.mark.extended) for stubs in (True, False) for kills in ALIKE),
    ],
)
def test_a_run_killed_in_each_component_finishes_and_repeats_nothing(
    *, stubs: bool, kills: dict[str, str], tmp_path: Path, digits: Path, call: ForkedCalls
) -> None:
    """At the start: with half an output. At the end: the record is written, but TFX does not know of it."""
    root, log = tmp_path / "run", tmp_path / "log"
    history = History(str(root))
    options = {"stubs": stubs, "log": str(log), "flags": ["--run-id", "mine", "--trigger", "test"]}
    for number, (node, when) in enumerate(kills.items(), start=1):
        assert call(RUN, str(root), str(digits), options | {"kill": [node, when]}) == -signal.SIGKILL
        [record] = history.runs()
        assert (record.id, record.state, record.is_dead, record.attempt) == ("mine", "running", True, number)
        assert not (root / "summary.json").exists()
    assert call(RUN, str(root), str(digits), options) == 0

    counts = {"start": {"start": 2, "end": 1}, "end": {"start": 1}}
    assert Counter(lines(log)) == {
        f"{node} {word}": count for node, when in kills.items() for word, count in counts[when].items()
    }
    record = _run(root)
    assert (record.state, record.attempt, record.trigger, record.error) == ("done", len(NODES) + 1, "test", None)
    assert {name: state.state for name, state in record.components.items()} == {
        **dict.fromkeys(NODES, "reused"),
        "previous_blessed_model": "done",
        NODES[-1]: "done" if kills[NODES[-1]] == "start" else "reused",
    }
    [version] = (root / "serving").iterdir()
    assert record.pushed_path == read_summary(root)["pushed_path"] == str(version)
    recorded = {node: [one.state for one in read_executions(str(root), node)] for node in NODES}
    assert recorded == {node: ["done"] for node in NODES}
    _require_no_trace(root)


def test_a_run_killed_in_its_report_is_reported_once_more(tmp_path: Path, digits: Path, call: ForkedCalls) -> None:
    root, log = tmp_path / "run", tmp_path / "log"
    history = History(str(root))
    options = {"stubs": True, "log": str(log), "flags": ["--run-id", "mine"]}
    for when in ("start", "end"):
        assert call(RUN, str(root), str(digits), options | {"kill": ["RunReport", when]}) == -signal.SIGKILL
        [record] = history.runs()
        assert (record.state, record.is_dead, record.pushed_path) == ("running", True, None)
    assert call(RUN, str(root), str(digits), options) == 0

    executed = [line for line in lines(log) if not line.startswith("RunReport")]
    assert Counter(executed) == {f"{node} {word}": 1 for node in NODES for word in ("start", "end")}
    record = _run(root)
    assert (record.state, record.attempt, record.error) == ("done", 3, None)
    assert {name: record.components[name].state for name in NODES} == dict.fromkeys(NODES, "reused")
    [version] = (root / "serving").iterdir()
    assert record.pushed_path == read_summary(root)["pushed_path"] == str(version)
    assert len(read_executions(str(root), "RunReport")) == 2  # that of the second kill, and that of the whole run
    _require_no_trace(root)


def _run(root: Path) -> Run:
    """The only run, with its results."""
    history = History(str(root))
    [run] = history.runs()
    return history.with_results(run)


def _require_no_trace(root: Path) -> None:
    """Each folder of an output is in a record."""
    recorded = {
        output.uri
        for node in (*NODES, "previous_blessed_model", "RunReport")
        for record in read_executions(str(root), node)
        for listed in record.outputs.values()
        for output in listed
    }
    assert {str(path) for path in (root / "artifacts").glob("*/*/*")} == recorded
    assert not list(root.rglob("half"))


def test_a_finished_run_is_not_repeated_and_a_refused_one_leaves_no_record(
    tmp_path: Path, digits: Path, call: ForkedCalls
) -> None:
    root, log = tmp_path / "run", tmp_path / "log"
    options = {"stubs": True, "log": str(log), "flags": ["--run-id", "mine"]}
    assert call(RUN, str(root), str(digits), options) == 0
    records = {path: path.read_bytes() for path in (root / "history").rglob("*.json")}
    assert call(RUN, str(root), str(digits), options) == 1  # done
    with folder_holder(root):
        assert call(RUN, str(root), str(digits), options | {"flags": []}) == 1  # in use
    assert {path: path.read_bytes() for path in (root / "history").rglob("*.json")} == records
    assert Counter(lines(log)) == {f"{node} {word}": 1 for node in NODES for word in ("start", "end")}


def test_a_run_that_fails_records_how_far_it_came(tmp_path: Path, digits: Path, call: ForkedCalls) -> None:
    root = tmp_path / "run"
    options = {"stubs": True, "log": str(tmp_path / "log"), "flags": ["--run-id", "mine"]}
    assert call(RUN, str(root), str(digits), options | {"kill": ["CocoEvaluator", "error"]}) == 1
    record = _run(root)
    assert (record.state, record.error) == ("failed", "CocoEvaluator is broken")
    assert record.data is not None
    assert record.data.identity
    assert record.model == str(root / "artifacts/DetectionTrainer/model/mine.1")
    states = {name: state.state for name, state in record.components.items()}
    assert (states["DetectionTrainer"], states["CocoEvaluator"]) == ("done", "failed")
    assert (record.evaluation, record.blessed, record.pushed_path) == (None, None, None)
    assert call(RUN, str(root), str(digits), options) == 0
    again = _run(root)
    assert (again.state, again.attempt, again.error, again.model) == ("done", 2, None, record.model)
