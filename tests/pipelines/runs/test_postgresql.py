"""Runs whose metadata lie on a PostgreSQL server, which several folders share."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from pipelines.folders import RunLayout
from pipelines.metadata_database import MetadataDatabase
from pipelines.runs.metadata import check_metadata, metadata_failures_explained, open_run_store
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError, ConfigError
from tests.forked_calls import ForkedCalls, forked_calls
from tests.pipelines import stubbed_run
from tests.pipelines.small_run import read_summary, run_pipeline
from tests.pipelines.stubbed_run import NODES, lines
from tests.postgresql import PASSWORD, PASSWORD_VARIABLE, Server, end_connections

RUN = f"{stubbed_run.__name__}:run"


@pytest.fixture(scope="module")
def call(postgresql: Server) -> Iterator[ForkedCalls]:
    with forked_calls(*stubbed_run.MODULES) as calls:
        yield calls


def _database(root: Path, keys: tuple[str, ...]) -> MetadataDatabase:
    config = load_config(None, [f"run.root={root}", *keys])
    return MetadataDatabase(config.run.metadata, root=str(root), file="no file")


def _states(database: MetadataDatabase) -> Counter[str]:
    from ml_metadata.proto import metadata_store_pb2 as mlmd

    executions = open_run_store(database, read_only=True).executions()
    return Counter(mlmd.Execution.State.Name(execution.last_known_state) for execution in executions)


def _json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert pipeline_runner.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _require_no_password(root: Path) -> None:
    texts = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    assert (root / "run.log").is_file()
    for word in ("cret's", PASSWORD, PASSWORD.replace('"', r"\"").replace("'", r"\'")):
        assert not [text for text in texts if word.encode() in text]


@pytest.mark.slow
def test_folders_share_a_database_and_repair_their_own_runs(
    *, postgresql: Server, tmp_path: Path, digits: Path, call: ForkedCalls, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, log = tmp_path / "first", tmp_path / "second", tmp_path / "log"
    keys = postgresql.keys("shared")
    options = {"stubs": True, "log": str(log), "assignments": keys}
    killed = options | {"kill": ["DetectionTrainer", "end"]}
    assert call(RUN, str(first), str(digits), killed) == -signal.SIGKILL
    half = sorted((first / "artifacts" / "DetectionTrainer").rglob("saved_model.pb"))
    assert half

    assert call(RUN, str(second), str(digits), options) == 0
    assert _states(_database(first, keys)) == {"COMPLETE": 2, "RUNNING": 1}
    assert sorted((first / "artifacts" / "DetectionTrainer").rglob("saved_model.pb")) == half
    assert _states(_database(second, keys)) == {"COMPLETE": len(NODES) + 1}
    assert Counter(lines(log))["CocoExampleGen end"] == 2, "no folder reuses results of another"

    assert call(RUN, str(first), str(digits), options) == 0
    states = _states(_database(first, keys))
    assert (states["RUNNING"], states["FAILED"], states["CACHED"]) == (0, 1, 2)
    assert not half[0].exists()
    told = len(lines(log))
    assert call(RUN, str(first), str(digits), options) == 0
    assert len(lines(log)) == told, "everything is reused"
    assert not (first / "metadata.sqlite").exists()
    assert len(list((first / "serving").iterdir())) == 1
    _require_no_password(first)

    status = _json_of(capsys, "status", "--root", str(first), "--artifacts")
    assert [run["state"] for run in status["runs"]] == ["done", "done", "interrupted"]
    artifacts = Counter(artifact["node"] for artifact in status["artifacts"])
    assert artifacts == dict.fromkeys(NODES, 1) | {"DetectionTrainer": 2, "CocoEvaluator": 2}
    assert all(artifact["folder"].startswith(str(first)) for artifact in status["artifacts"])
    lineage = _json_of(capsys, "lineage", str(first))
    assert lineage["evaluated"]["baseline"] == [], "the other folder has an older blessed model"
    lineage = _json_of(capsys, "lineage", str(second))
    assert lineage["chain"][0]["model"].startswith(str(second))
    assert lineage["unknown"] == []


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.e2e
def test_a_whole_run(postgresql: Server, tmp_path: Path, digits: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run"
    for _ in range(2):
        assert run_pipeline(root, digits, assignments=postgresql.keys("whole")) == 0
    shown = capfd.readouterr().err
    for node in NODES:
        assert f"{node} reused" in shown
    assert read_summary(root)["blessed"] is True
    assert len(list((root / "serving").iterdir())) == 1
    _require_no_password(root)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["run.metadata.user=somebody"], 'cannot be reached: .*authentication failed for user "somebody"'),
        (["run.metadata.port=1"], "postgresql database wrong at .*:1: the run's metadata cannot be reached"),
        (["run.metadata.host=/nowhere"], "cannot be reached: could not connect to server"),
    ],
)
def test_a_server_that_refuses_is_explained(
    postgresql: Server, tmp_path: Path, changes: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = load_config(None, [f"run.root={tmp_path}", *postgresql.keys("wrong"), *changes])
    layout = RunLayout(config)
    with pytest.raises(CocoflowError, match=rf"(?s){message}.*Check that the server runs"):
        check_metadata(layout, MetadataDatabase(config.run.metadata, root=layout.root, file=layout.metadata))
    assert capfd.readouterr().err == "", "what the library logs is told once"


def test_a_server_that_ends_meanwhile_is_explained(postgresql: Server, tmp_path: Path) -> None:
    layout = RunLayout(load_config(None, [f"run.root={tmp_path}"]))
    database = _database(tmp_path, postgresql.keys("ended"))
    store = database.open()

    def fail() -> None:
        with metadata_failures_explained(layout, database):
            end_connections(postgresql, "ended")
            store.get_executions()

    with pytest.raises(CocoflowError, match=r"database ended at .*: the run's metadata cannot be .*: .*server runs"):
        fail()


def test_a_missing_password_is_named(postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE)
    with pytest.raises(ConfigError, match=f"password_env = {PASSWORD_VARIABLE}: there is no such environment variable"):
        _database(tmp_path, postgresql.keys("wrong")).open()
