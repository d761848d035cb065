"""Runs whose metadata TFX writes to a PostgreSQL server."""

from pathlib import Path

import pytest

from pipelines.metadata_database import MetadataDatabase
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError, ConfigError
from tests.pipelines.small_run import read_summary, run_pipeline
from tests.pipelines.stubbed_run import NODES
from tests.postgresql import PASSWORD, PASSWORD_VARIABLE, Server


def _database(root: Path, keys: tuple[str, ...]) -> MetadataDatabase:
    config = load_config(None, [f"run.root={root}", *keys])
    return MetadataDatabase(config.run.metadata, root=str(root), file="no file")


def _require_no_password(root: Path) -> None:
    texts = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    assert (root / "run.log").is_file()
    for word in ("cret's", PASSWORD, PASSWORD.replace('"', r"\"").replace("'", r"\'")):
        assert not [text for text in texts if word.encode() in text]


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
    with pytest.raises(CocoflowError, match=rf"(?s){message}.*Check that the server runs"):
        _database(tmp_path, (*postgresql.keys("wrong"), *changes)).open()
    assert capfd.readouterr().err == "", "what the library logs is told once"


def test_a_missing_password_is_named(postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE)
    with pytest.raises(ConfigError, match=f"password_env = {PASSWORD_VARIABLE}: there is no such environment variable"):
        _database(tmp_path, postgresql.keys("wrong")).open()
