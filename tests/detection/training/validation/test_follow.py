"""Following checkpoints that come, go and break meanwhile; naps are where the other process acts."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from detection.training.checkpoints.files import remove_checkpoint
from detection.training.validation import follow as follow_module
from detection.training.validation.follow import Patience, follow_checkpoints
from tests.detection.training.validation.scripted import Script, save_checkpoint

VALUES = dict(zip(range(10, 70, 10), (0.1, 0.4, 0.3, 0.5, 0.2, 0.6), strict=True))


class _Clock:
    """Time that passes in naps only; before each, the next of the other process's acts is done."""

    def __init__(self, acts: Sequence[Callable[[], object]] = ()) -> None:
        self.now = 0.0
        self._acts = list(acts)

    def patience(self, seconds: float = 100.0) -> Patience:
        return Patience(seconds=seconds, poll_interval=10.0, clock=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 10.0
        self.now += seconds
        if self._acts:
            self._acts.pop(0)()


def _follow(
    folder: Path, script: Script, clock: _Clock, *, last: int = 60, every_one: bool = False, seconds: float = 100.0
) -> bool:
    return follow_checkpoints(
        folder / "checkpoints",
        script.evaluator(folder / "follow"),
        folder=folder / "follow",
        is_last=lambda step: step >= last,
        patience=clock.patience(seconds),
        every_one=every_one,
    )


def _saves(folder: Path, *steps: int) -> list[Callable[[], object]]:
    return [lambda step=step: save_checkpoint(folder / "checkpoints", step) for step in steps]


def test_each_new_checkpoint_until_the_last(tmp_path: Path) -> None:
    script = Script(VALUES)
    assert _follow(tmp_path, script, _Clock(_saves(tmp_path, 10, 20, 30, 40, 50, 60)))
    assert script.asked == [10, 20, 30, 40, 50, 60]
    evaluator = script.evaluator(tmp_path / "follow")
    assert [entry.step for entry in evaluator.history()] == script.asked
    assert evaluator.best.step == 60
    assert not list((tmp_path / "follow").glob(".*"))


@pytest.mark.parametrize(("every_one", "expected"), [(False, [30, 60]), (True, [10, 20, 30, 40, 50, 60])])
def test_a_late_start_takes_the_newest_unless_asked(every_one: bool, expected: list[int], tmp_path: Path) -> None:
    for save in _saves(tmp_path, 10, 20, 30):
        save()
    saves = _saves(tmp_path, 40, 50, 60)
    script = Script(VALUES)
    assert _follow(tmp_path, script, _Clock([lambda: [save() for save in saves]]), every_one=every_one)
    assert script.asked == expected


def test_the_time_without_news_is_limited_and_each_news_renews_it(tmp_path: Path) -> None:
    def nothing() -> None:
        pass

    script, clock = Script(VALUES), _Clock([nothing, nothing, *_saves(tmp_path, 10), nothing, *_saves(tmp_path, 20)])
    assert not _follow(tmp_path, script, clock, seconds=35.0)
    assert script.asked == [10, 20]
    assert clock.now == 50.0 + 35.0


def test_started_again_it_goes_on(tmp_path: Path) -> None:
    assert not _follow(tmp_path, Script(VALUES), _Clock(_saves(tmp_path, 10, 20)))
    script = Script(VALUES)
    assert _follow(tmp_path, script, _Clock(_saves(tmp_path, 60)))
    assert script.asked == [60]
    assert [entry.step for entry in script.evaluator(tmp_path / "follow").history()] == [10, 20, 60]


def test_a_checkpoint_written_again_is_evaluated_again(tmp_path: Path) -> None:
    script = Script(VALUES)
    assert _follow(tmp_path, script, _Clock(_saves(tmp_path, 50, 40, 50, 60)))
    assert script.asked == [50, 40, 50, 60]


def test_a_checkpoint_removed_while_it_is_read_is_evaluated_all_the_same(tmp_path: Path) -> None:
    class Removing(Script):
        def __call__(self, path: str):  # type: ignore[no-untyped-def]
            if Path(path).name == "ckpt-20":
                remove_checkpoint(tmp_path / "checkpoints", 20)
            return super().__call__(path)

    script = Removing(VALUES)
    assert not _follow(tmp_path, script, _Clock(_saves(tmp_path, 10, 20)))
    best = script.evaluator(tmp_path / "follow").best
    assert best.step == 20
    assert Path(f"{best.path}.index").is_file()


def test_a_checkpoint_removed_before_it_is_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link = follow_module.link_checkpoint

    def too_late(folder: Path, step: int, destination: Path) -> None:
        if step == 10:
            remove_checkpoint(folder, step)
        link(folder, step, destination)

    monkeypatch.setattr(follow_module, "link_checkpoint", too_late)
    script = Script(VALUES)
    with caplog.at_level(logging.INFO, logger="cocoflow.follow"):
        assert _follow(tmp_path, script, _Clock(_saves(tmp_path, 10, 60)))
    assert script.asked == [60]
    assert "ckpt-10 was removed before it was read" in caplog.text


def test_a_spoilt_checkpoint_is_named_and_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def spoilt() -> None:
        save_checkpoint(tmp_path / "checkpoints", 10)
        next((tmp_path / "checkpoints").glob("ckpt-10.data*")).write_bytes(b"")

    script = Script(VALUES)
    assert _follow(tmp_path, script, _Clock([spoilt, *_saves(tmp_path, 60)]))
    assert script.asked == [60]
    assert "ckpt-10 is skipped because it cannot be read: " in caplog.text


def test_a_folder_that_is_removed_ends_it_at_once(tmp_path: Path) -> None:
    def remove() -> None:
        for path in (tmp_path / "checkpoints").iterdir():
            path.unlink()
        (tmp_path / "checkpoints").rmdir()

    clock = _Clock([*_saves(tmp_path, 10), remove])
    assert not _follow(tmp_path, Script(VALUES), clock, seconds=1e9)
    assert clock.now == 20.0
