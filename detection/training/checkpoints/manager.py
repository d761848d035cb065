"""Saving and restoring a training run, and loading a checkpoint's weights into a detector."""

import logging
from pathlib import Path

import tensorflow as tf

from detection.models.detector import Detector
from detection.storage.local import fsync_path
from detection.storage.paths import literal_path
from detection.training.checkpoints.files import (
    STATE_FILE,
    checkpoint_path,
    checkpoint_steps,
    files_of,
    find_damage,
    find_newest_valid,
    remove_checkpoint,
    remove_leftovers,
    step_of,
    write_state,
)
from detection.training.engine.state import TrainState
from detection.weights.weight_source import WeightSource, load_detector_weights
from schemas.config.train.optimization import WeightsKind
from schemas.errors import CocoflowError, DataError, disk_refusal

_LOGGER = logging.getLogger("cocoflow.trainer")


class Checkpoints:
    """The checkpoints of one run, `ckpt-<step>` in a folder.

    A kill at any moment leaves a valid checkpoint: TensorFlow writes temporary files and renames
    them, the index last; they are flushed to the disk before older checkpoints are removed.

    Args:
        state: the state to save and restore.
        folder: folder of the checkpoints; is created.
        writes: this process saves and cleans up; the other processes of a run only read.
        keep: number of newest checkpoints to keep.
        keep_every_hours: interval in hours of the older checkpoints to keep; None: keep no older ones.
    """

    def __init__(
        self, state: TrainState, folder: Path, *, keep: int, keep_every_hours: float | None = None, writes: bool = True
    ) -> None:
        self._checkpoint = state.checkpoint()
        self._state = state
        self._folder = folder
        self._keep = keep
        self._keep_every_hours = keep_every_hours
        self._writes = writes

    def save(self, step: int) -> None:
        """Saves the state after `step` steps; call `restore_latest` before.

        Raises:
            CocoflowError: the checkpoint cannot be written; an incomplete one is removed.
        """
        if not self._writes:
            return
        # TensorFlow's own callback, which removes old checkpoints, runs after these.
        options = tf.train.CheckpointOptions(experimental_write_callbacks=[_flush])
        try:
            self._manager.save(checkpoint_number=step, options=options)
        except (OSError, tf.errors.OpError) as error:
            refusal = disk_refusal(error)
            if refusal is None:
                raise
            self._clean_up_failed(step)
            raise CocoflowError(
                f"{checkpoint_path(self._folder, step)}: the checkpoint cannot be written: {refusal}. "
                f"{self._kept()} Free disk space, or check the disk's write permission, and start the training again."
            ) from error

    def _clean_up_failed(self, step: int) -> None:
        """Removes an incomplete checkpoint, and updates or removes the state file."""
        if find_damage(checkpoint_path(self._folder, step)) is not None:
            remove_checkpoint(self._folder, step)
        try:
            write_state(self._folder, [])
        except (OSError, tf.errors.OpError):
            (self._folder / STATE_FILE).unlink(missing_ok=True)
        remove_leftovers(self._folder)

    def _kept(self) -> str:
        steps = checkpoint_steps(self._folder)
        return f"Training will resume from step {steps[-1]}." if steps else "There is no earlier checkpoint."

    def restore_latest(self) -> int:
        """Restores the newest valid checkpoint, if there is one; returns the number of completed steps.

        If this process writes, it also removes damaged checkpoints and leftovers of killed saves.

        Raises:
            DataError: the checkpoint belongs to another detector or optimizer; or all checkpoints are
                damaged.
        """
        folder = self._folder
        newest = find_newest_valid(folder)
        instead = "starting from the beginning" if newest.step is None else "using the previous checkpoint"
        for damaged, error in newest.damaged.items():
            _LOGGER.warning("%s cannot be read (%s): %s", checkpoint_path(folder, damaged), error, instead)
        step = 0
        if newest.step is not None:
            step = self._restore(checkpoint_path(folder, newest.step))
        if self._writes:
            write_state(folder, newest.damaged)
            for damaged in newest.damaged:
                remove_checkpoint(folder, damaged)
            remove_leftovers(folder)
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
                "Train into another folder, or use the model and optimizer of the checkpoint."
            ) from error
        step = int(self._state.step.numpy())  # int() alone refuses a mirrored variable
        _LOGGER.info("resuming from step %s (%s)", f"{step:,}", path)
        return step


def _flush(path: str) -> None:
    """Flushes a checkpoint's files and their folder to the disk."""
    folder = Path(path).parent
    for file in files_of(folder, step_of(path)):
        fsync_path(file)
    fsync_path(folder)


def load_weights(detector: Detector, path: str | Path, *, weights: WeightsKind) -> None:
    """Loads the weights of a run's checkpoint into a detector.

    Args:
        detector: detector of the run's configuration.
        path: checkpoint of the run, as returned by `checkpoint_path`.
        weights: `ema`: the EMA weights, and the raw weights of variables without one;
            `raw`: all raw weights.

    Raises:
        DataError: the checkpoint cannot be read, or belongs to another detector.
    """
    source = WeightSource(path, weights="raw" if weights == "raw" else "auto")
    load_detector_weights(detector, source)
