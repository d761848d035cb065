"""Runs that are killed in one component after the other, and run again under the same id."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.history.read import read_records
from pipelines.metadata_database import MetadataDatabase
from pipelines.runs.history import RunHistory
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
REAL = pytest.param(False, marks=[pytest.mark.extended, pytest.mark.e2e], id="real")  # minutes


@pytest.mark.parametrize("when", ["start", "end"])
@pytest.mark.parametrize("stubs", [pytest.param(True, id="stubs"), REAL])
def test_a_run_killed_in_each_component_finishes_and_repeats_nothing(
    *, stubs: bool, when: str, tmp_path: Path, digits: Path, call: ForkedCalls
) -> None:
    """At the start: with half an output. At the end: the outputs are whole, the model is pushed, but none is listed."""
    root, log = tmp_path / "run", tmp_path / "log"
    history = RunHistory(str(root))
    options = {"stubs": stubs, "log": str(log), "flags": ["--run-id", "mine", "--trigger", "test"]}
    for number, node in enumerate(NODES, start=1):
        assert call(RUN, str(root), str(digits), options | {"kill": [node, when]}) == -signal.SIGKILL
        [record] = history.read_all()
        assert (record.id, record.state, record.is_dead, record.attempt) == ("mine", "running", True, number)
        assert not (root / "summary.json").exists()
    assert call(RUN, str(root), str(digits), options) == 0

    assert Counter(lines(log)) == {f"{node} {word}": count for node in NODES for word, count in _COUNTS}
    [record] = history.read_all()
    assert (record.state, record.attempt, record.trigger, record.error) == ("done", len(NODES) + 1, "test", None)
    assert {name: state.state for name, state in record.components.items()} == {
        **dict.fromkeys(NODES, "reused"),
        "previous_blessed_model": "done",
        NODES[-1]: "done",
    }
    [version] = (root / "serving").iterdir()
    assert record.pushed_path == read_summary(root)["pushed_path"] == str(version)
    # A component that was killed after its record had been written is repeated, as TFX does not know of it.
    recorded = {node: [one.state for one in read_records(str(root), node)] for node in NODES}
    assert recorded == dict.fromkeys(NODES, ["done"] * (2 if when == "end" else 1))
    _require_no_trace(root)


_COUNTS = (("start", 2), ("end", 1))


def _require_no_trace(root: Path) -> None:
    """No execution is open, and each folder of an output belongs to an artifact."""
    from ml_metadata.proto import metadata_store_pb2 as mlmd

    store = MetadataDatabase.of_file(root / "metadata.sqlite").open(read_only=True)
    states = Counter(execution.last_known_state for execution in store.get_executions())
    assert states.keys() <= {mlmd.Execution.COMPLETE, mlmd.Execution.CACHED, mlmd.Execution.FAILED}
    assert states[mlmd.Execution.FAILED] == len(NODES)
    folders = {str(path) for path in (root / "artifacts").glob("*/*/*") if ".system" not in path.parts}
    assert folders == {artifact.uri for artifact in store.get_artifacts()}
    assert not list(root.glob("artifacts/*/.system/stateful_working_dir/*-*"))
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
    record = RunHistory(str(root)).read("mine")
    assert record is not None
    assert (record.state, record.error) == ("failed", "CocoEvaluator is broken")
    assert record.data is not None
    assert record.data.identity
    assert record.model == str(next((root / "artifacts/DetectionTrainer/model").iterdir()))
    states = {name: state.state for name, state in record.components.items()}
    assert (states["DetectionTrainer"], states["CocoEvaluator"]) == ("done", "failed")
    assert (record.evaluation, record.blessed, record.pushed_path) == (None, None, None)
    assert call(RUN, str(root), str(digits), options) == 0
    again = RunHistory(str(root)).read("mine")
    assert again is not None
    assert (again.state, again.attempt, again.error, again.model) == ("done", 2, None, record.model)
