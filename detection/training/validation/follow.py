"""Evaluating the checkpoints of a run from another process."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from detection.training.checkpoints.checkpoint_faults import find_fault
from detection.training.checkpoints.files import checkpoint_path, checkpoint_steps, files_of, link_checkpoint
from detection.training.validation.assessor import Assessor

_LOGGER = logging.getLogger("cocoflow.follow")
_COPY = ".reading"


class Patience:
    """Waiting in naps, up to a time without news.

    Args:
        seconds: that time.
        nap: seconds between looks.
        clock: seconds that pass.
        sleep: waits for seconds.
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
        """There is news: the time begins anew."""
        self._since = self._clock()

    def wait(self) -> bool:
        """Takes a nap; False, at once, where the time is over."""
        left = self._since + self._seconds - self._clock()
        if left <= 0:
            return False
        self._sleep(min(self._nap, left))
        return True


def follow_checkpoints(
    checkpoints: Path,
    assessor: Assessor,
    *,
    folder: Path,
    is_last: Callable[[int], bool],
    patience: Patience,
    every_one: bool = False,
) -> bool:
    """Assesses checkpoints as they come.

    A checkpoint may be removed at any time: what is evaluated is a copy, made of links
    where the file system has them.

    Args:
        checkpoints: folder that a run writes them to.
        assessor: keeps what is found; what it has assessed before is not assessed again.
        folder: for copies.
        is_last: whether the run has ended with the checkpoint of a step.
        patience: without a new checkpoint.
        every_one: all that are there in their order, not the newest only.

    Returns:
        Whether the run has ended, and its last checkpoint is assessed; False where the
        time is over, or the folder was removed.

    Raises:
        DataError: see `Assessor.assess`.
    """
    assessed = {entry.step for entry in assessor.entries()}
    seen = {step: stamp for step, stamp in _stamps(checkpoints).items() if step in assessed}
    while True:
        stamps = _stamps(checkpoints)
        new = [step for step in sorted(stamps) if seen.get(step) != stamps[step]]
        if new:
            step = new[0] if every_one else new[-1]
            seen |= {step: stamps[step]} if every_one else stamps
            _assess_copy(checkpoints, step, assessor, folder)
            patience.renew()
        elif stamps and is_last(max(stamps)):
            return True
        elif (seen and not checkpoints.is_dir()) or not patience.wait():
            return False


def _stamps(checkpoints: Path) -> dict[int, int]:
    """When each checkpoint was written: of those that are written again it changes."""
    stamps = {}
    for step in checkpoint_steps(checkpoints):
        try:
            stamps[step] = files_of(checkpoints, step)[-1].stat().st_mtime_ns
        except (FileNotFoundError, IndexError):  # removed meanwhile
            continue
    return stamps


def _assess_copy(checkpoints: Path, step: int, assessor: Assessor, folder: Path) -> None:
    path = checkpoint_path(checkpoints, step)
    with _empty(folder / _COPY) as copy:
        try:
            link_checkpoint(checkpoints, step, copy)
        except FileNotFoundError:
            _LOGGER.info("%s was removed before it was read", path)
            return
        fault = find_fault(checkpoint_path(copy, step))
        if fault is not None:
            _LOGGER.warning("%s is left out, it cannot be read: %s", path, fault)
            return
        assessor.assess(copy, step)


@contextmanager
def _empty(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
