"""How a run tells those who watch how far it is."""

import logging
import time
from typing import NamedTuple

LOGGER = logging.getLogger("cocoflow.trainer")
PROGRESS_ATTRIBUTE = "training_progress"


class TrainingProgress(NamedTuple):
    """One line of progress; sent as an attribute of a log record, so that a display can draw it."""

    step: int
    total_steps: int
    loss: float
    images_per_second: float
    eta_seconds: float


class ProgressMeter:
    """Measures speed between calls and reports it; not trusting the first stretch, which compiles."""

    def __init__(self, *, total_steps: int, batch_size: int) -> None:
        self._total_steps = total_steps
        self._batch_size = batch_size
        self._since: tuple[int, float] | None = None

    def report(self, step: int, loss: float) -> TrainingProgress:
        """Logs and returns the progress after `step` steps; speeds are 0 the first time."""
        now = time.monotonic()
        speed = 0.0
        if self._since is not None and now > self._since[1]:
            speed = (step - self._since[0]) / (now - self._since[1])
        self._since = (step, now)
        eta = (self._total_steps - step) / speed if speed else 0.0
        progress = TrainingProgress(step, self._total_steps, loss, speed * self._batch_size, eta)
        LOGGER.info("step %d/%d%s", step, self._total_steps, _words(progress), extra={PROGRESS_ATTRIBUTE: progress})
        return progress


def _words(progress: TrainingProgress) -> str:
    loss = f"  loss {progress.loss:.4f}"
    if not progress.images_per_second:
        return loss
    return f"{loss}  {progress.images_per_second:.1f} images/s  {progress.eta_seconds:.0f} s left"
