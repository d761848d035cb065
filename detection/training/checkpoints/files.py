"""TensorFlow's checkpoint files in a folder: their names, which there are, what killed saves left."""

import contextlib
import os
import re
import shutil
from pathlib import Path

PREFIX = "ckpt"  # a checkpoint is ckpt-<step>.index and ckpt-<step>.data-<shard>-of-<shards>
STATE_FILE = "checkpoint"  # TensorFlow's list of the newest ones
_FILE = re.compile(rf"{PREFIX}-(\d+)\.(index|data-\d+-of-\d+)")
_LEFTOVER = re.compile(rf"{PREFIX}-\d+_temp|{STATE_FILE}\.tmp\w+")


def checkpoint_path(folder: Path, step: int) -> str:
    """The name that TensorFlow knows the checkpoint after `step` steps by; it is no file."""
    return str(folder / f"{PREFIX}-{step}")


def step_of(path: str | Path) -> int:
    """Inverse of `checkpoint_path`."""
    return int(Path(path).name.removeprefix(f"{PREFIX}-"))


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, ascending: those with an index, which is written last."""
    return sorted(step for step, kind in _files(folder) if kind == "index")


def files_of(folder: Path, step: int) -> list[Path]:
    """The files of one checkpoint, the index last."""
    names = [f"{PREFIX}-{step}.{kind}" for number, kind in _files(folder) if number == step]
    return [folder / name for name in sorted(names)]


def link_checkpoint(folder: Path, step: int, goal: Path) -> None:
    """Puts a checkpoint into another folder too, as hard links where the file system has them.

    TensorFlow never writes into a checkpoint's files again, it replaces them.

    Raises:
        FileNotFoundError: it is not there, or was removed meanwhile.
    """
    goal.mkdir(parents=True, exist_ok=True)
    files = files_of(folder, step)
    if not files or files[-1].suffix != ".index":
        raise FileNotFoundError(checkpoint_path(folder, step))
    for path in files:
        copy = goal / path.name
        copy.unlink(missing_ok=True)
        try:
            os.link(path, copy)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copy2(path, copy)


def remove_checkpoint(folder: Path, step: int) -> None:
    """Removes the files of one checkpoint, the index first: without it there is none."""
    for path in reversed(files_of(folder, step)):
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Removes what killed saves and removals left: temporary files, and data without an index."""
    for path in _entries(folder):
        if _LEFTOVER.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.unlink()
    for step in {step for step, _ in _files(folder)} - set(checkpoint_steps(folder)):
        remove_checkpoint(folder, step)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _files(folder: Path) -> list[tuple[int, str]]:
    """(step, "index" or "data-...") of every checkpoint file."""
    matches = (_FILE.fullmatch(path.name) for path in _entries(folder))
    return [(int(match[1]), match[2]) for match in matches if match]
