"""One training step."""

import math
from collections.abc import Callable

import tensorflow as tf

from detection.data.training_batches import Batch
from detection.replicas import replica_count, sum_over_replicas
from detection.training.gradients import GradientRules, apply_gradient_rules
from detection.training.optimizers import l2_loss
from detection.training.state import TrainState
from schemas.errors import CocoflowError

Metrics = dict[str, tf.Tensor]


def make_train_step(
    state: TrainState,
    *,
    seed: int,
    l2_weight: float,
    gradient_rules: GradientRules,
) -> Callable[[Batch], Metrics]:
    """Builds the function that every replica runs.

    The loss terms are shares of the global batch's loss: their sum over replicas is
    that loss, and so are the summed gradients, which are clipped after the sum.  So N
    replicas equal one with the same global batch.

    Args:
        state: is updated by each call.
        seed: of drop-connect, together with the step.
        l2_weight: see `l2_loss`; 0 leaves it out.
        gradient_rules: act on the gradients of the global batch.

    Returns:
        From a replica's batch to scalars of the global batch: every loss term, `loss`,
        `learning_rate`, `gradient_norm` (before clipping), `instances_cut_off`.
    """
    variables = [variable.value for variable in state.trainable]
    base_seed = tf.constant([seed % 2**31, 0x5EED], tf.int32)

    def train_step(batch: Batch) -> Metrics:
        replicas = replica_count()
        step_seed = tf.random.fold_in(base_seed, tf.cast(state.step % 2**31, tf.int32))
        with tf.GradientTape() as tape:
            outputs = state.model(batch.images, training=True, seed=step_seed)
            terms = dict(state.model.losses(outputs, batch.labels))
            if l2_weight:
                terms["l2_loss"] = l2_loss(state.trainable, l2_weight) / replicas
            loss = tf.add_n(list(terms.values()))
            scaled_loss = loss * _loss_scale(state)
        gradients = tape.gradient(scaled_loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [sum_over_replicas(gradient) / _loss_scale(state) for gradient in gradients]
        gradients, norm = apply_gradient_rules(gradients, state.trainable, gradient_rules)
        learning_rate = tf.cast(state.optimizer.learning_rate, tf.float32)
        # The optimizer sums over replicas again.
        state.optimizer.apply(
            [gradient * _loss_scale(state) / replicas for gradient in gradients], list(state.trainable)
        )
        if state.ema is not None:
            state.ema.update(state.step)
        state.step.assign_add(1)
        metrics = {name: sum_over_replicas(term) for name, term in (terms | {"loss": loss}).items()}
        cut_off = sum_over_replicas(tf.cast(tf.reduce_sum(batch.cut_off), tf.float32))
        return metrics | {"learning_rate": learning_rate, "gradient_norm": norm, "instances_cut_off": cut_off}

    return train_step


def _loss_scale(state: TrainState) -> tf.Tensor:
    scale = getattr(state.optimizer, "dynamic_scale", None)
    return tf.constant(1.0) if scale is None else tf.convert_to_tensor(scale)


def make_train_loop(
    strategy: tf.distribute.Strategy, train_step: Callable[[Batch], Metrics], *, jit_compile: bool
) -> Callable[[tf.data.Iterator, tf.Tensor], Metrics]:
    """Compiles several steps into one call; the metrics are the last step's."""
    # There is no Python control flow on tensors in a step; converting it costs seconds.
    compiled = tf.function(train_step, jit_compile=jit_compile, autograph=False)

    @tf.function(autograph=False)
    def one_step(batch: Batch) -> Metrics:
        # All replicas return the same global figures.
        return tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], strategy.run(compiled, args=(batch,))
        )

    @tf.function
    def train_loop(iterator: tf.data.Iterator, steps: tf.Tensor) -> Metrics:
        # The graph holds the step once: a first step outside the loop would double the start-up.
        outputs = one_step.get_concrete_function(iterator.element_spec).structured_outputs
        metrics = tf.nest.map_structure(lambda output: tf.zeros(output.shape, output.dtype), outputs)
        for _ in tf.range(steps):
            metrics = one_step(next(iterator))
        return metrics

    return train_loop


def require_finite(metrics: dict[str, float], step: int) -> None:
    """Stops a run that has diverged.

    Raises:
        CocoflowError: the loss is NaN or infinite.
    """
    if not math.isfinite(metrics["loss"]):
        terms = ", ".join(f"{name} {value:g}" for name, value in metrics.items())
        raise CocoflowError(
            f"training diverged: the loss is not finite at step {step} ({terms}). "
            "Lower train.schedule.learning_rate, lengthen train.schedule.warmup_steps or tighten train.clip."
        )
