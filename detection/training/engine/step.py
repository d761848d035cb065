"""One training step."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.ops.replicas import replica_count, sum_over_replicas
from detection.training.engine.conditional_update import update_where
from detection.training.engine.gradient_summaries import GradientSummaries
from detection.training.engine.gradients import GradientRules, apply_gradient_rules
from detection.training.engine.guard import NonFiniteGuard
from detection.training.engine.precision import LossScale
from detection.training.engine.state import TrainState
from schemas.scalars import GRADIENT_NORM, TOTAL_LOSS


class StepReport(NamedTuple):
    """What a step tells of the global batch; the same on all replicas.

    number: int64 scalar, steps done before.
    figures: float32 scalars: every loss term, `loss`, `learning_rate`, `gradient_norm`
        (before any rule acts on them), `instances_cut_off`; with a loss scale also
        `loss_scale` and `skipped_steps`, those of the whole run that overflowed under it,
        and what `GradientSummaries.norms` tells.
    histograms: see `GradientSummaries.histograms`.
    finite: bool scalar, whether nothing is wrong with the step.
    halted: bool scalar, whether the run has come to its end; see `NonFiniteGuard`.
    updates: int64 scalar, updates of the run; there only when this step's is complete.
    """

    number: tf.Tensor
    figures: dict[str, tf.Tensor]
    histograms: dict[str, tf.Tensor]
    finite: tf.Tensor
    halted: tf.Tensor
    updates: tf.Tensor


class TrainStep:
    """What every replica runs.

    The loss terms are shares of the global batch's loss: their sum over replicas is
    that loss, and so are the summed gradients, which are clipped after the sum.  So N
    replicas equal one with the same global batch.

    A step whose loss or gradient norm is not finite changes no weight, slot, average or
    batch-norm statistic.  Gradients that overflow under a dynamic loss scale are normal:
    that step changes nothing but the scale, and the guard does not hear of it.

    Args:
        state: is updated by each call.
        guard: says whether it is.
        seed: of drop-connect, together with the step.
        l2: the weight decay that is a part of the loss, of the global batch; None: none is.
        gradient_rules: act on the gradients of the global batch.
        gradient_summaries: what each step tells of these gradients before that; None: their global norm alone.
    """

    def __init__(
        self,
        state: TrainState,
        guard: NonFiniteGuard,
        *,
        seed: int,
        l2: Callable[[], tf.Tensor] | None,
        gradient_rules: GradientRules,
        gradient_summaries: GradientSummaries | None = None,
    ) -> None:
        self._state = state
        self._guard = guard
        self._seed = tf.constant([seed % 2**31, 0x5EED], tf.int32)
        self._l2 = l2
        self._gradient_rules = gradient_rules
        self._summaries = gradient_summaries or GradientSummaries(norms=False, histograms_every=0)

    def __call__(self, batch: Batch) -> StepReport:
        """Trains on a replica's share of a batch."""
        state = self._state
        number = tf.convert_to_tensor(state.step)
        scale = tf.constant(1.0) if state.loss_scale is None else tf.convert_to_tensor(state.loss_scale.scale)
        terms, gradients, statistics = self._differentiate(batch, number, scale)
        norm = tf.linalg.global_norm(gradients)
        cut_off = tf.cast(tf.reduce_sum(batch.truncated), tf.float32)
        figures = _totals(terms | {"instances_cut_off": cut_off})
        figures |= {GRADIENT_NORM: norm, "learning_rate": tf.cast(state.optimizer.learning_rate, tf.float32)}
        figures |= self._summaries.norms(gradients, state.trainable)
        histograms = self._summaries.histograms(gradients, state.trainable, number)
        sound = tf.math.is_finite(norm)
        finite = tf.math.is_finite(figures[TOTAL_LOSS]) & (sound | _excuses(state.loss_scale))
        apply, halted = self._guard.judge(finite)
        update_where(apply & sound, self._update, gradients, statistics)
        if state.loss_scale is not None:
            update_where(apply, state.loss_scale.update, sound)
            skipped = tf.cast(state.loss_scale.skipped_steps, tf.float32)
            figures |= {"loss_scale": scale, "skipped_steps": skipped}
        # A run that halts stays at the step that halted it.
        state.step.assign_add(tf.cast(~halted, tf.int64))
        return StepReport(number, figures, histograms, finite, halted, tf.convert_to_tensor(state.optimizer.iterations))

    def _differentiate(
        self, batch: Batch, number: tf.Tensor, scale: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor], dict[str, tf.Tensor]]:
        """This replica's loss terms and their sum `loss`; gradients of all replicas; new batch-norm statistics."""
        state = self._state
        seed = tf.random.fold_in(self._seed, tf.cast(number % 2**31, tf.int32))
        # In the scope, new batch-norm statistics are collected instead of assigned.
        with tf.GradientTape() as tape, keras.StatelessScope(initialize_variables=False) as forward:
            outputs = state.model(batch.images, training=True, seed=seed)
            terms = dict(state.model.losses(outputs, batch.labels))
            if self._l2 is not None:
                terms["l2_loss"] = self._l2() / replica_count()
            loss = tf.add_n(list(terms.values()))
            scaled_loss = loss * scale
        variables = [variable.value for variable in state.trainable]
        gradients = tape.gradient(scaled_loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [gradient / scale for gradient in sum_over_replicas(gradients)]
        return terms | {TOTAL_LOSS: loss}, gradients, _collected(forward, state.model.non_trainable_variables)

    def _update(self, gradients: Sequence[tf.Tensor], statistics: Mapping[str, tf.Tensor]) -> None:
        state = self._state
        for variable in state.model.non_trainable_variables:
            if variable.path in statistics:
                variable.assign(statistics[variable.path])
        gradients = apply_gradient_rules(gradients, state.trainable, self._gradient_rules)
        state.optimizer.apply(gradients, list(state.trainable))
        if state.ema is not None:
            state.ema.update(state.step)


def _totals(shares: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Sums over replicas, in one exchange."""
    return dict(zip(shares, tf.unstack(sum_over_replicas(tf.stack(list(shares.values())))), strict=True))


def _collected(scope: keras.StatelessScope, variables: Sequence[keras.Variable]) -> dict[str, tf.Tensor]:
    """New values by path, of those variables that were assigned to."""
    values = {variable.path: scope.get_current_value(variable) for variable in variables}
    return {path: value for path, value in values.items() if value is not None}


def _excuses(scale: LossScale | None) -> tf.Tensor:
    return tf.constant(False) if scale is None else scale.excuses()
