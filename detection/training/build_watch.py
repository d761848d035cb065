"""From the configuration to what looks on while a run works."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detection.input_pipeline.record_reader import RecordReader
from detection.models.detector import Detector
from detection.training.input_options import input_options_from_config
from detection.training.monitoring.nonfinite import NonFiniteSteps
from detection.training.monitoring.profiling import ProfilerWindow
from detection.training.monitoring.step_batches import StepBatches
from detection.training.monitoring.watch import TrainingPictures, Watch
from detection.training.monitoring.window import Window
from schemas.artifacts import LOGS
from schemas.config.config import Config
from schemas.config.training import TrainConfig


def watch_from_config(
    config: Config,
    model: Detector,
    reader: RecordReader,
    categories: Sequence[Mapping[str, Any]],
    *,
    output: Path,
    stack: contextlib.ExitStack,
    writes: bool,
) -> Watch:
    """What looks on; it is closed with `stack`.

    Args:
        config: `model` and `train` count.
        model: the detector that trains.
        reader: the training records.
        categories: in the order of the network's classes.
        output: the run's folder.
        stack: of the run.
        writes: this process is the one that writes.
    """
    settings = config.train
    options = input_options_from_config(config, model, categories)
    batches = StepBatches(reader, options, seed=settings.seed, batch_size=settings.batch_size)
    names = [str(category["name"]) for category in categories]
    pictures, profiler = None, None
    if writes and settings.summaries.images_every:
        pictures = TrainingPictures(
            batches, names, every=settings.summaries.images_every, count=settings.summaries.images
        )
    if writes and settings.profile.start_step is not None:
        start, stop = profiled_steps(settings)
        profiler = stack.enter_context(ProfilerWindow(start_step=start, stop_step=stop, logs=output / LOGS))
    return Watch(
        total_steps=settings.steps,
        log_every=settings.log_every,
        histograms_every=settings.summaries.gradient_histograms_every,
        window=Window(batch_size=settings.batch_size),
        nonfinite=NonFiniteSteps(batches, names, output, writes=writes),
        pictures=pictures,
        profiler=profiler,
    )


def next_stop(step: int, settings: TrainConfig) -> int:
    """End of the next call of the compiled loop after `step` steps; the same on all workers.

    It goes never past what happens between two calls: a picture, a histogram, a
    checkpoint, an edge of the profile, the end.  Log points are no reason to end: see
    `TrainLoop.windows`.
    """
    summaries = settings.summaries
    every = (settings.checkpoint_every, summaries.images_every, summaries.gradient_histograms_every)
    stops = [(step // number + 1) * number for number in every if number]
    edges = [edge for edge in profiled_steps(settings) if edge > step]
    return min(step + settings.steps_per_loop, settings.steps, *stops, *edges)


def profiled_steps(settings: TrainConfig) -> tuple[int, ...]:
    """Where the profile starts and stops; () without one."""
    start = settings.profile.start_step
    return () if start is None else (start, start + settings.profile.steps)
