"""Atomic writing, and leftovers of killed processes: whose they are, and when they are removed."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detection.storage import atomic, temporary
from detection.storage.temporary import remove_leftovers, temporary_folder
from schemas.errors import DataError

REPOSITORY = Path(__file__).resolve().parents[3]
UNFINISHED = """
import sys
from detection.storage.temporary import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    (folder / "half").write_text("work")
    print("middle", flush=True)
    sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def kill_while(script: str, folder: Path) -> None:
    """Runs `script` in `folder` until it says it is in the middle, then kills it."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=folder,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"middle\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_files_hold_what_was_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    atomic.write_bytes(tmp_path / "b", b"\x00\xff")
    atomic.write_text(tmp_path / "deep" / "er" / "t", "zwölf\r\n")
    atomic.write_json(str(tmp_path / "j"), {"name": "Käfer", "ids": [2, 1]})
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    assert (tmp_path / "deep/er/t").read_bytes() == "zwölf\r\n".encode()
    assert json.loads((tmp_path / "j").read_bytes()) == {"name": "Käfer", "ids": [2, 1]}
    assert "Käfer" in (tmp_path / "j").read_text(encoding="utf-8")
    assert names(tmp_path) == ["b", "deep", "j"]


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "t", "a long first text")
    atomic.write_text(tmp_path / "t", "short")
    assert (tmp_path / "t").read_text() == "short"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        atomic.write_text(tmp_path / "file", "")
        with atomic.new_directory(tmp_path / "folder"):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750


def test_json_refuses_not_a_number_and_keeps_the_old_file(tmp_path: Path) -> None:
    atomic.write_json(tmp_path / "j", 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(tmp_path / "j", float("nan"))
    assert (tmp_path / "j").read_text() == "1\n"


def test_a_folder_appears_only_when_it_is_done(tmp_path: Path) -> None:
    destination = tmp_path / "destination"
    with atomic.new_directory(destination) as beside:
        (beside / "sub").mkdir()
        (beside / "sub" / "file").write_text("x")
        assert beside.parent.parent == tmp_path
        assert beside.parent.name.startswith(".")
        assert names(tmp_path) == [beside.parent.name]
        assert not destination.exists()
    assert (destination / "sub" / "file").read_text() == "x"
    assert names(tmp_path) == ["destination"]


def test_a_failing_block_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic.new_directory(tmp_path / "destination") as beside:
        (beside / "file").write_text(str(1 / 0))
    assert names(tmp_path) == []


def test_an_empty_folder_is_replaced_a_full_one_is_not(tmp_path: Path) -> None:
    destination = tmp_path / "destination"
    destination.mkdir()
    with atomic.new_directory(destination) as beside:
        (beside / "first").write_text("x")
    with (
        pytest.raises(DataError, match=r"destination: cannot write: not a new or empty folder\. Remove what"),
        atomic.new_directory(destination) as beside,
    ):
        (beside / "second").write_text("x")
    assert names(destination) == ["first"]
    assert names(tmp_path) == ["destination"]


def test_an_error_of_the_block_itself_is_not_renamed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic.new_directory(tmp_path / "destination"):
        (tmp_path / "absent").read_text()


def test_a_file_where_a_folder_should_be_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError, match=r"file/t: cannot write: (File exists|Not a directory) \(.*file\)\. Check that its folder"
    ):
        atomic.write_text(tmp_path / "file" / "t", "x")
    with (
        pytest.raises(DataError, match=r"file/d: cannot write: .* or name another\."),
        atomic.new_directory(tmp_path / "file" / "d"),
    ):
        pass
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder: cannot write: Is a directory"):
        atomic.write_text(tmp_path / "folder", "x")
    assert names(tmp_path) == ["file", "folder"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_explained(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DataError, match="Permission denied"):
            atomic.write_text(tmp_path / "t", "x")
    finally:
        tmp_path.chmod(0o700)


def test_killed_while_filling_a_folder_leaves_no_visible_result(tmp_path: Path) -> None:
    kill_while(
        "import time\n"
        "from detection.storage.atomic import new_directory, require_writable\n"
        "with new_directory('destination') as beside:\n"
        "    (beside / 'file').write_text('half')\n"
        "    print('middle', flush=True)\n"
        "    time.sleep(600)\n",
        tmp_path,
    )
    assert [name for name in names(tmp_path) if not name.startswith(".")] == []
    assert len(names(tmp_path)) == 1
    with atomic.new_directory(tmp_path / "destination"):
        pass
    assert names(tmp_path) == ["destination"]


def test_killed_while_writing_a_file_keeps_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("old")
    kill_while(
        "import time\n"
        "import os\n"
        "from detection.storage import atomic\n"
        "def stop(path):\n"
        "    print('middle', flush=True)\n"
        "    time.sleep(600)\n"
        "os.fsync = stop\n"
        "atomic.write_text('t', 'new')\n",
        tmp_path,
    )
    assert (tmp_path / "t").read_text() == "old"
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["t"]


def test_a_folder_is_probed_and_left_empty(tmp_path: Path) -> None:
    atomic.require_writable(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file/below: cannot write"):
        atomic.require_writable(tmp_path / "file" / "below")


def start(destination: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", UNFINISHED, str(destination)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"middle\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    """What a killed process left in tmp_path / "here" for the destination "out"."""
    kill(start(tmp_path / "here" / "out"))
    [folder] = (tmp_path / "here").iterdir()
    return folder


def test_a_living_process_keeps_its_folder_and_a_killed_one_does_not(tmp_path: Path) -> None:
    process = start(tmp_path / "out")
    try:
        [folder] = tmp_path.iterdir()
        assert remove_leftovers(tmp_path) == []
        with temporary_folder(tmp_path / "out"):
            assert len(names(tmp_path)) == 2
    finally:
        kill(process)
    assert names(tmp_path) == [folder.name]
    assert remove_leftovers(tmp_path) == [folder]
    assert names(tmp_path) == []


def test_a_look_at_a_new_folder_leaves_it_to_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may lock it for a moment, to see whether it is a leftover, before the writer does."""
    make = Path.mkdir

    def make_and_look(folder: Path, *given: Any, **more: Any) -> None:
        make(folder, *given, **more)
        if folder.parent == tmp_path:
            looking = os.open(folder, os.O_RDONLY)
            fcntl.flock(looking, fcntl.LOCK_EX)
            threading.Timer(0.1, os.close, [looking]).start()

    monkeypatch.setattr(Path, "mkdir", make_and_look)
    with temporary_folder(tmp_path / "out") as folder:
        assert remove_leftovers(tmp_path) == []
        assert folder.exists()


def test_a_killed_removal_is_ended_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker goes last: whatever is left is known for a leftover."""
    unlink = os.unlink
    removed: list[str] = []

    def die_at_the_third(path: Any, **given: Any) -> None:
        removed.append(os.path.basename(path))
        if len(removed) == 3:
            raise OSError(5, "killed")
        unlink(path, **given)

    with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder(tmp_path / "out"))
        for number in range(5):
            (folder / f"file-{number}").touch()
        patch.setattr(os, "unlink", die_at_the_third)
        stack.close()
    [left] = tmp_path.iterdir()
    assert len(list((left / "content").iterdir())) == 3
    assert remove_leftovers(tmp_path) == [left]
    assert names(tmp_path) == []


@pytest.mark.parametrize("marker", [None, "", '{"folder": '])
def test_a_folder_whose_writer_was_killed_at_once_goes_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str | None
) -> None:
    left = tmp_path / ".out.0123abcd.tmp"
    left.mkdir()
    if marker is not None:
        (left / ".unfinished").write_text(marker)
    monkeypatch.setattr(temporary.socket, "gethostname", lambda: "here")
    assert remove_leftovers(tmp_path) == []
    later = time.time() + temporary.SILENT_SECONDS + 60
    monkeypatch.setattr(temporary.time, "time", lambda: later)
    (left / "mine").touch()
    assert remove_leftovers(tmp_path) == []
    (left / "mine").unlink()
    assert remove_leftovers(tmp_path) == [left]


def test_only_leftovers_of_the_named_destination_go(leftover: Path) -> None:
    for destination in ("other", "out2", "*", "ou?", "[o]ut"):
        assert remove_leftovers(leftover.parent, destination) == []
    with temporary_folder(leftover.parent / "out"):
        assert not leftover.exists()


def _renamed(leftover: Path, name: str) -> None:
    leftover.rename(leftover.with_name(name))


def _without_marker(leftover: Path) -> None:
    (leftover / ".unfinished").unlink()


def _marker(text: str) -> Callable[[Path], object]:
    return lambda leftover: (leftover / ".unfinished").write_text(text)


def _linked(leftover: Path) -> None:
    mine = leftover.parent.parent / "mine"
    leftover.rename(mine)
    leftover.symlink_to(mine)


@pytest.mark.parametrize(
    "change",
    [
        lambda leftover: _renamed(leftover, ".out.mybackup.tmp"),
        lambda leftover: _renamed(leftover, ".out.0123abcd.tmp"),
        lambda leftover: _renamed(leftover, "out"),
        _without_marker,
        _linked,
        _marker(""),
        _marker("[1]"),
        _marker("[" * 100_000),
        _marker('{"folder": null}'),
        _marker("\udc80".encode("utf-8", "surrogateescape").decode("latin-1")),
    ],
)
def test_a_users_folder_that_looks_like_a_leftover_stays(leftover: Path, change: Callable[[Path], object]) -> None:
    change(leftover)
    before = sorted(leftover.parent.parent.rglob("*"))
    assert remove_leftovers(leftover.parent) == []
    with temporary_folder(leftover.parent / "out"):
        pass
    assert sorted(leftover.parent.parent.rglob("*")) == before


def test_another_machines_leftover_goes_after_an_hour_of_silence(
    leftover: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = json.loads((leftover / ".unfinished").read_text())
    (leftover / ".unfinished").write_text(json.dumps(marker | {"host": "elsewhere"}))
    assert remove_leftovers(leftover.parent) == []
    now = time.time()
    monkeypatch.setattr(temporary.time, "time", lambda: now + temporary.SILENT_SECONDS + 60)
    assert remove_leftovers(leftover.parent) == [leftover]


def test_the_block_may_take_the_folder_away(tmp_path: Path) -> None:
    with temporary_folder(tmp_path / "deep" / "out") as folder:
        assert names(folder) == []
        folder.rename(tmp_path / "deep" / "out")
    assert names(tmp_path / "deep") == ["out"]
    with pytest.raises(ZeroDivisionError), temporary_folder(tmp_path / "deep" / "out"):
        raise ZeroDivisionError
    assert names(tmp_path / "deep") == ["out"]
    shutil.rmtree(tmp_path / "deep")
    assert remove_leftovers(tmp_path / "deep") == []


def test_a_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    with temporary_folder(tmp_path / "out", mode=0o700) as folder:
        assert folder.parent.stat().st_mode & 0o077 == 0


def test_an_unfinished_file_may_lie_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with atomic.new_path(tmp_path / "shards" / "a", beside=tmp_path / "work", durable=False) as unfinished:
        unfinished.write_bytes(b"half")
        assert unfinished.parent == tmp_path / "work"
        assert names(tmp_path / "shards") == []
    assert (tmp_path / "shards" / "a").read_bytes() == b"half"
    nothing_written = atomic.new_path(tmp_path / "shards" / "b", beside=tmp_path / "work")
    with pytest.raises(DataError, match="cannot write"), nothing_written:
        pass
    assert (names(tmp_path / "shards"), names(tmp_path / "work")) == (["a"], [])
