"""Outputs that are made anew go on from the finished training's checkpoints, if those are whole."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from components.detection_trainer.finished_training import describe_training, restore_training
from schemas.artifacts import TRAINING_JSON

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
    describe_training(folder, name)
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
    (runs / ".13.tmp").mkdir()
    (working / "checkpoints.copy").mkdir()
    (working / "logs").mkdir()
    restore_training(working, runs, "mine")
    assert contents(working) == {path: text + " of run 10" for path, text in FILES.items()}


def test_what_a_killed_training_left_goes_first(tmp_path: Path, working: Path) -> None:
    finished(tmp_path / "runs" / "9")
    (working / "checkpoints").mkdir()
    restore_training(working, tmp_path / "runs", "mine")
    assert contents(working) == {}


def test_nothing_is_there(tmp_path: Path, working: Path) -> None:
    restore_training(working, tmp_path / "absent", "mine")
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
    restore_training(working, tmp_path / "runs", "mine")
    assert contents(working) == {}
