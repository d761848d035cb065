"""What is said of a metadata database that a run cannot use; ML Metadata itself makes it here."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

import pipeline_runner
from detection.storage.atomic import write_json
from pipelines.folders import RunLayout
from pipelines.metadata_database import MetadataDatabase
from pipelines.runs.history import RunHistory
from pipelines.runs.metadata import check_metadata, metadata_failures_explained
from pipelines.runs.repair import repair
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError, DataError


def _store(path: Path) -> metadata_store.MetadataStore:
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(path)
    connection.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    return metadata_store.MetadataStore(connection)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("database") / "metadata.sqlite"
    _store(path).put_context_type(mlmd.ContextType(name="pipeline_run"))
    return path


@pytest.fixture
def layout(database: Path, tmp_path: Path) -> RunLayout:
    layout = RunLayout(load_config(None, [f"run.root={tmp_path}"]))
    shutil.copy(database, layout.metadata)
    write_json(Path(layout.artifacts, "CocoExampleGen", "examples", "1", "dataset.json"), {})
    return layout


def _sql(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()

    return change


def _cut(fraction: float) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(4096 * 3, len(content), 997):
        content[place] ^= 0x55
    path.write_bytes(content)


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "random bytes": (lambda path: path.write_bytes(os.urandom(20000)), "is damaged (file is not a database)"),
    "cut off": (_cut(0.5), "is damaged (database disk image is malformed)"),
    "cut off in the header": (_cut(0.0005), "is damaged ("),
    "bits flipped": (_flip, "is damaged ("),
    "older": (_sql("UPDATE MLMDEnv SET schema_version = 9"), "version 9 is older than library version"),
    "newer": (_sql("UPDATE MLMDEnv SET schema_version = 99"), "version 99 is greater than library version"),
    "a table lacks": (_sql("DROP TABLE Execution"), "does not fit the installed ML Metadata"),
    "a folder": (_replace_by_folder, "not a file"),
    "a pipe": (_replace_by_pipe, "not a file"),
}


def test_a_whole_database_and_a_new_folder_are_accepted(layout: RunLayout, tmp_path: Path) -> None:
    before = Path(layout.metadata).read_bytes()
    check_metadata(layout, MetadataDatabase.of_file(layout.metadata))
    assert Path(layout.metadata).read_bytes() == before
    new = RunLayout(load_config(None, [f"run.root={tmp_path / 'new'}"]))
    check_metadata(new, MetadataDatabase.of_file(new.metadata))
    Path(new.root).mkdir()
    Path(new.metadata).touch()  # of a run that was killed at once
    check_metadata(new, MetadataDatabase.of_file(new.metadata))


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["removed", "emptied"])
def test_a_lost_database_is_a_new_one_and_results_of_earlier_runs_are_set_aside(
    lose: Callable[[Path], object], layout: RunLayout
) -> None:
    lose(Path(layout.metadata))
    check_metadata(layout, MetadataDatabase.of_file(layout.metadata))
    repair(layout, MetadataDatabase.of_file(layout.metadata), ["CocoExampleGen"])
    [aside] = Path(layout.unregistered).iterdir()
    assert [path.relative_to(aside) for path in aside.rglob("*") if path.is_file()] == [
        Path("CocoExampleGen", "examples", "1", "dataset.json")
    ]
    check_metadata(layout, MetadataDatabase.of_file(layout.metadata))


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_database_that_cannot_be_used_is_named_with_the_way_out(
    damage: Callable[[Path], object], words: str, layout: RunLayout
) -> None:
    damage(Path(layout.metadata))
    with pytest.raises(DataError) as refused:
        check_metadata(layout, MetadataDatabase.of_file(layout.metadata))
    message = str(refused.value)
    assert message.startswith(f"{layout.metadata}: ")
    assert words in message
    if Path(layout.metadata).is_file():
        assert "or remove it: then the run starts with an empty history" in message
        assert f"moves the results of earlier runs to {layout.unregistered}" in message
        assert f"checkpoints below {layout.training}" in message


def test_who_has_locked_it_is_said_within_seconds(layout: RunLayout) -> None:
    code = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN EXCLUSIVE')\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, layout.metadata]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(CocoflowError, match=r"(process \d+ \('.*python.*|another process) has locked the run's"):
            check_metadata(layout, MetadataDatabase.of_file(layout.metadata))
        process.kill()
    check_metadata(layout, MetadataDatabase.of_file(layout.metadata))


def test_a_run_tells_it_before_it_does_anything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "val"):
        write_json(tmp_path / "data" / "annotations" / f"instances_{name}.json", {"images": [], "annotations": []})
    root = tmp_path / "run"
    root.mkdir()
    (root / "metadata.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    (root / "summary.json").write_text("of the run before")
    assert pipeline_runner.main(["run", "--data", str(tmp_path / "data"), "--set", f"run.root={root}"]) == 1
    captured = capfd.readouterr()
    assert captured.err.startswith(f"error: {root}/metadata.sqlite: the run's metadata database is damaged")
    assert captured.err.count("\n") == 1
    assert sorted(path.name for path in root.iterdir()) == ["history", "metadata.sqlite", "summary.json"]
    [record] = RunHistory(str(root)).read_all()
    assert record.state == "failed"
    assert captured.err.startswith(f"error: {record.error}")


def test_what_ml_metadata_meets_on_the_way_is_explained(layout: RunLayout) -> None:
    """The words are those of a full disk; who has them said is a trigger."""
    store = _store(Path(layout.metadata))
    _sql("CREATE TRIGGER full BEFORE INSERT ON Type BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END")(
        Path(layout.metadata)
    )

    def fail() -> None:
        try:
            store.put_context_type(mlmd.ContextType(name="node"))
        except Exception as error:
            raise RuntimeError("node failed") from error

    database = MetadataDatabase.of_file(layout.metadata)
    words = r"metadata\.sqlite: .* written: database or disk is full\. .*it reuses the finished"
    with (
        pytest.raises(CocoflowError, match=words),
        metadata_failures_explained(layout, database),
    ):
        fail()
    with (
        pytest.raises(ValueError, match="a bug"),
        metadata_failures_explained(layout, database),
    ):
        raise ValueError("a bug")
