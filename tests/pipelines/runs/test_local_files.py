"""The metadata database and the log of a run whose root is remote."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detection.storage import files
from detection.storage.atomic import write_text
from detection.storage.gcs import lease
from detection.storage.lock import exclusive_use
from detection.storage.reading import read_bytes, read_text
from pipelines.folders import RunLayout
from pipelines.runs.local_files import local_files
from schemas.config.config import Config
from schemas.errors import CocoflowError, DataError
from tests.storage_emulator.fixture import Bucket


def _layout(root: str) -> RunLayout:
    return RunLayout(Config.model_validate({"run": {"root": root}}))


def _add(database: Path, row: int) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER)")
        connection.execute("INSERT INTO rows VALUES (?)", [row])
        connection.commit()


def _rows(path: str, folder: Path) -> list[int]:
    copy = folder / "copy.sqlite"
    copy.write_bytes(read_bytes(path))
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        return [row for (row,) in connection.execute("SELECT number FROM rows ORDER BY number")]


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _write(layout: RunLayout, *rows: int, text: str = "") -> None:
    with exclusive_use(layout.root, instead="") as use, local_files(layout, use) as local:
        for row in rows:
            _add(local.database, row)
        if text:
            with local.log.open("a") as log:
                log.write(text)


def test_of_a_local_run_they_are_where_they_belong(tmp_path: Path) -> None:
    layout = _layout(str(tmp_path))
    with exclusive_use(layout.root, instead="") as use, local_files(layout, use) as local:
        assert local == (tmp_path / "metadata.sqlite", tmp_path / "run.log")


def test_the_next_run_goes_on_where_the_last_one_ended(gcs: Bucket, tmp_path: Path) -> None:
    layout = _layout(f"{gcs.path}/run")
    _write(layout, 1, text="first\n")
    _write(layout, 2, text="second\n")
    assert _rows(layout.metadata, tmp_path) == [1, 2]
    assert read_text(layout.log) == "first\nsecond\n"
    assert files.walk_files(layout.root) == ["metadata/metadata.sqlite", "run.log"]


def test_a_change_is_copied_while_the_run_goes_on(gcs: Bucket, tmp_path: Path) -> None:
    layout = _layout(f"{gcs.path}/run")
    with exclusive_use(layout.root, instead="") as use, local_files(layout, use) as local:
        _add(local.database, 1)
        _wait_for(lambda: files.is_file(layout.metadata))
        assert _rows(layout.metadata, tmp_path) == [1]
        with contextlib.closing(sqlite3.connect(local.database, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO rows VALUES (2)")
            before = files.state(layout.metadata)
            time.sleep(1.5)  # longer than it takes to look
            assert files.state(layout.metadata) == before, "half a transaction is none"
            connection.execute("COMMIT")
        _wait_for(lambda: _rows(layout.metadata, tmp_path) == [1, 2])


def test_after_a_failure_they_are_there_as_well(gcs: Bucket, tmp_path: Path) -> None:
    layout = _layout(f"{gcs.path}/run")

    def fail() -> None:
        with exclusive_use(layout.root, instead="") as use, local_files(layout, use) as local:
            _add(local.database, 7)
            local.log.write_text("why")
            raise KeyError("a component failed")

    with pytest.raises(KeyError, match="a component failed"):
        fail()
    assert _rows(layout.metadata, tmp_path) == [7]
    assert read_text(layout.log) == "why"


def test_what_cannot_be_copied_fails_the_run_and_leaves_the_state_before(gcs: Bucket, tmp_path: Path) -> None:
    layout = _layout(f"{gcs.path}/run")
    _write(layout, 1)

    def work() -> None:
        with exclusive_use(layout.root, instead="") as use, local_files(layout, use) as local:
            gcs.emulator.fail(method="POST", path=gcs.name, status=403, times=0)
            _add(local.database, 2)

    with pytest.raises(DataError, match=r"metadata\.sqlite"):
        work()
    gcs.emulator.clear()
    assert _rows(layout.metadata, tmp_path) == [1]
    _write(layout, 3)
    assert _rows(layout.metadata, tmp_path) == [1, 3]


def test_a_run_that_lost_its_folder_writes_nothing_there(gcs: Bucket, tmp_path: Path) -> None:
    layout = _layout(f"{gcs.path}/run")
    _write(layout, 1)

    def work() -> None:
        with exclusive_use(layout.root, instead="") as use, local_files(layout, use) as local:
            other = tmp_path / "other.sqlite"
            _add(other, 9)
            files.copy_file(other, layout.metadata)  # by another process
            _add(local.database, 2)

    with pytest.raises(CocoflowError):
        work()
    assert _rows(layout.metadata, tmp_path) == [9]


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def test_a_run_whose_folder_another_process_has_taken_over_is_ended(
    gcs: Bucket, monkeypatch: pytest.MonkeyPatch, handler: Any
) -> None:
    """Also one that a script has started in the background, where shells have SIGINT ignored."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.5)
    layout = _layout(f"{gcs.path}/run")
    before = signal.signal(signal.SIGINT, handler)

    def work(database: Path) -> None:
        _add(database, 1)
        write_text(f"{layout.root}/.lock", "{}")  # by another process
        time.sleep(120)
        raise AssertionError("it went on")

    try:
        with pytest.raises(CocoflowError, match="another process has taken this folder over"):  # noqa: SIM117
            with exclusive_use(layout.root, instead="") as use, local_files(layout, use) as local:
                work(local.database)
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)


_KILLED = """
import os, signal, sys, time
from pathlib import Path
from typing import Any
from detection.storage import files
from detection.storage.gcs import lease
from detection.storage.atomic import write_text
from detection.storage.lock import exclusive_use
from pipelines.runs.local_files import local_files
from tests.pipelines.runs.test_local_files import _add, _layout
layout = _layout(sys.argv[1])
with exclusive_use(layout.root, instead="") as use, local_files(layout, use) as local:
    _add(local.database, 1)
    while not files.is_file(layout.metadata):
        time.sleep(0.05)
    _add(local.database, 2)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_costs_what_was_not_copied_and_does_not_keep_the_folder(gcs: Bucket, tmp_path: Path) -> None:
    layout = _layout(f"{gcs.path}/run")
    killed = subprocess.run([sys.executable, "-c", _KILLED, layout.root], env=dict(os.environ), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert _rows(layout.metadata, tmp_path) == [1]
    _write(layout, 3)
    assert _rows(layout.metadata, tmp_path) == [1, 3]
