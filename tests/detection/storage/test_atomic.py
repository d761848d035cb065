import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from detection.storage import atomic as atomic_files
from schemas.errors import DataError

REPOSITORY = Path(__file__).resolve().parents[3]


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
    atomic_files.write_bytes(tmp_path / "b", b"\x00\xff")
    atomic_files.write_text(tmp_path / "deep" / "er" / "t", "zwölf\r\n")
    atomic_files.write_json(str(tmp_path / "j"), {"name": "Käfer", "ids": [2, 1]})
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    assert (tmp_path / "deep/er/t").read_bytes() == "zwölf\r\n".encode()
    assert json.loads((tmp_path / "j").read_bytes()) == {"name": "Käfer", "ids": [2, 1]}
    assert "Käfer" in (tmp_path / "j").read_text(encoding="utf-8")
    assert names(tmp_path) == ["b", "deep", "j"]


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    atomic_files.write_text(tmp_path / "t", "a long first text")
    atomic_files.write_text(tmp_path / "t", "short")
    assert (tmp_path / "t").read_text() == "short"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        atomic_files.write_text(tmp_path / "file", "")
        with atomic_files.new_directory(tmp_path / "folder"):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750


def test_json_refuses_not_a_number_and_keeps_the_old_file(tmp_path: Path) -> None:
    atomic_files.write_json(tmp_path / "j", 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic_files.write_json(tmp_path / "j", float("nan"))
    assert (tmp_path / "j").read_text() == "1\n"


def test_a_folder_appears_only_when_it_is_done(tmp_path: Path) -> None:
    goal = tmp_path / "goal"
    with atomic_files.new_directory(goal) as beside:
        (beside / "sub").mkdir()
        (beside / "sub" / "file").write_text("x")
        assert beside.parent.parent == tmp_path
        assert beside.parent.name.startswith(".")
        assert names(tmp_path) == [beside.parent.name]
        assert not goal.exists()
    assert (goal / "sub" / "file").read_text() == "x"
    assert names(tmp_path) == ["goal"]


def test_a_failing_block_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_files.new_directory(tmp_path / "goal") as beside:
        (beside / "file").write_text(str(1 / 0))
    assert names(tmp_path) == []


def test_an_empty_folder_is_replaced_a_full_one_is_not(tmp_path: Path) -> None:
    goal = tmp_path / "goal"
    goal.mkdir()
    with atomic_files.new_directory(goal) as beside:
        (beside / "first").write_text("x")
    with (
        pytest.raises(DataError, match=r"goal: cannot write: Directory not empty\. Check that"),
        atomic_files.new_directory(goal) as beside,
    ):
        (beside / "second").write_text("x")
    assert names(goal) == ["first"]
    assert names(tmp_path) == ["goal"]


def test_an_error_of_the_block_itself_is_not_renamed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_files.new_directory(tmp_path / "goal"):
        (tmp_path / "absent").read_text()


def test_a_file_where_a_folder_should_be_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError, match=r"file/t: cannot write: (File exists|Not a directory)\. Check that .*file is a"
    ):
        atomic_files.write_text(tmp_path / "file" / "t", "x")
    with (
        pytest.raises(DataError, match=r"file/d: cannot write: .* or name another\."),
        atomic_files.new_directory(tmp_path / "file" / "d"),
    ):
        pass
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder: cannot write: Is a directory"):
        atomic_files.write_text(tmp_path / "folder", "x")
    assert names(tmp_path) == ["file", "folder"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_explained(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DataError, match="Permission denied"):
            atomic_files.write_text(tmp_path / "t", "x")
    finally:
        tmp_path.chmod(0o700)


def test_killed_while_filling_a_folder_leaves_no_visible_result(tmp_path: Path) -> None:
    kill_while(
        "import time\n"
        "from detection.storage.atomic import new_directory, require_writable\n"
        "with new_directory('goal') as beside:\n"
        "    (beside / 'file').write_text('half')\n"
        "    print('middle', flush=True)\n"
        "    time.sleep(600)\n",
        tmp_path,
    )
    assert [name for name in names(tmp_path) if not name.startswith(".")] == []
    assert len(names(tmp_path)) == 1
    with atomic_files.new_directory(tmp_path / "goal"):
        pass
    assert names(tmp_path) == ["goal"]


def test_killed_while_writing_a_file_keeps_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("old")
    kill_while(
        "import time\n"
        "from detection import atomic_files\n"
        "def stop(path):\n"
        "    print('middle', flush=True)\n"
        "    time.sleep(600)\n"
        "atomic_files.fsync_path = stop\n"
        "atomic_files.write_text('t', 'new')\n",
        tmp_path,
    )
    assert (tmp_path / "t").read_text() == "old"
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["t"]


def test_a_folder_is_probed_and_left_empty(tmp_path: Path) -> None:
    atomic_files.require_writable(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file/below: cannot write"):
        atomic_files.require_writable(tmp_path / "file" / "below")
