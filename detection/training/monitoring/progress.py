"""How a run tells those who watch how far it is."""

import logging
import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from schemas.scalars import TOTAL_LOSS

LOGGER = logging.getLogger("cocoflow.trainer")
PROGRESS_ATTRIBUTE = "training_progress"
_NOTABLE_WAITING = 0.1


class TrainingProgress(NamedTuple):
    """One line of progress; sent as an attribute of a log record, so that a display can draw it."""

    step: int
    total_steps: int
    loss: float
    images_per_second: float
    input_bound: float
    eta_seconds: float


class ProgressMeter:
    """Measures how long it will take, all that happens between steps included, and reports it."""

    def __init__(self, *, total_steps: int) -> None:
        self._total_steps = total_steps
        self._since: tuple[int, float] | None = None

    def report(self, step: int, figures: Mapping[str, float], *, at: float | None = None) -> TrainingProgress:
        """Logs and returns the progress after `step` steps.

        Args:
            step: steps done.
            figures: see `Window.take`; speeds that are not in it are 0.
            at: `time.monotonic` when these steps were done; None: now.
        """
        now = time.monotonic() if at is None else at
        speed = 0.0
        if self._since is not None and now > self._since[1]:
            speed = (step - self._since[0]) / (now - self._since[1])
        self._since = (step, now)
        progress = TrainingProgress(
            step,
            self._total_steps,
            figures.get(TOTAL_LOSS, math.nan),
            figures.get("images_per_second", 0.0),
            figures.get("input_bound", 0.0),
            (self._total_steps - step) / speed if speed else 0.0,
        )
        LOGGER.info("step %d/%d%s", step, self._total_steps, _words(progress), extra={PROGRESS_ATTRIBUTE: progress})
        return progress


def _words(progress: TrainingProgress) -> str:
    words = f"  loss {progress.loss:.4f}"
    if progress.images_per_second:
        words += f"  {progress.images_per_second:.1f} images/s"
    if progress.eta_seconds:
        words += f"  {progress.eta_seconds:.0f} s left"
    if progress.input_bound >= _NOTABLE_WAITING:
        words += f"  waits for input {progress.input_bound:.0%}"
    return words
