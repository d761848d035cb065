"""Progress of a run: aggregates the scalars of many steps, and logs them as one line."""

import logging
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from schemas.progress import PROGRESS_ATTRIBUTE, WorkProgress
from schemas.scalars import TOTAL_LOSS

if TYPE_CHECKING:
    from detection.training.engine.loop import LoopReport  # imports TensorFlow, not needed to display progress

LOGGER = logging.getLogger("cocoflow.trainer")
_NOTABLE_WAITING = 0.1

# Scalars aggregated by their last value, and by their sum.  All others are aggregated by their mean.
_LAST = ("learning_rate", "loss_scale", "skipped_steps")
_SUMMED = ("instances_cut_off",)


class Window:
    """Collects the reports between two log points.

    Args:
        batch_size: images per step.
    """

    def __init__(self, *, batch_size: int) -> None:
        self._batch_size = batch_size
        self._reports: list[LoopReport] = []
        self._timed: list[LoopReport] = []
        self._warm = False

    @property
    def reports(self) -> int:
        """Number of reports since the last log point."""
        return len(self._reports)

    def add(self, report: "LoopReport") -> None:
        """Adds a report of the loop."""
        self._reports.append(report)
        if self._warm:
            self._timed.append(report)
        self._warm = True  # the first call includes compiling: its time is not representative

    def take(self) -> dict[str, float]:
        """Returns the scalars since the last call, by name, and resets them.

        Loss terms and the gradient norm are means over the steps, `learning_rate` is the last value,
        `instances_cut_off` and `nonfinite_steps` are counts.  `steps_per_sec`, `images_per_second`
        and `input_bound`, the fraction of time that steps waited for batches, are included once
        they can be measured.
        """
        scalars = self._means() | {"nonfinite_steps": float(sum(report.skipped for report in self._reports))}
        seconds = sum(report.seconds for report in self._timed)
        if seconds:
            speed = sum(report.steps + report.skipped for report in self._timed) / seconds
            scalars |= {
                "steps_per_sec": speed,
                "images_per_second": speed * self._batch_size,
                "input_bound": sum(report.waited for report in self._timed) / seconds,
            }
        self._reports, self._timed = [], []
        return scalars

    def _means(self) -> dict[str, float]:
        counted = [report for report in self._reports if report.steps]
        return {name: _value(name, counted) for name in counted[-1].last} if counted else {}


def _value(name: str, reports: "list[LoopReport]") -> float:
    if name in _LAST:
        return reports[-1].last[name]
    total = math.fsum(report.sums[name] for report in reports)
    if name in _SUMMED:
        return total
    count = sum(report.counts[name] for report in reports)
    return total / count if count else math.nan


class ProgressMeter:
    """Estimates the remaining time, including everything between steps, and logs it."""

    def __init__(self, *, total_steps: int) -> None:
        self._total_steps = total_steps
        self._since: tuple[int, float] | None = None

    def report(self, step: int, scalars: Mapping[str, float], *, at: float | None = None) -> None:
        """Logs the progress after `step` steps.

        Args:
            step: number of completed steps.
            scalars: result of `Window.take`; missing speeds mean 0.
            at: `time.monotonic` at the end of these steps; None: now.
        """
        now = time.monotonic() if at is None else at
        speed = 0.0
        if self._since is not None and now > self._since[1]:
            speed = (step - self._since[0]) / (now - self._since[1])
        self._since = (step, now)
        note = _note(scalars, seconds_left=(self._total_steps - step) / speed if speed else 0.0)
        progress = WorkProgress("training", step, self._total_steps, note)
        LOGGER.info("step %s", f"{step:,}/{self._total_steps:,}  {note}", extra={PROGRESS_ATTRIBUTE: progress})


def _note(scalars: Mapping[str, float], *, seconds_left: float) -> str:
    note = f"loss {scalars.get(TOTAL_LOSS, math.nan):.4f}"
    if images_per_second := scalars.get("images_per_second", 0.0):
        note += f"  {images_per_second:.1f} images/s"
    if seconds_left:
        note += f"  {seconds_left:.0f} s left"
    if (input_bound := scalars.get("input_bound", 0.0)) >= _NOTABLE_WAITING:
        note += f"  waits for input {input_bound:.0%}"
    return note
