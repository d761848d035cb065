"""Folders that trainings work in: what stays after a kill, and what goes."""

import os
import time
from pathlib import Path

import pytest

from components.detection_trainer.working_folder import remove_served, working_folder
from schemas.errors import CocoflowError
from tests.folder_holder import folder_holder

DAY = 24 * 3600.0


def _train(parent: Path, name: str, *, fails: bool = False) -> None:
    with working_folder(parent, name) as folder:
        (folder / "ckpt").write_text(name)
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
        _train(tmp_path, "a", fails=True)
    with working_folder(tmp_path, "a") as folder:
        assert (folder / "ckpt").read_text() == "a"


def test_what_is_published_stays_for_the_same_training_and_goes_with_the_next(tmp_path: Path) -> None:
    """Killed before TFX had registered the results, it is started again."""
    _train(tmp_path, "a")
    with working_folder(tmp_path, "a") as folder:
        assert (folder / "ckpt").read_text() == "a"
    _train(tmp_path, "b")
    assert _names(tmp_path) == ["b"]
    remove_served(tmp_path)
    assert _names(tmp_path) == []


def test_a_training_that_was_published_once_and_then_killed_is_kept(tmp_path: Path) -> None:
    _train(tmp_path, "a")
    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path, "a", fails=True)
    remove_served(tmp_path)
    assert _names(tmp_path) == ["a"]


def test_an_abandoned_training_goes_after_two_weeks(tmp_path: Path) -> None:
    for name in ("old", "young", "touched"):
        with pytest.raises(KeyboardInterrupt):
            _train(tmp_path, name, fails=True)
    _age(tmp_path / "old", 14.1)
    _age(tmp_path / "young", 13.9)
    _age(tmp_path / "touched", 30)
    (tmp_path / "touched" / "ckpt").touch()
    _train(tmp_path, "new")
    assert _names(tmp_path) == ["new", "touched", "young"]


def test_what_a_living_process_works_in_stays(tmp_path: Path) -> None:
    with folder_holder(tmp_path / "held") as process:
        _age(tmp_path / "held", 30)
        remove_served(tmp_path)
        assert _names(tmp_path) == ["held"]
        process.kill()
    _age(tmp_path / "held", 30)
    remove_served(tmp_path)
    assert _names(tmp_path) == []


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    with (
        folder_holder(tmp_path / "a") as process,
        pytest.raises(CocoflowError, match=f"a: in use by process {process.pid} .* another run_root"),
    ):
        _train(tmp_path, "a")
    assert not (tmp_path / "a" / "ckpt").exists()
    _train(tmp_path, "a")


def test_a_removal_that_was_killed_is_ended_and_never_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    def killed(path: Path, **options: bool) -> None:
        raise KeyboardInterrupt

    _train(tmp_path, "a")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_served(tmp_path)
    assert not (tmp_path / "a").exists()
    remove_served(tmp_path)
    assert _names(tmp_path) == []


def test_nothing_to_remove(tmp_path: Path) -> None:
    remove_served(tmp_path / "absent")
    (tmp_path / "file").write_text("mine")
    remove_served(tmp_path)
    assert _names(tmp_path) == ["file"]
