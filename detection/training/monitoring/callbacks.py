"""Training callbacks: progress, TensorBoard, profiles, and errors on non-finite steps."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from detection.datasets.annotations.entries import Entry
from detection.images.drawing import contact_sheet
from detection.storage.atomic import write_json
from detection.training.engine.gradients import write_histogram
from detection.training.engine.loop import LoopReport
from detection.training.monitoring.nonfinite import NonFiniteSteps
from detection.training.monitoring.progress import LOGGER, ProgressMeter, Window
from detection.training.monitoring.step_batches import StepBatches, pictures_of
from schemas.errors import CocoflowError
from schemas.scalars import TOTAL_LOSS, training_tags

_DIVERGED = 10  # times the first loss, from which a last loss is no accident


class TrainingPictures:
    """Writes training images with their boxes and keypoints to TensorBoard.

    Args:
        batches: recreates the batches of steps.
        categories: COCO categories, in the order of the classes.
        every: steps between pictures.
        count: images per picture.
    """

    def __init__(self, batches: StepBatches, categories: Sequence[Entry], *, every: int, count: int) -> None:
        self.every = every
        self._batches = batches
        self._categories = categories
        self._count = count

    def draw(self, step: int) -> None:
        """Draws the batch of step `step`, counted from 0."""
        pictures = pictures_of(self._batches.batch(step), self._batches.options, self._categories, self._count)
        tf.summary.image("training_images", contact_sheet(pictures)[np.newaxis], step=step)


class ProfilerWindow:
    """Profiles some steps; as a context, also writes the profile of a run that ends within the window.

    Args:
        start_step: number of completed steps when the profiler starts.
        stop_step: number of completed steps when it stops.
        logs: TensorBoard's folder.
    """

    def __init__(self, *, start_step: int, stop_step: int, logs: Path) -> None:
        self.stops = (start_step, stop_step)
        self._logs = logs
        self._running = False

    def after_step(self, step: int) -> None:
        """Starts or stops the profiler if due after `step` steps; a run resumed within the window never starts it."""
        start, stop = self.stops
        if step == start:
            tf.profiler.experimental.start(str(self._logs))
            self._running = True
        elif step >= stop:
            self._end()

    def _end(self) -> None:
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()

    def __enter__(self) -> "ProfilerWindow":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()


class Callbacks:
    """Callbacks between calls of the training loop.

    Args:
        total_steps: steps of the run.
        log_every: steps between progress lines and scalars.
        histograms_every: steps between histograms of gradients; 0: no histograms.
        variables_every: steps between histograms of `variables`; 0: no histograms.
        variables: the model's variables.
        window: collects the scalars between progress lines.
        nonfinite: checks every report.
        pictures: draws training images; None: no pictures.
        profiler: profiles steps; None: no profile.
        performance: file for the speed and the last losses at the end; None: no file.
    """

    def __init__(
        self,
        *,
        total_steps: int,
        log_every: int,
        histograms_every: int = 0,
        variables_every: int = 0,
        variables: Sequence[keras.Variable] = (),
        window: Window,
        nonfinite: NonFiniteSteps,
        pictures: TrainingPictures | None,
        profiler: ProfilerWindow | None,
        performance: Path | None = None,
    ) -> None:
        self._total_steps = total_steps
        self._log_every = log_every
        self._histograms_every = histograms_every
        self._variables_every, self._variables = variables_every, variables
        self._window = window
        self._nonfinite = nonfinite
        self._pictures = pictures
        self._profiler = profiler
        self._meter = ProgressMeter(total_steps=total_steps)
        self._warned_of_truncation = False
        self._losses: list[float] = []  # means of the first report and of the last one
        self._performance = performance
        self._speeds: list[float] = []  # steps per second between progress lines
        self._last: dict[str, float] = {}  # losses of the last progress line, by tag

    def begin(self, step: int) -> None:
        """Draws the batch of the first step of this process, counted from 0."""
        if step == self._total_steps:
            return
        if self._pictures is not None:
            self._pictures.draw(step)
        LOGGER.info("compiling the training step, which takes a while")

    def after_window(self, report: LoopReport, step: int) -> None:
        """Handles the report of a window of steps that ends after `step` steps.

        Raises:
            CocoflowError: a non-finite step ended the run.
        """
        self._nonfinite.check(report)
        self._window.add(report)
        if report.counts.get(TOTAL_LOSS):
            self._losses = [*self._losses[:1], report.sums[TOTAL_LOSS] / report.counts[TOTAL_LOSS]]
        last = step == self._total_steps
        if last or step % self._log_every == 0:
            self._log(step, at=report.ended_at)
        if self._histograms_every and step % self._histograms_every == 0:
            for name, values in report.histograms.items():
                write_histogram(name, values, step=step)
        if self._variables_every and step % self._variables_every == 0:
            for variable in self._variables:
                tf.summary.histogram(f"ModelVars/{variable.path}", tf.convert_to_tensor(variable), step=step)
        if self._pictures is not None and not last and step % self._pictures.every == 0:
            self._pictures.draw(step)
        if self._profiler is not None:
            self._profiler.after_step(step)

    def end(self, step: int) -> None:
        """Logs the steps since the last log point, if the run ended early after `step` steps.

        Raises:
            CocoflowError: the loss is many times that of the first steps.
        """
        if self._window.reports:
            self._log(step, at=time.monotonic())
        if self._performance is not None and self._speeds:
            write_json(self._performance, self._summary(step))
        if not self._losses:
            return
        first, last = self._losses[0], self._losses[-1]
        if last > _DIVERGED * first > 0:
            raise CocoflowError(
                f"training diverged: the loss grew from {first:.4g} at the first step to {last:.4g} at the last. The "
                "model is not exported. Lower train.schedule.learning_rate, lengthen train.schedule.warmup_steps or "
                "tighten train.clip, and train into another folder."
            )

    def _summary(self, step: int) -> dict[str, Any]:
        """Returns the content of `schemas.artifacts.PERFORMANCE_JSON`."""
        mean, p50, largest = float(np.mean(self._speeds)), float(np.median(self._speeds)), max(self._speeds)
        speeds = {"mean": mean, "p50": p50, "max": largest}
        return {"steps": step, "steps_per_second": speeds, "losses": self._last}

    def _log(self, step: int, *, at: float) -> None:
        scalars = self._window.take()
        tags = training_tags(scalars)
        for name, tag in tags.items():
            tf.summary.scalar(tag, scalars[name], step=step)
        self._last = {tag: scalars[name] for name, tag in tags.items() if tag.startswith("Loss/")}
        if speed := scalars.get("steps_per_sec", 0.0):
            self._speeds.append(speed)
        self._meter.report(step, scalars, at=at)
        truncated = scalars.get("instances_cut_off", 0.0)
        if truncated and not self._warned_of_truncation:
            self._warned_of_truncation = True
            LOGGER.warning(
                "%s instances were dropped in the last steps: images with more than model.max_instances. "
                "Raise it if this is not intended; TensorBoard's instances_cut_off has the counts.",
                f"{truncated:,.0f}",
            )
