"""Evaluating the checkpoints of a run from another process, as they are written."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from detection.training.checkpoints.files import (
    checkpoint_path,
    checkpoint_steps,
    files_of,
    find_damage,
    link_checkpoint,
)
from detection.training.validation.checkpoint_evaluator import CheckpointEvaluator

_LOGGER = logging.getLogger("cocoflow.follow")
_COPY = ".reading"


class Patience:
    """Limits the time without a new checkpoint.

    Args:
        seconds: max seconds without a new checkpoint.
        nap: seconds between looks.
        clock: returns the time in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        *,
        seconds: float,
        nap: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._nap = nap
        self._clock = clock
        self._sleep = sleep
        self._since = clock()

    def renew(self) -> None:
        """Restarts the time, when there is a new checkpoint."""
        self._since = self._clock()

    def wait(self) -> bool:
        """Waits for a nap; returns False, at once, if the time is over."""
        left = self._since + self._seconds - self._clock()
        if left <= 0:
            return False
        self._sleep(min(self._nap, left))
        return True


def follow_checkpoints(
    checkpoints: Path,
    evaluator: CheckpointEvaluator,
    *,
    folder: Path,
    is_last: Callable[[int], bool],
    patience: Patience,
    every_one: bool = False,
) -> bool:
    """Evaluates checkpoints as they are written.

    A checkpoint may be removed at any time: a copy is evaluated, made of links if the file
    system has them.

    Args:
        checkpoints: folder of a run's checkpoints.
        evaluator: evaluator of the checkpoints; it does not repeat evaluations in its history.
        folder: folder for copies.
        is_last: tells whether the run has ended with the checkpoint of a step.
        patience: limit of the time without a new checkpoint.
        every_one: evaluate all checkpoints in their order, not only the newest.

    Returns:
        Whether the run has ended, and its last checkpoint is evaluated; False if the time
        is over, or the folder was removed.

    Raises:
        DataError: see `CheckpointEvaluator.evaluate`.
    """
    evaluated = {entry.step for entry in evaluator.history()}
    seen = {step: stamp for step, stamp in _stamps(checkpoints).items() if step in evaluated}
    while True:
        stamps = _stamps(checkpoints)
        new = [step for step in sorted(stamps) if seen.get(step) != stamps[step]]
        if new:
            step = new[0] if every_one else new[-1]
            seen |= {step: stamps[step]} if every_one else stamps
            _evaluate_copy(checkpoints, step, evaluator, folder)
            patience.renew()
        elif stamps and is_last(max(stamps)):
            return True
        elif (seen and not checkpoints.is_dir()) or not patience.wait():
            return False


def _stamps(checkpoints: Path) -> dict[int, int]:
    """Returns the time at which each checkpoint was written last, by step."""
    stamps = {}
    for step in checkpoint_steps(checkpoints):
        try:
            stamps[step] = files_of(checkpoints, step)[-1].stat().st_mtime_ns
        except (FileNotFoundError, IndexError):  # removed meanwhile
            continue
    return stamps


def _evaluate_copy(checkpoints: Path, step: int, evaluator: CheckpointEvaluator, folder: Path) -> None:
    path = checkpoint_path(checkpoints, step)
    with _empty(folder / _COPY) as copy:
        try:
            link_checkpoint(checkpoints, step, copy)
        except FileNotFoundError:
            _LOGGER.info("%s was removed before it was read", path)
            return
        error = find_damage(checkpoint_path(copy, step))
        if error is not None:
            _LOGGER.warning("%s is left out, it cannot be read: %s", path, error)
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
