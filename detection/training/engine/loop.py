"""The training loop: runs many steps per call of a compiled function, and reports each window of steps."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.training.engine.gradients import HISTOGRAM_BUCKETS
from detection.training.engine.ordered_sums import ordered_sums
from detection.training.engine.step import StepReport


class LoopReport(NamedTuple):
    """Results of a window of steps.

    steps: number of applied steps: neither skipped nor after the run's end.
    sums: sum of each scalar over those steps, without non-finite values, such as the gradient
        norm of a step that overflowed under a loss scale.
    counts: number of values in each sum.
    last: each scalar at the last applied step; empty: no step was applied.
    skipped: number of non-finite steps, including the one that ended the run.
    bad_step: index of the first non-finite step, from 0; None: all steps were finite.
    bad: scalars of that step.
    halted: the run has ended because of too many non-finite steps.
    seconds: duration of the window.
    waited: seconds spent waiting for a batch after the previous step was done; waiting that
        prefetching hides is not included.
    ended_at: `time.monotonic` at the end of the last step.
    histograms: gradient histograms of the last applied step, float32 [2 + HISTOGRAM_BUCKETS]
        each, as computed by `detection.training.engine.gradients.histogram`.
    """

    steps: int
    sums: dict[str, float]
    counts: dict[str, float]
    last: dict[str, float]
    skipped: int
    bad_step: int | None
    bad: dict[str, float]
    halted: bool
    seconds: float
    waited: float
    ended_at: float
    histograms: dict[str, npt.NDArray[np.float32]]


class _Tally(NamedTuple):
    """Tensors of a `LoopReport`: scalars, or [K] for K names, or [H, 2 + HISTOGRAM_BUCKETS] for H histograms.

    Times are in seconds, float64.
    """

    steps: tf.Tensor
    sums: tf.Tensor
    counts: tf.Tensor
    last: tf.Tensor
    skipped: tf.Tensor
    bad_step: tf.Tensor
    bad: tf.Tensor
    halted: tf.Tensor
    waited: tf.Tensor
    done_at: tf.Tensor
    histograms: tf.Tensor


class ReplicatedStep(Protocol):
    """A training step that runs on all replicas, such as `TrainStep`."""

    def on_replicas(
        self, strategy: tf.distribute.Strategy, compiled: Callable[[Callable[..., Any]], Any]
    ) -> Callable[[Batch], StepReport]:
        """See `TrainStep.on_replicas`."""


class TrainLoop:
    """Runs steps on all replicas.

    Args:
        strategy: strategy that the step's variables were created under.
        train_step: the step to run on all replicas.
        jit_compile: compile the step under XLA; batches need static shapes.
        deterministic: op determinism is on.  TensorFlow then has no clock op, and sums keep the
            order of their terms.
        eager: do not compile anything, for debugging.
        single: most calls are for one step: such a call has a graph without loops, which start slower, as every
            variable is a value of each loop.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        train_step: ReplicatedStep,
        *,
        jit_compile: bool,
        deterministic: bool,
        eager: bool = False,
        single: bool = False,
    ) -> None:
        self._strategy = strategy
        self._deterministic = deterministic
        self._names: Sequence[str] = ()
        self._histogram_names: Sequence[str] = ()
        # Steps have no Python control flow on tensors, and converting it takes seconds.
        compiled = functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
        self._replicas_step = train_step.on_replicas(strategy, (lambda function: function) if eager else compiled)
        self._step: Any = self._one_step if eager else tf.function(self._one_step, autograph=False)
        self._run = self._run_windows if eager else tf.function(self._run_windows)
        self._run_one = tf.function(self._run_one_step, autograph=False) if single and not eager else None
        self._eager = eager

    def __call__(self, batches: tf.data.Iterator, steps: int) -> LoopReport:
        """Runs `steps` >= 1 steps; applies fewer if a step is not finite."""
        ((_, report),) = self.windows(batches, start=0, stop=steps, every=steps)
        return report

    def windows(
        self, batches: tf.data.Iterator, *, start: int, stop: int, every: int
    ) -> Iterator[tuple[int, LoopReport]]:
        """Runs the steps after `start` up to `stop` in one call of the compiled function.

        Args:
            batches: one batch per step.
            start: number of completed steps.
            stop: number of completed steps afterwards, > `start`.
            every: a window ends at each multiple of this; the last one ends at `stop`.

        Yields:
            For each window, the number of completed steps at its end, and its report.  Only the
            times depend on the number of windows per call.
        """
        began = time.monotonic()
        # Tensors: the function is traced again for other Python values.
        arguments = (start % every, stop - start // every * every, every)
        with ordered_sums() if self._deterministic else contextlib.nullcontext():
            if self._run_one is not None and stop - start == 1:
                rows = self._run_one(batches)
            else:
                rows = self._run(batches, *map(tf.constant, arguments))
            columns = [value.numpy() for value in rows]
        ended = time.monotonic()
        tallies = [_Tally(*values) for values in zip(*columns, strict=True)]
        # The overhead of the call, such as compiling, is before its first step.
        done_before = tallies[-1].done_at - (ended - began)
        for number, tally in enumerate(tallies, start // every + 1):
            ended_at = ended - float(tallies[-1].done_at - tally.done_at)
            yield min(number * every, stop), self._report(tally, float(tally.done_at - done_before), ended_at)
            done_before = tally.done_at

    def _report(self, tally: _Tally, seconds: float, ended_at: float) -> LoopReport:
        return LoopReport(
            steps=int(tally.steps),
            sums=self._named(tally.sums),
            counts=self._named(tally.counts),
            last=self._named(tally.last) if tally.steps else {},
            skipped=int(tally.skipped),
            bad_step=int(tally.bad_step) if tally.skipped else None,
            bad=self._named(tally.bad) if tally.skipped else {},
            halted=bool(tally.halted),
            seconds=seconds,
            waited=float(tally.waited),
            ended_at=ended_at,
            histograms=dict(zip(self._histogram_names, tally.histograms, strict=True)) if tally.steps else {},
        )

    def _named(self, values: npt.NDArray[np.float32]) -> dict[str, float]:
        return dict(zip(self._names, values.tolist(), strict=True))

    def _run_windows(self, batches: tf.data.Iterator, begin: tf.Tensor, end: tf.Tensor, every: tf.Tensor) -> _Tally:
        """Runs steps `begin` to `end`, counted from the start of the first window; returns a row per window."""
        tally = self._empty_tally(batches)
        empty = tally
        windows = (end - 1) // every + 1
        rows = _Tally(*(tf.TensorArray(value.dtype, windows) for value in tally))
        for number in tf.range(windows):
            steps = tf.minimum(end, (number + 1) * every) - tf.maximum(begin, number * every)
            tally = self._run_steps(batches, steps, empty._replace(halted=tally.halted, done_at=tally.done_at))
            rows = _Tally(*(row.write(number, value) for row, value in zip(rows, tally, strict=True)))
        return _Tally(*(row.stack() for row in rows))

    def _run_one_step(self, batches: tf.data.Iterator) -> _Tally:
        """Runs one step; returns one row."""
        return _Tally(*(value[tf.newaxis] for value in self._after_step(batches, self._empty_tally(batches))))

    def _run_steps(self, batches: tf.data.Iterator, steps: tf.Tensor, tally: _Tally) -> _Tally:
        for _ in tf.range(steps):
            tally = self._after_step(batches, tally)
        return tally

    def _after_step(self, batches: tf.data.Iterator, tally: _Tally) -> _Tally:
        asked_at = self._now()
        with tf.control_dependencies([asked_at]):
            batch = next(batches)
        with tf.control_dependencies(self._strategy.experimental_local_results(batch.images)):
            ready_at = self._now()
        with tf.control_dependencies([ready_at]):  # or the step would occupy all threads before the clock is read
            number, scalars, histograms, finite, halted, updates = self._step(batch)
        tally = _counted(tally, number=number, scalars=scalars, histograms=histograms, finite=finite, halted=halted)
        waited = tf.maximum(ready_at - tf.maximum(asked_at, tally.done_at), 0.0)
        return tally._replace(waited=tally.waited + waited, done_at=self._now(updates))

    def _empty_tally(self, batches: tf.data.Iterator) -> _Tally:
        # The step is in the graph once: a separate first step outside of the loop would double the start-up time.
        scalars = histograms = tf.zeros([])
        if not self._eager:
            # As `next` returns it, with None for what a batch lacks, or the step would be traced twice.
            absent = tf.type_spec_from_value(None)
            batch = tf.nest.map_structure(lambda spec: None if spec == absent else spec, batches.element_spec)
            outputs = self._step.get_concrete_function(batch).structured_outputs
            scalars, histograms = tf.zeros(outputs[1].shape), tf.zeros(outputs[2].shape)
        none = tf.constant(0, tf.int64)
        return _Tally(
            steps=none,
            sums=scalars,
            counts=scalars,
            last=scalars,
            skipped=none,
            bad_step=none,
            bad=scalars,
            halted=tf.constant(False),
            waited=tf.constant(0.0, tf.float64),
            done_at=self._now(),
            histograms=histograms,
        )

    def _one_step(self, batch: Batch) -> tuple[tf.Tensor, ...]:
        """Runs one step on all replicas; returns a `StepReport` with stacked scalars [K] and histograms [H, ...]."""
        reports = self._replicas_step(batch)
        # All replicas return the same global scalars.
        number, scalars, histograms, *flags = tf.nest.map_structure(
            lambda value: self._strategy.experimental_local_results(value)[0], reports
        )
        self._names, self._histogram_names = sorted(scalars), sorted(histograms)
        rows = [histograms[name] for name in self._histogram_names]
        stacked = tf.stack(rows) if rows else tf.zeros([0, 2 + HISTOGRAM_BUCKETS])
        return number, tf.stack([scalars[name] for name in self._names]), stacked, *flags

    def _now(self, *after: tf.Tensor) -> tf.Tensor:
        """Returns the time when all given tensors are computed: seconds, float64 scalar."""
        if self._deterministic:
            return tf.ensure_shape(tf.numpy_function(lambda *_: np.float64(time.monotonic()), after, tf.float64), [])
        with tf.device("CPU:0"), tf.control_dependencies([tf.identity(value) for value in after]):
            return tf.timestamp()


def _counted(
    tally: _Tally, *, number: tf.Tensor, scalars: tf.Tensor, histograms: tf.Tensor, finite: tf.Tensor, halted: tf.Tensor
) -> _Tally:
    """Adds a step to the tally; steps after the end of the run are not included."""
    counts, skips = ~tally.halted & finite, ~tally.halted & ~finite
    first = skips & (tally.skipped == 0)
    summed = counts & tf.math.is_finite(scalars)
    return _Tally(
        steps=tally.steps + tf.cast(counts, tf.int64),
        sums=tally.sums + tf.where(summed, scalars, 0.0),
        counts=tally.counts + tf.cast(summed, tf.float32),
        last=tf.where(counts, scalars, tally.last),
        skipped=tally.skipped + tf.cast(skips, tf.int64),
        bad_step=tf.where(first, number, tally.bad_step),
        bad=tf.where(first, scalars, tally.bad),
        halted=halted,
        waited=tally.waited,
        done_at=tally.done_at,
        histograms=tf.where(counts, histograms, tally.histograms),
    )
