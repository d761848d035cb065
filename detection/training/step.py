"""One training step."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from detection.data.training_batches import Batch
from detection.replicas import replica_count, sum_over_replicas
from detection.training.conditional_update import update_where
from detection.training.gradients import GradientRules, apply_gradient_rules
from detection.training.guard import NonFiniteGuard
from detection.training.precision import LossScale
from detection.training.state import TrainState


class StepReport(NamedTuple):
    """What a step tells of the global batch; the same on all replicas.

    number: int64 scalar, steps done before.
    figures: float32 scalars: every loss term, `loss`, `learning_rate`, `gradient_norm`
        (before any rule acts on them), `instances_cut_off`; with a loss scale also
        `loss_scale` and `skipped_steps`, those of the whole run that overflowed under it.
    finite: bool scalar, whether nothing is wrong with the step.
    halted: bool scalar, whether the run has come to its end; see `NonFiniteGuard`.
    updates: int64 scalar, updates of the run; there only when this step's is complete.
    """

    number: tf.Tensor
    figures: dict[str, tf.Tensor]
    finite: tf.Tensor
    halted: tf.Tensor
    updates: tf.Tensor


def make_train_step(
    state: TrainState,
    guard: NonFiniteGuard,
    *,
    seed: int,
    l2: Callable[[], tf.Tensor] | None,
    gradient_rules: GradientRules,
) -> Callable[[Batch], StepReport]:
    """Builds the function that every replica runs.

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

    Returns:
        From a replica's batch to the report.
    """
    variables = [variable.value for variable in state.trainable]
    base_seed = tf.constant([seed % 2**31, 0x5EED], tf.int32)

    def update(gradients: Sequence[tf.Tensor], statistics: Mapping[str, tf.Tensor]) -> None:
        for variable in state.model.non_trainable_variables:
            if variable.path in statistics:
                variable.assign(statistics[variable.path])
        gradients, _ = apply_gradient_rules(gradients, state.trainable, gradient_rules)
        # The optimizer sums over replicas again.
        replicas = replica_count()
        state.optimizer.apply([gradient / replicas for gradient in gradients], list(state.trainable))
        if state.ema is not None:
            state.ema.update(state.step)

    def train_step(batch: Batch) -> StepReport:
        number = tf.convert_to_tensor(state.step)
        step_seed = tf.random.fold_in(base_seed, tf.cast(number % 2**31, tf.int32))
        scale = tf.constant(1.0) if state.loss_scale is None else tf.convert_to_tensor(state.loss_scale.scale)
        # In the scope, new batch-norm statistics are collected instead of assigned.
        with tf.GradientTape() as tape, keras.StatelessScope(initialize_variables=False) as forward:
            outputs = state.model(batch.images, training=True, seed=step_seed)
            terms = dict(state.model.losses(outputs, batch.labels))
            if l2 is not None:
                terms["l2_loss"] = l2() / replica_count()
            loss = tf.add_n(list(terms.values()))
            scaled_loss = loss * scale
        gradients = tape.gradient(scaled_loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [gradient / scale for gradient in sum_over_replicas(gradients)]
        norm = tf.linalg.global_norm(gradients)
        cut_off = tf.cast(tf.reduce_sum(batch.cut_off), tf.float32)
        figures = _totals(terms | {"loss": loss, "instances_cut_off": cut_off})
        figures |= {"gradient_norm": norm, "learning_rate": tf.cast(state.optimizer.learning_rate, tf.float32)}
        sound = tf.math.is_finite(norm)
        finite = tf.math.is_finite(figures["loss"]) & (sound | _excuses(state.loss_scale))
        apply, halted = guard.judge(finite)
        update_where(apply & sound, update, gradients, _collected(forward, state.model.non_trainable_variables))
        if state.loss_scale is not None:
            figures |= {"loss_scale": scale}
            update_where(apply, state.loss_scale.update, sound)
            figures |= {"skipped_steps": tf.cast(state.loss_scale.skipped_steps, tf.float32)}
        # A run that halts stays at the step that halted it.
        state.step.assign_add(tf.cast(~halted, tf.int64))
        return StepReport(number, figures, finite, halted, tf.convert_to_tensor(state.optimizer.iterations))

    return train_step


def _totals(shares: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Sums over replicas, in one exchange."""
    return dict(zip(shares, tf.unstack(sum_over_replicas(tf.stack(list(shares.values())))), strict=True))


def _collected(scope: keras.StatelessScope, variables: Sequence[keras.Variable]) -> dict[str, tf.Tensor]:
    """New values by path, of those variables that were assigned to."""
    values = {variable.path: scope.get_current_value(variable) for variable in variables}
    return {path: value for path, value in values.items() if value is not None}


def _excuses(scale: LossScale | None) -> tf.Tensor:
    return tf.constant(False) if scale is None else scale.excuses()
