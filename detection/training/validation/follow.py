"""Evaluates the checkpoints of a run from another process, as they are written."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from detection.storage.files import is_dir
from detection.training.checkpoints.files import checkpoint_path, checkpoint_versions, find_damage, link_checkpoint
from detection.training.validation.checkpoint_evaluator import CheckpointEvaluator

_LOGGER = logging.getLogger("cocoflow.follow")
COPIES = ".reading"  # folder for the checkpoint being evaluated


class Patience:
    """Limits the time without a new checkpoint.

    Args:
        seconds: max seconds without a new checkpoint.
        poll_interval: seconds between checks for one.
        clock: returns the time in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        *,
        seconds: float,
        poll_interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._poll_interval = poll_interval
        self._clock = clock
        self._sleep = sleep
        self._since = clock()

    def renew(self) -> None:
        """Restarts the time after a new checkpoint."""
        self._since = self._clock()

    def wait(self) -> bool:
        """Waits until the next check; returns False immediately if the time is over."""
        left = self._since + self._seconds - self._clock()
        if left <= 0:
            return False
        self._sleep(min(self._poll_interval, left))
        return True


def follow_checkpoints(
    checkpoints: str | Path,
    evaluator: CheckpointEvaluator,
    *,
    folder: Path,
    is_last: Callable[[int], bool],
    patience: Patience,
    every_one: bool = False,
    after_evaluation: Callable[[], None] = lambda: None,
) -> bool:
    """Evaluates checkpoints as they are written.

    A checkpoint may be removed at any time, so a copy is evaluated, made of hard links if the file
    system supports them.

    Args:
        checkpoints: local or remote folder of a run's checkpoints.
        evaluator: evaluator of the checkpoints; evaluations in its history are not repeated.
        folder: local folder for copies.
        is_last: returns whether the run has ended with the checkpoint of a step.
        patience: limit of the time without a new checkpoint.
        every_one: evaluate all checkpoints in order, not only the newest.
        after_evaluation: called after each evaluation.

    Returns:
        Whether the run has ended and its last checkpoint is evaluated; False if the time is over,
        or the folder was removed.

    Raises:
        DataError: a checkpoint cannot be evaluated, or the results cannot be written.
    """
    evaluated = {entry.step for entry in evaluator.history()}
    seen = {step: stamp for step, stamp in checkpoint_versions(checkpoints).items() if step in evaluated}
    while True:
        stamps = checkpoint_versions(checkpoints)
        new = [step for step in sorted(stamps) if seen.get(step) != stamps[step]]
        if new:
            step = new[0] if every_one else new[-1]
            seen |= {step: stamps[step]} if every_one else stamps
            _evaluate_copy(checkpoints, step, evaluator, folder)
            after_evaluation()
            patience.renew()
        elif stamps and is_last(max(stamps)):
            return True
        elif (seen and not is_dir(checkpoints)) or not patience.wait():
            return False


def _evaluate_copy(checkpoints: str | Path, step: int, evaluator: CheckpointEvaluator, folder: Path) -> None:
    path = checkpoint_path(checkpoints, step)
    with _empty(folder / COPIES) as copy:
        try:
            link_checkpoint(checkpoints, step, copy)
        except FileNotFoundError:
            _LOGGER.info("%s was removed before it was read", path)
            return
        error = find_damage(checkpoint_path(copy, step))
        if error is not None:
            _LOGGER.warning("%s is skipped because it cannot be read: %s", path, error)
            return
        evaluator.evaluate(copy, step)


@contextmanager
def _empty(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
