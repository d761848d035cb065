"""Gradient accumulation: runs the batch of an update through the network in several micro-batches."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.ops.replicas import micro_batch, sum_over_replicas
from detection.training.engine.state import TrainState
from detection.training.engine.step import StepReport, TrainStep, sum_scalars
from schemas.scalars import TRUNCATED


class AccumulatedStep:
    """A training step with activations for one micro-batch at a time.

    Losses are divided by the positives of the update's complete batch, which are counted first, and
    gradients are summed over the micro-batches before they are clipped and applied once.  So the
    update equals that of the complete batch, except for batch norm, and for loss terms with
    normalizers that depend on the outputs (see `FasterRcnn.losses`).  Batch norm uses the statistics
    of a micro-batch over all replicas; the moving statistics use the mean over micro-batches.

    The sums are variables that are not in checkpoints: a checkpoint never contains half an update.

    Args:
        step: the passes over a micro-batch, and the update.
        state: the state that `step` updates.
        strategy: strategy that the state's variables were created under.
        micro_batches: number of micro-batches per update, > 1.
    """

    def __init__(
        self, step: TrainStep, state: TrainState, *, strategy: tf.distribute.Strategy, micro_batches: int
    ) -> None:
        self._step = step
        self._state = state
        self._count = micro_batches
        self._names: list[str] = []
        self._moving = [value for value in state.statistics if "float" in value.dtype]
        with strategy.scope():
            self._positives = _local_variable(tf.zeros(state.model.capabilities.count_shape))
            self._gradients = [_local_variable(tf.zeros(value.shape)) for value in state.trainable]
            self._moves = [_local_variable(tf.zeros(value.shape)) for value in self._moving]

    def on_replicas(
        self, strategy: tf.distribute.Strategy, compiled: Callable[[Callable[..., Any]], Any]
    ) -> Callable[[Batch], StepReport]:
        """Returns the step as a function of the batches of all replicas, like `TrainStep.on_replicas`."""
        begin, add, finish = compiled(self._begin), compiled(self._add), compiled(self._finish)

        # The loop is outside of the replicas: under MirroredStrategy, they cannot synchronize inside a loop.
        def one_more(index: tf.Tensor, rows: tf.TensorArray, batch: Batch) -> tuple[tf.Tensor, tf.TensorArray]:
            totals = strategy.experimental_local_results(strategy.run(add, args=(batch, index)))[0]
            return index + 1, rows.write(index, totals)

        def run(batch: Batch) -> StepReport:
            strategy.run(begin, args=(batch,))
            _, rows = tf.while_loop(
                lambda index, rows: index < self._count,
                lambda index, rows: one_more(index, rows, batch),
                (tf.constant(0), tf.TensorArray(tf.float32, self._count)),
                parallel_iterations=1,
            )
            totals = tf.ensure_shape(tf.reduce_sum(rows.stack(), axis=0), [len(self._names)])
            report: StepReport = strategy.run(finish, args=(batch, totals))
            return report

        return run

    def _begin(self, batch: Batch) -> None:
        """Resets the sums, and counts the positives of the update's batch."""
        for variable in (*self._gradients, *self._moves):
            variable.assign(tf.zeros_like(variable))
        # One micro-batch at a time, because matching anchors with objects takes memory, too.
        positives = tf.while_loop(
            lambda index, total: index < self._count,
            lambda index, total: (
                index + 1,
                total + self._state.model.count_positives(self._part(batch.labels, index)),
            ),
            (tf.constant(0), tf.zeros(self._positives.shape)),
            parallel_iterations=1,
        )[1]
        self._positives.assign(sum_over_replicas(positives))

    def _add(self, batch: Batch, index: tf.Tensor) -> tf.Tensor:
        """Adds the gradients of a micro-batch; returns its loss terms, summed over replicas: float32 [K]."""
        positives = tf.convert_to_tensor(self._positives)
        with micro_batch(index, self._count):
            derivatives = self._step.differentiate(self._part(batch, index), positives)
        for total, gradient in zip(self._gradients, derivatives.gradients, strict=True):
            total.assign_add(gradient)
        for total, variable in zip(self._moves, self._moving, strict=True):
            if variable.path in derivatives.statistics:
                total.assign_add(derivatives.statistics[variable.path] - tf.convert_to_tensor(variable.value))
        totals = sum_scalars(derivatives.terms)
        self._names = list(totals)
        return tf.stack(list(totals.values()))

    def _finish(self, batch: Batch, totals: tf.Tensor) -> StepReport:
        """Updates the state."""
        truncated = tf.cast(tf.reduce_sum(batch.truncated), tf.float32)
        terms = dict(zip(self._names, tf.unstack(totals), strict=True)) | sum_scalars({TRUNCATED: truncated})
        gradients = sum_over_replicas([tf.convert_to_tensor(total) for total in self._gradients])
        statistics = {
            variable.path: tf.convert_to_tensor(variable.value) + tf.convert_to_tensor(total) / self._count
            for total, variable in zip(self._moves, self._moving, strict=True)
        }
        return self._step.update(terms, gradients, statistics)

    def _part(self, nest: Any, index: tf.Tensor) -> Any:
        """Returns the rows of a micro-batch from each tensor of a replica's slice."""

        def part(value: tf.Tensor | None) -> tf.Tensor | None:
            if value is None:
                return None
            return tf.reshape(value, [self._count, value.shape[0] // self._count, *value.shape[1:]])[index]

        return tf.nest.map_structure(part, nest)


def _local_variable(value: tf.Tensor) -> tf.Variable:
    """Creates a variable that differs by replica."""
    return tf.Variable(value, trainable=False, synchronization=tf.VariableSynchronization.ON_READ)
