"""Saving and restoring a training run."""

import logging
from pathlib import Path

import tensorflow as tf

from detection.training.state import TrainState
from schemas.errors import DataError

_LOGGER = logging.getLogger("cocoflow.trainer")


class Checkpoints:
    """The checkpoints of one run, `ckpt-<step>` in a folder.

    Args:
        state: what is saved and restored.
        folder: made where it is missing.
        keep: how many of the newest stay.
    """

    def __init__(self, state: TrainState, folder: Path, *, keep: int) -> None:
        self._checkpoint = state.checkpoint()
        self._state = state
        self._manager = tf.train.CheckpointManager(self._checkpoint, str(folder), max_to_keep=keep)

    def save(self, step: int) -> None:
        """Saves the state after `step` steps."""
        self._manager.save(checkpoint_number=step)

    def restore_latest(self, folder: Path) -> int:
        """Restores the newest checkpoint in `folder` if there is one; returns the steps done.

        Args:
            folder: of the chief, whoever asks.

        Raises:
            DataError: it is of another detector or optimizer.
        """
        path = tf.train.latest_checkpoint(str(folder))
        if path is None:
            return 0
        try:
            self._checkpoint.restore(path).assert_consumed()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise DataError(
                f"{path}: does not fit this configuration ({str(error).splitlines()[0]}). "
                "Train into another folder, or with the model and optimizer that it was made with."
            ) from error
        step = int(self._state.step)
        _LOGGER.info("going on from step %d (%s)", step, path)
        return step
