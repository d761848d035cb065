"""TensorFlow's checkpoint files in a folder: names, state file, damaged checkpoints, leftovers of killed saves."""

import contextlib
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from detection.storage.files import link_file, list_files, walk_states
from detection.storage.paths import join, literal_path
from detection.weights.weight_source import READ_ERRORS
from schemas.errors import DataError

PREFIX = "ckpt"  # a checkpoint is ckpt-<step>.index and ckpt-<step>.data-<shard>-of-<shards>
STATE_FILE = "checkpoint"  # TensorFlow's list of the managed checkpoints
INDEX_FILES = f"{PREFIX}-*.index"  # pattern of the index files; each checkpoint has one
_FILE = re.compile(rf"{PREFIX}-(\d+)\.(index|data-\d+-of-\d+)")
_UNFINISHED = "_temp"  # suffix of TensorFlow's temporary folder of a checkpoint
_LEFTOVER = re.compile(rf"{PREFIX}-\d+{_UNFINISHED}|{STATE_FILE}\.tmp\w+")


def checkpoint_path(folder: str | Path, step: int) -> str:
    """Returns TensorFlow's prefix of the checkpoint after `step` steps; no file has this name."""
    return join(folder, f"{PREFIX}-{step}")


def step_of(path: str | Path) -> int:
    """Returns the step of a `checkpoint_path`."""
    return int(Path(path).name.removeprefix(f"{PREFIX}-"))


def checkpoint_steps(folder: str | Path) -> list[int]:
    """Lists the steps of the checkpoints in a local or remote folder, ascending.

    A checkpoint needs an index file, which is written last.
    """
    return sorted(step for step, kind in _files(folder) if kind == "index")


def checkpoint_versions(folder: str | Path) -> dict[int, int]:
    """Returns the versions of the checkpoints' index files by step; a rewritten file has another version."""
    matches = ((_FILE.fullmatch(name), state.version) for name, state in walk_states(folder).items())
    return {int(match[1]): version for match, version in matches if match and match[2] == "index"}


def files_of(folder: Path, step: int) -> list[Path]:
    """Lists the files of one checkpoint, the index last."""
    return [folder / name for name in _names_of(folder, step)]


def _names_of(folder: str | Path, step: int) -> list[str]:
    return sorted(f"{PREFIX}-{step}.{kind}" for number, kind in _files(folder) if number == step)


def link_checkpoint(folder: str | Path, step: int, destination: Path) -> None:
    """Links a checkpoint into a local folder, or copies it if it is remote or the file system has no hard links.

    A link is safe because TensorFlow never changes a checkpoint's files, only replaces them.

    Raises:
        FileNotFoundError: the checkpoint does not exist, or was removed meanwhile.
    """
    destination.mkdir(parents=True, exist_ok=True)
    names = _names_of(folder, step)
    if not names or not names[-1].endswith(".index"):
        raise FileNotFoundError(checkpoint_path(folder, step))
    for name in names:
        link_file(join(folder, name), destination / name)


def remove_checkpoint(folder: Path, step: int) -> None:
    """Removes the files of one checkpoint, the index first, so that a kill leaves no incomplete checkpoint."""
    for path in reversed(files_of(folder, step)):
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Removes leftovers of killed saves and removals: temporary files, and data without an index."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if _LEFTOVER.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.unlink()
    for step in {step for step, _ in _files(folder)} - set(checkpoint_steps(folder)):
        remove_checkpoint(folder, step)


def _files(folder: str | Path) -> list[tuple[int, str]]:
    """Lists (step, "index" or "data-...") of every checkpoint file."""
    matches = map(_FILE.fullmatch, list_files(folder))
    return [(int(match[1]), match[2]) for match in matches if match]


def listed_steps(folder: Path) -> list[int]:
    """Lists the steps in TensorFlow's state file; empty if the file cannot be read."""
    state = _read_state(folder)
    return [] if state is None else [step_of(path) for path in state.all_model_checkpoint_paths]


def remove_state(folder: Path) -> None:
    """Removes TensorFlow's state file, before checkpoints that it lists; the next training writes it anew."""
    (folder / STATE_FILE).unlink(missing_ok=True)


def write_state(folder: Path, damaged: Collection[int]) -> None:
    """Rewrites TensorFlow's state file to list the checkpoints in the folder, for example after a kill.

    An unlisted checkpoint is either newer than the listed ones, because its save was killed
    before the list was written, or it was kept by `keep_every_hours` and is no longer managed.

    Args:
        folder: folder of the checkpoints.
        damaged: steps of checkpoints that will be removed.
    """
    state = _read_state(folder)
    listed = listed_steps(folder)
    times = dict(zip(listed, state.all_model_checkpoint_timestamps, strict=False)) if state else {}
    valid = [step for step in checkpoint_steps(folder) if step not in damaged]
    managed = [step for step in valid if step in listed or step > max(listed, default=-1)]
    if not managed:
        (folder / STATE_FILE).unlink(missing_ok=True)
        return
    stamps = [times.get(step) or files_of(folder, step)[-1].stat().st_mtime for step in managed]
    tf.compat.v1.train.update_checkpoint_state(
        str(folder.absolute()),  # TensorFlow rewrites paths relative to a relative folder
        f"{PREFIX}-{managed[-1]}",
        all_model_checkpoint_paths=[f"{PREFIX}-{step}" for step in managed],
        all_model_checkpoint_timestamps=stamps,
        last_preserved_timestamp=state.last_preserved_timestamp if state else min(stamps) - 1.0,
    )


def _read_state(folder: Path) -> Any:
    try:
        state = tf.train.get_checkpoint_state(str(folder))
        _ = [step_of(path) for path in state.all_model_checkpoint_paths] if state else []
    except ValueError:  # includes binary files; for other garbage the state is None
        return None
    return state


class NewestCheckpoint(NamedTuple):
    """The checkpoint to resume from.

    step: step of the newest valid checkpoint; None: no checkpoint, or none that was written to its end.
    damaged: read errors of the damaged, newer checkpoints, by step.
    """

    step: int | None
    damaged: dict[int, str]


def find_damage(path: str | Path) -> str | None:
    """Reads a checkpoint completely, with TensorFlow's checksums; returns the read error, or None."""
    try:
        reader = tf.train.load_checkpoint(literal_path(path))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except READ_ERRORS as error:
        return str(getattr(error, "message", None) or error).strip().splitlines()[0]
    return None


def find_newest_valid(folder: Path) -> NewestCheckpoint:
    """Finds the checkpoint to resume from.

    Raises:
        DataError: all checkpoints are damaged, and some were complete before.
    """
    steps = sorted({*checkpoint_steps(folder), *listed_steps(folder)}, reverse=True)
    damaged: dict[int, str] = {}
    for step in steps:
        error = find_damage(checkpoint_path(folder, step))
        if error is None:
            return NewestCheckpoint(step, damaged)
        damaged[step] = error
    if not all(_is_unfinished(folder, step) for step in damaged):
        listed = "; ".join(f"{PREFIX}-{step}: {error}" for step, error in damaged.items())
        raise DataError(
            f"{folder}: no checkpoint can be read ({listed}). Restore one from a backup, "
            "or remove the folder to train from the start."
        )
    return NewestCheckpoint(None, damaged)


def _is_unfinished(folder: Path, step: int) -> bool:
    """Returns whether the writer of a damaged checkpoint was killed: TensorFlow writes the index in place.

    It removes the temporary folder afterwards.
    """
    path = checkpoint_path(folder, step)
    index = Path(f"{path}.index")
    return Path(f"{path}{_UNFINISHED}").is_dir() or (index.is_file() and index.stat().st_size == 0)
