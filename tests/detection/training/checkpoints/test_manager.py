"""Which checkpoints stay, and what becomes of those that kills and disks have spoilt."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management

from detection.training.checkpoints.files import (
    checkpoint_path,
    checkpoint_steps,
    link_checkpoint,
    remove_checkpoint,
    step_of,
)
from detection.training.checkpoints.manager import Checkpoints
from detection.training.engine.state import TrainState
from schemas.errors import CocoflowError, DataError
from tests.full_disk import no_file_above


class _State:
    """As much of a training state as is saved."""

    def __init__(self, value: float = 0.0, **others: tf.Variable) -> None:
        self.step = tf.Variable(0, dtype=tf.int64)
        self.weight = tf.Variable([value] * 1000)
        self.others = others

    def checkpoint(self) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(step=self.step, weight=self.weight, **self.others)


def _checkpoints(folder: Path, state: _State, keep: int = 3, **options: Any) -> Checkpoints:
    return Checkpoints(cast(TrainState, state), folder, keep=keep, **options)


def _save(folder: Path, *steps: int, keep: int = 3, **options: Any) -> None:
    state = _State()
    checkpoints = _checkpoints(folder, state, keep, **options)
    checkpoints.restore_latest()
    for step in steps:
        state.step.assign(step)
        state.weight.assign([step / 2] * 1000)
        checkpoints.save(step)


def _restore(folder: Path) -> tuple[int, float]:
    state = _State()
    step = _checkpoints(folder, state).restore_latest()
    assert step == int(state.step)
    return step, float(state.weight[-1])


def test_an_empty_or_absent_folder_starts_at_step_0(tmp_path: Path) -> None:
    assert _restore(tmp_path) == (0, 0.0)
    assert _restore(tmp_path / "absent") == (0, 0.0)
    assert not (tmp_path / "absent").exists()


def test_the_newest_stay_over_restarts(tmp_path: Path) -> None:
    _save(tmp_path, 10, 20, 30, 40)
    assert checkpoint_steps(tmp_path) == [20, 30, 40]
    _save(tmp_path, 50)
    assert checkpoint_steps(tmp_path) == [30, 40, 50]
    assert tf.train.latest_checkpoint(str(tmp_path)) == checkpoint_path(tmp_path, 50)
    assert _restore(tmp_path) == (50, 25.0)


def test_one_of_every_so_many_hours_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint an hour, one kept of each three; the process starts anew on the way."""
    start = time.time()
    clock = [start]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    for part in (range(1, 6), range(6, 12)):
        state = _State()
        checkpoints = _checkpoints(tmp_path, state, keep=1, keep_every_hours=2.5)
        checkpoints.restore_latest()
        for hour in part:
            clock[0] = start + 3600 * hour
            checkpoints.save(hour)
    assert checkpoint_steps(tmp_path) == [3, 6, 9, 11]


def _cut(suffix: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = next(folder.glob(f"ckpt-4.{suffix}"))
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


def _flip(suffix: str, at: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = next(folder.glob(f"ckpt-4.{suffix}"))
        content = bytearray(path.read_bytes())
        content[int(at * len(content))] ^= 4
        path.write_bytes(content)

    return damage


def _remove(suffix: str) -> Callable[[Path], None]:
    return lambda folder: next(folder.glob(f"ckpt-4.{suffix}")).unlink()


DAMAGES = {
    "index cut off": _cut("index"),
    "data cut off": _cut("data*"),
    "index empty": lambda folder: (folder / "ckpt-4.index").write_bytes(b""),
    "data empty": lambda folder: next(folder.glob("ckpt-4.data*")).write_bytes(b""),
    "no index": _remove("index"),
    "no data": _remove("data*"),
    "bit flipped in the index": _flip("index", 0.3),
    "bit flipped in the data": _flip("data*", 0.5),
    "bit flipped at the end of the data": _flip("data*", 0.999),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_spoilt_checkpoint_is_named_and_the_one_before_is_used(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _save(tmp_path, 2, 4)
    damage(tmp_path)
    with caplog.at_level(logging.INFO, logger="cocoflow.trainer"):
        assert _restore(tmp_path) == (2, 1.0)
    assert "ckpt-4 cannot be read (" in caplog.text
    assert "resuming from step 2" in caplog.text
    assert [path.name for path in tmp_path.glob("ckpt-4*")] == []
    assert tf.train.latest_checkpoint(str(tmp_path)) == checkpoint_path(tmp_path, 2)
    _save(tmp_path, 4, 6)
    assert checkpoint_steps(tmp_path) == [2, 4, 6]
    assert _restore(tmp_path) == (6, 3.0)


def test_where_all_are_spoilt_nothing_starts_anew_by_itself(tmp_path: Path) -> None:
    _save(tmp_path, 2, 4)
    for path in tmp_path.glob("*.data*"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"no checkpoint can be read \(ckpt-4: .*; ckpt-2: .*remove the folder"):
        _restore(tmp_path)
    assert checkpoint_steps(tmp_path) == [2, 4], "they are left for whoever looks into it"


@pytest.mark.parametrize(
    ("length", "has_temporary"), [(0, False), (0, True), (100, True)], ids=["empty", "as TensorFlow leaves it", "torn"]
)
def test_a_first_checkpoint_whose_index_was_being_written_is_as_if_there_were_none(
    length: int, has_temporary: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _save(tmp_path, 2)
    (tmp_path / "checkpoint").unlink()
    index = tmp_path / "ckpt-2.index"
    if has_temporary:
        (tmp_path / "ckpt-2_temp").mkdir()
        (tmp_path / "ckpt-2_temp" / "part-00000-of-00001.index").write_bytes(index.read_bytes())
    index.write_bytes(index.read_bytes()[:length])
    assert _checkpoints(tmp_path, _State(), writes=False).restore_latest() == 0
    assert index.exists()
    with caplog.at_level(logging.WARNING, logger="cocoflow.trainer"):
        caplog.clear()
        assert _restore(tmp_path) == (0, 0.0)
    [message] = caplog.messages
    assert message.startswith(f"{tmp_path}/ckpt-2 cannot be read (")
    assert message.endswith("): starting from the beginning")
    assert list(tmp_path.iterdir()) == []
    _save(tmp_path, 2)
    assert _restore(tmp_path) == (2, 1.0)


def test_a_torn_index_of_a_checkpoint_that_was_complete_is_no_fresh_start(tmp_path: Path) -> None:
    _save(tmp_path, 2)
    index = tmp_path / "ckpt-2.index"
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(DataError, match="no checkpoint can be read"):
        _restore(tmp_path)
    assert index.exists()


def test_a_list_whose_checkpoints_are_gone_is_no_fresh_start(tmp_path: Path) -> None:
    _save(tmp_path, 2)
    remove_checkpoint(tmp_path, 2)
    with pytest.raises(DataError, match="no checkpoint can be read"):
        _restore(tmp_path)


@pytest.mark.parametrize(
    "garbage", [b"", b"\x00\xff\xfe", b"model_checkpoint_path: ", b'model_checkpoint_path: "elsewhere"\n' * 2]
)
def test_the_files_count_where_the_state_file_is_garbage(garbage: bytes, tmp_path: Path) -> None:
    _save(tmp_path, 2, 4, 6)
    (tmp_path / "checkpoint").write_bytes(garbage)
    _save(tmp_path, 8)
    assert checkpoint_steps(tmp_path) == [4, 6, 8]
    (tmp_path / "checkpoint").unlink()
    assert _restore(tmp_path) == (8, 4.0)


def test_a_save_killed_before_it_was_listed_counts(tmp_path: Path) -> None:
    _save(tmp_path, 2)
    listed = (tmp_path / "checkpoint").read_bytes()
    _save(tmp_path, 4)
    (tmp_path / "checkpoint").write_bytes(listed)
    assert _restore(tmp_path) == (4, 2.0)
    _save(tmp_path, 6, 8, 10)
    assert checkpoint_steps(tmp_path) == [6, 8, 10], "the one that was not listed makes room like the others"


def test_what_killed_saves_left_is_removed(tmp_path: Path) -> None:
    _save(tmp_path, 2)
    (tmp_path / "ckpt-4_temp").mkdir()
    (tmp_path / "ckpt-4_temp" / "part-00000-of-00001.index").write_bytes(b"x")
    (tmp_path / "checkpoint.tmp0123456789abcdef").write_bytes(b"x")
    (tmp_path / "ckpt-4.data-00000-of-00001").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    assert _restore(tmp_path) == (2, 1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint",
        "ckpt-2.data-00000-of-00001",
        "ckpt-2.index",
        "notes.txt",
    ]


def test_another_worker_reads_the_chiefs_folder_and_changes_nothing(tmp_path: Path) -> None:
    _save(tmp_path, 2, 4)
    DAMAGES["data cut off"](tmp_path)
    (tmp_path / "ckpt-6_temp").mkdir()
    before = sorted(tmp_path.iterdir())
    checkpoints = _checkpoints(tmp_path, _State(), writes=False)
    assert checkpoints.restore_latest() == 2
    checkpoints.save(8)
    assert sorted(tmp_path.iterdir()) == before


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    _save(tmp_path, 2)
    state = _State(more=tf.Variable(1.0))
    with pytest.raises(DataError, match="ckpt-2: does not fit this configuration"):
        _checkpoints(tmp_path, state).restore_latest()


def test_a_relative_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("out") / "checkpoints"
    _save(folder, 2, 4)
    _save(folder, 6, 8)
    assert checkpoint_steps(folder) == [4, 6, 8]
    assert _restore(folder) == (8, 4.0)


@pytest.mark.parametrize("links", [True, False])
def test_a_checkpoint_is_linked_or_copied_and_outlives_its_removal(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise PermissionError("no links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    _save(tmp_path / "a", 2)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ckpt-2.index").write_bytes(b"of a link that was cut off")
    link_checkpoint(tmp_path / "a", 2, tmp_path / "b")
    remove_checkpoint(tmp_path / "a", 2)
    reader = tf.train.load_checkpoint(checkpoint_path(tmp_path / "b", 2))
    np.testing.assert_array_equal(reader.get_tensor("weight/.ATTRIBUTES/VARIABLE_VALUE"), np.ones(1000, np.float32))
    with pytest.raises(FileNotFoundError, match="ckpt-2"):
        link_checkpoint(tmp_path / "a", 2, tmp_path / "b")


def test_names_and_steps() -> None:
    assert step_of(checkpoint_path(Path("x"), 120)) == 120


@pytest.mark.parametrize("size", [0, 50, 1000, 3000], ids=lambda size: f"{size} bytes")
def test_a_disk_that_takes_no_checkpoint_keeps_those_before(size: int, tmp_path: Path) -> None:
    state = _State()
    checkpoints = _checkpoints(tmp_path, state)
    checkpoints.restore_latest()
    with no_file_above(size), pytest.raises(CocoflowError, match=r"ckpt-2: .*There is no earlier") as refused:
        checkpoints.save(2)
    assert "cannot be written: File too large" in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert _restore(tmp_path) == (0, 0.0)
    _save(tmp_path, 2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "checkpoint"}
    checkpoints = _checkpoints(tmp_path, _State())
    checkpoints.restore_latest()
    with no_file_above(size), pytest.raises(CocoflowError, match=r"ckpt-4: .*Training will resume from step 2\."):
        checkpoints.save(4)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "checkpoint"} == before
    assert _restore(tmp_path) == (2, 1.0)


def test_a_whole_checkpoint_that_could_not_be_listed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, f"{tmp_path}/checkpoint.tmp; No space left on device")

    _save(tmp_path, 2)
    checkpoints = _checkpoints(tmp_path, _State(5.0))
    checkpoints.restore_latest()
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_management, "update_checkpoint_state_internal", full)
        with pytest.raises(CocoflowError, match=r"No space left on device \(.*/checkpoint\.tmp\)\..* from step 4\."):
            checkpoints.save(4)
    assert checkpoint_steps(tmp_path) == [2, 4]
    assert _checkpoints(tmp_path, _State()).restore_latest() == 2  # the value that was saved
    assert tf.train.latest_checkpoint(str(tmp_path)) == checkpoint_path(tmp_path, 4)


def test_other_errors_of_a_save_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise tf.errors.InternalError(None, None, "a bug")

    monkeypatch.setattr(tf.train.CheckpointManager, "save", broken)
    with pytest.raises(tf.errors.InternalError, match="a bug"):
        _save(tmp_path, 2)
