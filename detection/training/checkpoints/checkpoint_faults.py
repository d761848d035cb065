"""Which checkpoints are whole."""

from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from detection.storage.literal_paths import literal_path
from detection.training.checkpoints.checkpoint_state import listed_steps
from detection.training.checkpoints.files import PREFIX, checkpoint_path, checkpoint_steps
from schemas.errors import DataError


class Found(NamedTuple):
    """What a folder holds to go on from.

    step: of the newest whole checkpoint; None where there is no checkpoint at all.
    faults: step -> what is wrong, of those that are newer but not whole.
    """

    step: int | None
    faults: dict[int, str]


def find_fault(path: str | Path) -> str | None:
    """Reads a checkpoint whole, against TensorFlow's checksums; returns what is wrong with it, or None."""
    try:
        reader = tf.train.load_checkpoint(literal_path(path))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError) as error:  # what its statuses become
        return str(getattr(error, "message", None) or error).strip().splitlines()[0]
    return None


def find_newest_whole(folder: Path) -> Found:
    """Finds the checkpoint to go on from.

    Raises:
        DataError: there are checkpoints, but none is whole.
    """
    steps = sorted({*checkpoint_steps(folder), *listed_steps(folder)}, reverse=True)
    faults: dict[int, str] = {}
    for step in steps:
        fault = find_fault(checkpoint_path(folder, step))
        if fault is None:
            return Found(step, faults)
        faults[step] = fault
    if faults:
        listed = "; ".join(f"{PREFIX}-{step}: {fault}" for step, fault in faults.items())
        raise DataError(
            f"{folder}: none of its checkpoints can be read ({listed}). Copy one back from elsewhere, "
            "or remove the folder to train from the start."
        )
    return Found(None, faults)
