"""Who may use a folder, whatever becomes of the one that used it before."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from detection.storage.file_system import LOCK_FILE
from detection.storage.lock import lock_folder
from schemas.errors import CocoflowError, DataError
from tests.folder_holder import folder_holder


def _use(folder: Path) -> None:
    with lock_folder(folder, instead="name another one") as held:
        assert held


def test_a_folder_is_made_held_and_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with lock_folder(folder, instead="wait"):
        assert json.loads((folder / LOCK_FILE).read_text())["process"] == os.getpid()
    assert list(folder.iterdir()) == []
    _use(folder)


def test_the_name_of_the_holder_replaces_a_longer_one(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text(json.dumps({"process": 1, "command": "x" * 5000}))
    with lock_folder(tmp_path, instead="wait"):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["process"] == os.getpid()


def test_the_second_is_told_at_once_who_holds_it(tmp_path: Path) -> None:
    with folder_holder(tmp_path, "--data", "my coco") as process, pytest.raises(CocoflowError) as refused:
        _use(tmp_path)
    words = str(refused.value)
    assert words.startswith(f"{tmp_path}: in use by process {process.pid} on {socket.gethostname()}, since 20")
    assert words.endswith("--data 'my coco'). Wait until it has ended, or name another one.")
    assert refused.value.exit_code == 1


def test_a_kill_frees_the_folder(tmp_path: Path) -> None:
    with folder_holder(tmp_path) as process:
        process.kill()
        process.wait()
        assert (tmp_path / LOCK_FILE).exists()
        _use(tmp_path)
    assert not (tmp_path / LOCK_FILE).exists()


def _open_files(process_id: str) -> set[str]:
    """Names of the files that a process has open; one may be closed while they are listed."""
    names = set()
    for descriptor in Path(f"/proc/{process_id}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.add(Path(os.readlink(descriptor)).name)
    return names


@pytest.mark.parametrize(
    "child",
    ["os.fork() or __import__('time').sleep(60)", "__import__('subprocess').Popen(['sleep', '60'], close_fds=False)"],
    ids=["forked", "started"],
)
def test_a_child_that_outlives_the_holder_does_not_hold_the_folder(child: str, tmp_path: Path) -> None:
    with folder_holder(tmp_path, meanwhile=child) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 1
        child_id = children[0]
        try:
            for _ in range(1000):
                if LOCK_FILE not in _open_files(child_id):
                    break
                time.sleep(0.01)  # a forked child closes it as the first thing that it does
            process.kill()
            process.wait()
            _use(tmp_path)
        finally:
            os.kill(int(child_id), 9)


def test_of_many_that_try_one_at_a_time_gets_in(tmp_path: Path) -> None:
    """Also while a holder ends, and its file goes away under those who have just opened it."""
    inside, most, entries = [0], [0], [0]

    def use() -> None:
        while entries[0] < 40:
            with contextlib.suppress(CocoflowError), lock_folder(tmp_path, instead="wait"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                entries[0] += 1
                time.sleep(0.0002)
                inside[0] -= 1

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    assert entries[0] >= 40


@pytest.mark.parametrize("content", [b"", b"\xff{", b"[]", b'{"process": []}', b"[" * 9000])
def test_a_holder_whose_name_cannot_be_read_holds_all_the_same(content: bytes, tmp_path: Path) -> None:
    with folder_holder(tmp_path):
        (tmp_path / LOCK_FILE).write_bytes(content)
        with pytest.raises(CocoflowError, match="in use by another process"):
            _use(tmp_path)
    (tmp_path / LOCK_FILE).write_bytes(content)
    _use(tmp_path)


def test_a_name_is_shown_without_control_characters(tmp_path: Path) -> None:
    with folder_holder(tmp_path, "\x1b[2J" + "x" * 500), pytest.raises(CocoflowError) as refused:
        _use(tmp_path)
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_file_system_without_locks_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_folder(tmp_path, instead="wait") as held:
        assert not held
    assert f"{tmp_path}: this file system has no locks (No locks available)" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_the_lock_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / LOCK_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(DataError, match=r"folder/\.lock: cannot write"):
        _use(tmp_path / "folder")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="file/below: cannot write"):
        _use(tmp_path / "file" / "below")
