"""Temporary files of a command, and what a kill leaves of them."""

import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from detection.storage.temporary import scratch_folder, scratch_tempdir
from schemas.errors import DataError

REPOSITORY = Path(__file__).resolve().parents[3]

# As Beam does for each pipeline.
KILLED = """
import os, signal, tempfile
from detection.storage.temporary import scratch_tempdir
with scratch_tempdir():
    tempfile.mkdtemp(prefix="beam-pipeline-temp")
    os.kill(os.getpid(), signal.SIGKILL)
"""

FORKED = """
import multiprocessing
from detection.storage.temporary import scratch_tempdir
with scratch_tempdir():
    process = multiprocessing.get_context("forkserver").Process(target=print, args=("done",))
    process.start()
    process.join()
"""


@pytest.fixture(autouse=True)
def tempdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    multiprocessing.util.get_temp_dir()  # of this process, outside of the folder under test
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_libraries_use_the_folder_and_leave_nothing(tempdir: Path) -> None:
    with scratch_tempdir() as folder:
        made = Path(tempfile.mkdtemp())
        child = subprocess.check_output(
            [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"], text=True
        )
        assert made.parent == Path(child.strip()) == folder
        assert folder.parent.parent == tempdir
        assert folder.parent.stat().st_mode & 0o077 == 0
        with scratch_folder() as inner:
            assert inner.is_relative_to(folder)
    assert list(tempdir.iterdir()) == []
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(tempdir)


def test_what_a_killed_command_left_goes_with_the_next_one(tempdir: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    assert subprocess.call([sys.executable, "-c", KILLED], env=environment) == -signal.SIGKILL
    [left] = tempdir.glob(".cocoflow*")
    assert list(left.glob("content/beam-pipeline-temp*"))
    with scratch_folder():
        assert not left.exists()


def test_a_forkserver_ends_without_an_error_after_the_folder_is_gone(tempdir: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", FORKED], check=False, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert list(tempdir.iterdir()) == []


def test_a_variable_that_was_not_set_is_not_set_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR")
    with scratch_tempdir():
        assert "TMPDIR" in os.environ
    assert "TMPDIR" not in os.environ


def test_a_place_that_cannot_be_written_is_named(tempdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tempdir / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tempdir / "file"))
    with pytest.raises(DataError, match="file/cocoflow: cannot write"), scratch_folder():
        pass
