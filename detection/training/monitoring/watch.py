"""What those who look on get from a run: progress, TensorBoard, profiles, and news of steps that are not finite."""

import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from detection.images.drawing import contact_sheet
from detection.training.engine.gradient_summaries import write_histogram
from detection.training.engine.loop import LoopReport
from detection.training.monitoring.nonfinite import NonFiniteSteps
from detection.training.monitoring.profiling import ProfilerWindow
from detection.training.monitoring.progress import LOGGER, ProgressMeter
from detection.training.monitoring.step_batches import StepBatches, pictures_of
from detection.training.monitoring.window import Window
from schemas.scalars import training_tag


class TrainingPictures:
    """Puts training images with their boxes into TensorBoard.

    Args:
        batches: makes batches again.
        names: of the classes.
        every: steps between pictures.
        count: images in each.
    """

    def __init__(self, batches: StepBatches, names: Sequence[str], *, every: int, count: int) -> None:
        self.every = every
        self._batches = batches
        self._names = names
        self._count = count

    def draw(self, step: int) -> None:
        """Draws what step `step`, counted from 0, is trained on."""
        pictures = pictures_of(self._batches.batch(step), self._batches.options, self._names, self._count)
        tf.summary.image("training_images", contact_sheet(pictures)[np.newaxis], step=step)


class Watch:
    """Looks at a run between the calls of its loop.

    Args:
        total_steps: of the run.
        log_every: steps between progress and scalars.
        histograms_every: steps between histograms of gradients; 0: no histograms.
        window: gathers the figures in between.
        nonfinite: asked about every call.
        pictures: None: none are drawn.
        profiler: None: nothing is profiled.
    """

    def __init__(
        self,
        *,
        total_steps: int,
        log_every: int,
        histograms_every: int = 0,
        window: Window,
        nonfinite: NonFiniteSteps,
        pictures: TrainingPictures | None,
        profiler: ProfilerWindow | None,
    ) -> None:
        self._total_steps = total_steps
        self._log_every = log_every
        self._histograms_every = histograms_every
        self._window = window
        self._nonfinite = nonfinite
        self._pictures = pictures
        self._profiler = profiler
        self._meter = ProgressMeter(total_steps=total_steps)
        self._told_of_cut_off = False

    def begin(self, step: int) -> None:
        """Shows what the first step of this process, counted from 0, is going to see."""
        if step == self._total_steps:
            return
        if self._pictures is not None:
            self._pictures.draw(step)
        LOGGER.info("compiling the training step, which takes a while")

    def see(self, report: LoopReport, step: int) -> None:
        """Takes note of a window of steps, after which `step` steps are done.

        Raises:
            CocoflowError: a step was not finite and ended the run.
        """
        self._nonfinite.require_going_on(report)
        self._window.add(report)
        last = step == self._total_steps
        if last or step % self._log_every == 0:
            self._tell(step, at=report.ended_at)
        if self._histograms_every and step % self._histograms_every == 0:
            for name, values in report.histograms.items():
                write_histogram(name, values, step=step)
        if self._pictures is not None and not last and step % self._pictures.every == 0:
            self._pictures.draw(step)
        if self._profiler is not None:
            self._profiler.see(step)

    def end(self, step: int) -> None:
        """Tells of the steps since the last word, where the run ended early, after `step` steps."""
        if self._window.reports:
            self._tell(step, at=time.monotonic())

    def _tell(self, step: int, *, at: float) -> None:
        figures = self._window.take()
        for name, value in figures.items():
            tf.summary.scalar(training_tag(name), value, step=step)
        self._meter.report(step, figures, at=at)
        cut_off = figures.get("instances_cut_off", 0.0)
        if cut_off and not self._told_of_cut_off:
            self._told_of_cut_off = True
            LOGGER.warning(
                "%d objects of the last steps' images were left out: an image has more than model.max_instances. "
                "Raise it if that is not meant; TensorBoard's instances_cut_off has the numbers.",
                cut_off,
            )
