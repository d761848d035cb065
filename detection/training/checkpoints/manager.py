"""Saving and restoring a training run."""

import logging
from pathlib import Path

import tensorflow as tf

from detection.storage.atomic import fsync_path
from detection.storage.literal_paths import has_pattern_characters, literal_path
from detection.training.checkpoints.checkpoint_faults import find_fault, find_newest_whole
from detection.training.checkpoints.checkpoint_state import write_state
from detection.training.checkpoints.files import (
    STATE_FILE,
    checkpoint_path,
    checkpoint_steps,
    files_of,
    remove_checkpoint,
    remove_leftovers,
    step_of,
)
from detection.training.engine.state import TrainState
from schemas.errors import CocoflowError, DataError, disk_refusal

_LOGGER = logging.getLogger("cocoflow.trainer")


class Checkpoints:
    """The checkpoints of one run, `ckpt-<step>` in a folder.

    A kill at any moment leaves the newest one whole: TensorFlow writes beside and
    renames, the index last; it is flushed to the disk before older ones are removed.

    Args:
        state: what is saved and restored.
        folder: made where it is missing.
        writes: whether this process saves and tidies up; one of several does, the others read alone.
        keep: how many of the newest stay.
        keep_every_hours: of those that make room, one stays for every so many hours; None: none.
    """

    def __init__(
        self,
        state: TrainState,
        folder: Path,
        *,
        keep: int,
        keep_every_hours: float | None = None,
        writes: bool = True,
    ) -> None:
        self._checkpoint = state.checkpoint()
        self._state = state
        self._folder = folder
        self._keep = keep
        self._keep_every_hours = keep_every_hours
        self._writes = writes

    def save(self, step: int) -> None:
        """Saves the state after `step` steps; `restore_latest` comes before the first.

        Raises:
            CocoflowError: the disk does not take it.  What lies there of it is removed.
        """
        if not self._writes:
            return
        # TensorFlow's own callback, which removes old ones, comes after those given.
        options = tf.train.CheckpointOptions(experimental_write_callbacks=[_flush])
        try:
            self._manager.save(checkpoint_number=step, options=options)
        except (OSError, tf.errors.OpError) as error:
            refusal = disk_refusal(error)
            if refusal is None:
                raise
            self._tidy_up_failed(step)
            raise CocoflowError(
                f"{checkpoint_path(self._folder, step)}: the checkpoint cannot be written: {refusal}. "
                f"{self._kept()} Make room, or see that the disk may be written, and start the training again."
            ) from error

    def _tidy_up_failed(self, step: int) -> None:
        """Leaves whole checkpoints alone, and a list of them or none."""
        if find_fault(checkpoint_path(self._folder, step)) is not None:
            remove_checkpoint(self._folder, step)
        try:
            write_state(self._folder, [])
        except (OSError, tf.errors.OpError):
            (self._folder / STATE_FILE).unlink(missing_ok=True)
        remove_leftovers(self._folder)

    def _kept(self) -> str:
        steps = checkpoint_steps(self._folder)
        return f"Training will go on from step {steps[-1]}." if steps else "There is none before it."

    def restore_latest(self) -> int:
        """Restores the newest whole checkpoint if there is one; returns the steps done.

        Where this process writes, what cannot be read is removed, and what killed saves left.

        Raises:
            DataError: it is of another detector or optimizer; there are checkpoints, but none is whole.
        """
        folder = self._folder
        found = find_newest_whole(folder)
        for bad, fault in found.faults.items():
            _LOGGER.warning("%s cannot be read (%s): going back to the one before", checkpoint_path(folder, bad), fault)
        step = 0
        if found.step is not None:
            step = self._restore(checkpoint_path(folder, found.step))
        if self._writes:
            write_state(folder, list(found.faults))
            for bad in found.faults:
                remove_checkpoint(folder, bad)
            remove_leftovers(folder)
            if has_pattern_characters(folder):
                folder.mkdir(parents=True, exist_ok=True)  # a link to it has to lead somewhere
            self._manager = tf.train.CheckpointManager(
                self._checkpoint,
                literal_path(folder),
                max_to_keep=self._keep,
                keep_checkpoint_every_n_hours=self._keep_every_hours,
            )
        return step

    def _restore(self, path: str) -> int:
        try:
            self._checkpoint.restore(literal_path(path)).assert_consumed()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise DataError(
                f"{path}: does not fit this configuration ({str(error).splitlines()[0]}). "
                "Train into another folder, or with the model and optimizer that it was made with."
            ) from error
        step = int(self._state.step.numpy())  # int() alone refuses a mirrored variable
        _LOGGER.info("going on from step %d (%s)", step, path)
        return step


def _flush(path: str) -> None:
    """Waits until a checkpoint's files, and their names, are on the disk."""
    folder = Path(path).parent
    for file in files_of(folder, step_of(path)):
        fsync_path(file)
    fsync_path(folder)
