"""TensorFlow's state file: its list of the checkpoints in a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.training.checkpoints.files import PREFIX, STATE_FILE, checkpoint_steps, files_of, step_of


def listed_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that the state file lists; none where it cannot be read."""
    state = _read_state(folder)
    return [] if state is None else [step_of(path) for path in state.all_model_checkpoint_paths]


def write_state(folder: Path, faulty: Sequence[int]) -> None:
    """Makes TensorFlow's state file say what lies in the folder, whatever a kill or a fault has left in it.

    A checkpoint that it does not list is newer than those listed, its save having been
    killed before the list was written; or it was kept for its hours and is no longer managed.

    Args:
        folder: of the checkpoints.
        faulty: steps of checkpoints that are going to be removed.
    """
    state = _read_state(folder)
    listed = listed_steps(folder)
    times = dict(zip(listed, state.all_model_checkpoint_timestamps, strict=False)) if state else {}
    whole = [step for step in checkpoint_steps(folder) if step not in faulty]
    managed = [step for step in whole if step in listed or step > max(listed, default=-1)]
    if not managed:
        (folder / STATE_FILE).unlink(missing_ok=True)
        return
    stamps = [times.get(step) or _written_at(folder, step) for step in managed]
    tf.compat.v1.train.update_checkpoint_state(
        str(folder.absolute()),  # what is relative to a relative folder TensorFlow rewrites
        f"{PREFIX}-{managed[-1]}",
        all_model_checkpoint_paths=[f"{PREFIX}-{step}" for step in managed],
        all_model_checkpoint_timestamps=stamps,
        last_preserved_timestamp=state.last_preserved_timestamp if state else min(stamps) - 1.0,
    )


def _written_at(folder: Path, step: int) -> float:
    return files_of(folder, step)[-1].stat().st_mtime


def _read_state(folder: Path) -> Any:
    try:
        state = tf.train.get_checkpoint_state(str(folder))
        _ = [step_of(path) for path in state.all_model_checkpoint_paths] if state else []
    except ValueError:  # also what is not text; other garbage is None already
        return None
    return state
