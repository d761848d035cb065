"""Folders of unfinished work: whose they are, and when they go."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from detection.storage import temporary_folder as temporary
from detection.storage.temporary_folder import remove_leftovers, temporary_folder

REPOSITORY = Path(__file__).resolve().parents[3]

UNFINISHED = """
import sys
from detection.storage.temporary_folder import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    (folder / "half").write_text("work")
    print("middle", flush=True)
    sys.stdin.read()
"""


def start(goal: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", UNFINISHED, str(goal)],
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


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    """What a killed process left in tmp_path / "here" for the goal "out"."""
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


def test_only_leftovers_of_the_named_goal_go(leftover: Path) -> None:
    for goal in ("other", "out2", "*", "ou?", "[o]ut"):
        assert remove_leftovers(leftover.parent, goal) == []
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
