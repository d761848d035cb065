"""Folders that trainings work in: what stays after a kill, and what goes."""

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from components.detection_trainer.working_folder import (
    describe_training,
    remove_served,
    restore_training,
    working_folder,
)
from detection.storage import files
from detection.storage.atomic import write_text
from schemas.artifacts import TRAINING_JSON
from schemas.errors import CocoflowError
from tests.folder_holder import folder_holder
from tests.storage_emulator.fixture import Bucket

DAY = 24 * 3600.0


A, B, HELD, NEW, OLD, TOUCHED, YOUNG = [digit * 16 for digit in "ab01234"]


def _train(parent: Path, name: str, *, fails: bool = False) -> None:
    with working_folder(parent, name) as working:
        (working.local / "ckpt").write_text(name)
        if fails:
            raise KeyboardInterrupt


def _names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def _age(folder: Path, days: float) -> None:
    when = time.time() - days * DAY
    for path in (*folder.iterdir(), folder):
        os.utime(path, (when, when))


def test_a_killed_training_finds_what_it_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path, A, fails=True)
    with working_folder(tmp_path, A) as working:
        assert (working.local / "ckpt").read_text() == A


def test_what_is_published_stays_for_the_same_training_and_goes_with_the_next(tmp_path: Path) -> None:
    """Killed before TFX had registered the results, it is started again."""
    _train(tmp_path, A)
    with working_folder(tmp_path, A) as working:
        assert (working.local / "ckpt").read_text() == A
    _train(tmp_path, B)
    assert _names(tmp_path) == [B]
    remove_served(tmp_path)
    assert _names(tmp_path) == []


def test_a_training_that_was_published_once_and_then_killed_is_kept(tmp_path: Path) -> None:
    _train(tmp_path, A)
    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path, A, fails=True)
    remove_served(tmp_path)
    assert _names(tmp_path) == [A]


def test_an_abandoned_training_goes_after_two_weeks(tmp_path: Path) -> None:
    for name in (OLD, YOUNG, TOUCHED):
        with pytest.raises(KeyboardInterrupt):
            _train(tmp_path, name, fails=True)
    _age(tmp_path / OLD, 14.1)
    _age(tmp_path / YOUNG, 13.9)
    _age(tmp_path / TOUCHED, 30)
    (tmp_path / TOUCHED / "ckpt").touch()
    _train(tmp_path, NEW)
    assert _names(tmp_path) == [NEW, TOUCHED, YOUNG]


def test_what_a_living_process_works_in_stays(tmp_path: Path) -> None:
    with folder_holder(tmp_path / HELD) as process:
        _age(tmp_path / HELD, 30)
        remove_served(tmp_path)
        assert _names(tmp_path) == [HELD]
        process.kill()
    _age(tmp_path / HELD, 30)
    remove_served(tmp_path)
    assert _names(tmp_path) == []


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    with (
        folder_holder(tmp_path / A) as process,
        pytest.raises(CocoflowError, match=f"{A}: in use by process {process.pid} .* another run_root"),
    ):
        _train(tmp_path, A)
    assert not (tmp_path / A / "ckpt").exists()
    _train(tmp_path, A)


def test_a_removal_that_was_killed_is_ended_and_never_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    def killed(path: Path, **options: bool) -> None:
        raise KeyboardInterrupt

    _train(tmp_path, A)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_served(tmp_path)
    assert not (tmp_path / A).exists()
    remove_served(tmp_path)
    assert _names(tmp_path) == []


def test_nothing_to_remove(tmp_path: Path) -> None:
    remove_served(tmp_path / "absent")
    (tmp_path / "file").write_text("mine")
    remove_served(tmp_path)
    assert _names(tmp_path) == ["file"]


def test_folders_that_are_not_of_trainings_stay(tmp_path: Path) -> None:
    for name in ("backup", "my run.removed", A + "0"):
        (tmp_path / name).mkdir()
        _age(tmp_path / name, 30)
    remove_served(tmp_path)
    assert _names(tmp_path) == [A + "0", "backup", "my run.removed"]


FILES = {
    "checkpoints/checkpoint": "state",
    "checkpoints/ckpt-3.index": "index",
    "checkpoints/ckpt-3.data-00000-of-00001": "weights",
    "validation/best/ckpt-2.index": "best",
    "init_report.json": "{}",
    "logs/events.1": "points",
}


def finished(folder: Path, name: str = "mine", content: str = "") -> Path:
    """A ModelRun."""
    for path, text in (FILES | {"categories.json": "[]"}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text + content)
    describe_training(folder, name, "series")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def working(tmp_path: Path) -> Path:
    folder = tmp_path / "working"
    folder.mkdir()
    return folder


def test_the_newest_whole_one_of_the_same_name_is_taken(tmp_path: Path, working: Path) -> None:
    runs = tmp_path / "runs"
    finished(runs / "9", content=" of run 9")
    finished(runs / "10", content=" of run 10")
    finished(runs / "11", name="another")
    (runs / "12").mkdir()
    (working / "checkpoints.copy").mkdir()
    (working / "logs").mkdir()
    restore_training(working, [str(runs / name) for name in ("12", "11", "10", "9", "gone")], "mine")
    assert contents(working) == {path: text + " of run 10" for path, text in FILES.items()}


def test_what_a_killed_training_left_goes_first(tmp_path: Path, working: Path) -> None:
    finished(tmp_path / "runs" / "9")
    (working / "checkpoints").mkdir()
    restore_training(working, [str(tmp_path / "runs/9")], "mine")
    assert contents(working) == {}


def test_nothing_is_there(tmp_path: Path, working: Path) -> None:
    restore_training(working, [str(tmp_path / "absent")], "mine")
    assert contents(working) == {}


def _edit(text: str) -> Callable[[Path], object]:
    return lambda run: (run / TRAINING_JSON).write_text(text)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: (run / "checkpoints/ckpt-3.index").unlink(),
        lambda run: (run / "checkpoints/ckpt-3.index").write_text("indeX"),
        lambda run: (run / "validation/best/ckpt-2.index").unlink(),
        lambda run: (run / TRAINING_JSON).unlink(),
        _edit("{"),
        _edit("[]"),
        _edit(json.dumps({"training": "mine", "files": []})),
        _edit(json.dumps({"training": "mine", "files": {"checkpoints": "0"}})),
    ],
)
def test_a_damaged_one_is_not_taken(spoil: Callable[[Path], object], tmp_path: Path, working: Path) -> None:
    spoil(finished(tmp_path / "runs" / "9"))
    restore_training(working, [str(tmp_path / "runs/9")], "mine")
    assert contents(working) == {}


def test_a_remote_training_finds_what_was_pushed_before_a_kill(gcs: Bucket) -> None:
    parent = f"{gcs.path}/training"
    with contextlib.suppress(KeyboardInterrupt), working_folder(parent, A) as working:
        (working.local / "ckpt").write_text("pushed")
        working.push()
        (working.local / "ckpt").write_text("not pushed")
        raise KeyboardInterrupt
    assert files.walk_files(parent) == [f"{A}/ckpt"]
    with working_folder(parent, A) as working:
        assert (working.local / "ckpt").read_text() == "pushed"
    assert files.walk_files(parent) == [f"{A}/ckpt", f"{A}/published"]


def test_a_remote_training_that_fails_leaves_what_explains_it(gcs: Bucket) -> None:
    parent = f"{gcs.path}/training"

    def diverge() -> None:
        with working_folder(parent, A) as working:
            (working.local / "picture.png").write_text("why")
            raise CocoflowError(f"diverged: see {working.local / 'picture.png'}")

    with pytest.raises(CocoflowError, match=f"diverged: see {parent}/{A}/picture.png"):
        diverge()
    assert files.walk_files(parent) == [f"{A}/picture.png"]


def test_what_a_remote_training_published_goes_with_the_next(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = f"{gcs.path}/training"
    for name in (A, OLD):
        with contextlib.suppress(KeyboardInterrupt), working_folder(parent, name) as working:
            (working.local / "ckpt.index").write_text(name)
            working.push()
            raise KeyboardInterrupt
    with working_folder(parent, A):
        pass
    with working_folder(parent, B):
        pass
    assert files.list_folders(parent) == sorted([B, OLD])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 14.1 * DAY)
    remove_served(parent)
    assert files.list_folders(parent) == []


def test_a_remote_training_does_not_wait_for_itself(gcs: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    with working_folder(f"{gcs.path}/training", A) as working:
        (working.local / "ckpt.index").write_text(A)
    assert "sign of life" not in caplog.text


def test_a_remote_training_is_restored_from_its_finished_one(gcs: Bucket, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name, content in FILES.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(content)
    describe_training(run, A, B)
    for number in (1, 2):
        for name in files.walk_files(run):
            files.copy_file(run / name, f"{gcs.path}/model_run/{number}/{name}")
    write_text(f"{gcs.path}/model_run/2/checkpoints/ckpt-3.index", "damaged")
    runs = [f"{gcs.path}/model_run/{number}" for number in (2, 1)]
    restore_training(tmp_path / "other", runs, B)
    assert not (tmp_path / "other").exists()
    restore_training(tmp_path / "working", runs, A)
    assert (tmp_path / "working" / "checkpoints" / "ckpt-3.index").read_text() == "index"
