"""One training step: loss, gradients, NaN guard, update."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.ops.replicas import slice_count, sum_over_replicas
from detection.training.engine.gradients import GradientSummaries
from detection.training.engine.state import LossScale, TrainState
from schemas.scalars import GRADIENT_NORM, POSITIVES, TOTAL_LOSS, TRUNCATED


class StepReport(NamedTuple):
    """Results of a step on the global batch, the same on all replicas.

    step: int64 scalar, number of completed steps before this one.
    scalars: float32 scalars: every loss term, `loss`, `learning_rate`, `gradient_norm`
        (before any transformation), `instances_cut_off`; with a loss scale also
        `loss_scale` and `skipped_steps`, the number of the run's steps that overflowed
        under it; and `GradientSummaries.norms`.
    histograms: result of `GradientSummaries.histograms`.
    finite: bool scalar, whether loss and gradients are finite.
    halted: bool scalar, whether `NanGuard` has ended the run.
    updates: int64 scalar, number of the run's updates; available once this step's update is complete.
    """

    step: tf.Tensor
    scalars: dict[str, tf.Tensor]
    histograms: dict[str, tf.Tensor]
    finite: tf.Tensor
    halted: tf.Tensor
    updates: tf.Tensor


class Derivatives(NamedTuple):
    """Results of a forward and backward pass over one replica's images.

    terms: float32 scalars: every loss term, and their sum `loss`.  Summed over replicas and
        micro-batches, they are the losses of the update's batch.
    gradients: gradients of `loss` times the loss scale, in the order of the trainable variables.
    statistics: new values of the statistics of batch norm and losses, by path, equal on all replicas.
    """

    terms: dict[str, tf.Tensor]
    gradients: list[tf.Tensor]
    statistics: dict[str, tf.Tensor]


class NanGuard(tf.Module):
    """Decides whether a step's update is applied: skips non-finite steps, and all steps after the run has halted.

    The decision is made on the device, so a loop of many steps does not wait for the host.

    Args:
        skips: max number of consecutive non-finite steps to skip; one more halts the run.
            0: the first non-finite step halts it.
    """

    def __init__(self, *, skips: int) -> None:
        super().__init__(name="guard")
        self._skips = skips
        # int64: int32 variables would be in the host's memory.
        self._left = tf.Variable(
            skips, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def check(self, finite: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Records a step.

        Args:
            finite: bool scalar, the same on all replicas, whether the step is finite.

        Returns:
            apply: bool scalar, whether the step's update may be applied.
            halted: bool scalar, whether the run has ended, with this step or before; stays true.
        """
        left = tf.convert_to_tensor(self._left)
        running = left >= 0
        after = tf.where(running, tf.where(finite, tf.constant(self._skips, tf.int64), left - 1), left)
        self._left.assign(after)
        return running & finite, after < 0


class TrainStep:
    """The computation of a step on one replica.

    The loss terms are parts of the global batch's loss: summed over replicas, they are that
    loss.  Gradients are also summed over replicas, then clipped.  So N replicas are equivalent
    to one replica with the same global batch.

    A step with a non-finite loss or gradient norm changes no weight, slot, EMA weight or statistic
    of batch norms and losses.  Gradients that overflow under a dynamic loss scale are normal: the
    step then only changes the scale, and the NaN guard ignores it.

    Args:
        state: the state to update.
        guard: decides whether the update is applied.
        seed: seed of drop-connect, folded with the step.
        l2: L2 loss of the global batch; None: no L2 loss.
        transform_gradients: maps gradients of the global batch and their variables to the gradients
            to apply, like `detection.training.engine.gradients.transform_gradients`.
        gradient_summaries: norms and histograms of the gradients before they are transformed.
    """

    def __init__(
        self,
        state: TrainState,
        guard: NanGuard,
        *,
        seed: int,
        l2: Callable[[], tf.Tensor] | None,
        transform_gradients: Callable[[Sequence[tf.Tensor], Sequence[keras.Variable]], list[tf.Tensor]],
        gradient_summaries: GradientSummaries,
    ) -> None:
        self._state = state
        self._guard = guard
        self._seed = tf.constant([seed % 2**31, 0x5EED], tf.int32)
        self._l2 = l2
        self._transform_gradients = transform_gradients
        self._summaries = gradient_summaries

    def __call__(self, batch: Batch) -> StepReport:
        """Trains on a replica's slice of a batch."""
        derivatives = self.differentiate(batch)
        truncated = tf.cast(tf.reduce_sum(batch.truncated), tf.float32)
        gradients = sum_over_replicas(derivatives.gradients)
        totals = sum_scalars(derivatives.terms | {TRUNCATED: truncated})
        return self.update(totals, gradients, derivatives.statistics)

    def on_replicas(
        self, strategy: tf.distribute.Strategy, compiled: Callable[[Callable[..., Any]], Any]
    ) -> Callable[[Batch], StepReport]:
        """Returns the step as a function of the batches of all replicas, which returns the reports of all replicas.

        Args:
            strategy: strategy that the state's variables were created under.
            compiled: compiles the function of one replica.
        """
        replica_step = compiled(self)
        return lambda batch: strategy.run(replica_step, args=(batch,))

    def differentiate(self, batch: Batch, positives: tf.Tensor | None = None) -> Derivatives:
        """Runs the network forward and backward.

        Args:
            batch: this replica's slice of a batch, or of a micro-batch within
                `detection.ops.replicas.micro_batch`.
            positives: sum of `count_positives` over the update's batch; None: computed from the labels.
        """
        state = self._state
        seed = tf.random.fold_in(self._seed, tf.cast(tf.convert_to_tensor(state.step) % 2**31, tf.int32))
        # In the scope, new statistics are collected instead of assigned.
        with tf.GradientTape() as tape, keras.StatelessScope(initialize_variables=False) as forward:
            outputs = state.model(batch.images, training=True, seed=seed)
            terms = dict(state.model.losses(outputs, batch.labels, positives, training=True))
            if self._l2 is not None:
                terms["l2_loss"] = self._l2() / slice_count()
            loss = tf.add_n(list(terms.values()))
            scaled_loss = loss * self._loss_scale()
        variables = [variable.value for variable in state.trainable]
        gradients = tape.gradient(scaled_loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        statistics = _collected(forward, state.statistics)
        # The graph has the assignment of the labels once: it is the same as that of the losses.
        counted = {POSITIVES: state.model.num_positives(batch.labels)}
        return Derivatives(terms | {TOTAL_LOSS: loss} | counted, list(gradients), statistics)

    def update(
        self, totals: Mapping[str, tf.Tensor], gradients: Sequence[tf.Tensor], statistics: Mapping[str, tf.Tensor]
    ) -> StepReport:
        """Updates the state with the results of the passes over an update's batch.

        Args:
            totals: `Derivatives.terms` and TRUNCATED, summed over the update's batch.
            gradients: `Derivatives.gradients`, summed over the update's batch.
            statistics: `Derivatives.statistics`.
        """
        state = self._state
        step = tf.convert_to_tensor(state.step)
        scale = self._loss_scale()
        if state.loss_scale is not None:
            gradients = [gradient / scale for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        scalars = dict(totals)
        scalars |= {GRADIENT_NORM: norm, "learning_rate": tf.cast(state.optimizer.learning_rate, tf.float32)}
        scalars |= self._summaries.norms(gradients, state.trainable)
        histograms = self._summaries.histograms(gradients, state.trainable, step)
        finite_gradients = tf.math.is_finite(norm)
        finite = tf.math.is_finite(scalars[TOTAL_LOSS]) & (finite_gradients | _may_overflow(state.loss_scale))
        apply, halted = self._guard.check(finite)
        update_if(apply & finite_gradients, self._update, gradients, statistics)
        if state.loss_scale is not None:
            update_if(apply, state.loss_scale.update, finite_gradients)
            skipped = tf.cast(state.loss_scale.skipped_steps, tf.float32)
            scalars |= {"loss_scale": scale, "skipped_steps": skipped}
        # A halted run stays at the step that halted it.
        state.step.assign_add(tf.cast(~halted, tf.int64))
        return StepReport(step, scalars, histograms, finite, halted, tf.convert_to_tensor(state.optimizer.iterations))

    def _loss_scale(self) -> tf.Tensor:
        scale = self._state.loss_scale
        return tf.constant(1.0) if scale is None else tf.convert_to_tensor(scale.scale)

    def _update(self, gradients: Sequence[tf.Tensor], statistics: Mapping[str, tf.Tensor]) -> None:
        state = self._state
        for variable in state.statistics:
            if variable.path in statistics:
                variable.assign(statistics[variable.path])
        state.optimizer.apply(self._transform_gradients(gradients, state.trainable), list(state.trainable))
        if state.ema is not None:
            state.ema.update(state.step)


def update_if(condition: tf.Tensor, update: Callable[..., None], *arguments: Any) -> None:
    """Calls `update(*arguments)` on every replica if `condition` is True.

    Args:
        condition: bool scalar, the same on all replicas.
        update: assigns to variables; may use optimizers, but must not close over values that
            differ by replica.
        arguments: this replica's tensors, nested.
    """
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        _call_if(condition, lambda: update(*arguments))
        return

    # Optimizers under MirroredStrategy synchronize the replicas, which is impossible inside a condition of one
    # replica, so the condition is outside, as in Keras' LossScaleOptimizer.
    def on_all_replicas(strategy: tf.distribute.Strategy, conditions: Any, values: Any) -> None:
        condition = strategy.experimental_local_results(conditions)[0]
        _call_if(condition, lambda: strategy.extended.call_for_each_replica(update, args=values))

    tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(condition, arguments))


def _call_if(condition: tf.Tensor, function: Callable[[], Any]) -> None:
    def call() -> None:
        # Both branches must return None.
        function()

    tf.cond(condition, call, lambda: None)


def sum_scalars(partials: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Sums scalars over replicas, with one all-reduce."""
    return dict(zip(partials, tf.unstack(sum_over_replicas(tf.stack(list(partials.values())))), strict=True))


def _collected(scope: keras.StatelessScope, variables: Sequence[keras.Variable]) -> dict[str, tf.Tensor]:
    """Returns the new values of the variables assigned in the scope, by path."""
    values = {variable.path: scope.get_current_value(variable) for variable in variables}
    return {path: value for path, value in values.items() if value is not None}


def _may_overflow(scale: LossScale | None) -> tf.Tensor:
    return tf.constant(False) if scale is None else scale.may_overflow()
