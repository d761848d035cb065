"""The training state, as saved in checkpoints: step, weights, optimizer, EMA weights and loss scale."""

from collections.abc import Mapping
from typing import NamedTuple

import keras
import tensorflow as tf

from detection.models.detector import Detector, variables_by_path
from schemas.artifacts import EMA_PART, LOSSES_PART, MODEL_PART, STEP_PART


def dynamic_decay(decay: float, step: tf.Tensor) -> tf.Tensor:
    """Computes min(decay, (1 + step) / (10 + step)): early in training, the average covers few steps.

    Source: TensorFlow's ExponentialMovingAverage with `num_updates`.

    Args:
        decay: 0 <= decay < 1.
        step: number scalar, counted from 0.

    Returns:
        float32 scalar.
    """
    step = tf.cast(step, tf.float32)
    return tf.minimum(decay, (1.0 + step) / (10.0 + step))


class ExponentialMovingAverage(tf.Module):
    """EMA weights: float32 moving averages of variables, initialized with the variables' values.

    Args:
        variables: variables by name, created under the strategy of the training.
        decay: fraction of the EMA weight that an update keeps.
        dynamic: use `dynamic_decay`.

    Attributes:
        weights: EMA weights by name.
    """

    def __init__(self, variables: Mapping[str, tf.Variable], *, decay: float, dynamic: bool) -> None:
        super().__init__(name="ema")
        self._decay = decay
        self._dynamic = dynamic
        self._variables = dict(variables)
        # Every replica computes the same update of its copy, so nothing is aggregated or sent.
        self.weights = {
            name: tf.Variable(tf.cast(variable, tf.float32), trainable=False) for name, variable in variables.items()
        }

    def update(self, step: tf.Tensor) -> None:
        """Updates the EMA weights after the variables' update of `step` (counted from 0)."""
        decay = dynamic_decay(self._decay, step) if self._dynamic else tf.constant(self._decay, tf.float32)
        share = 1.0 - decay
        for name, variable in self._variables.items():
            weight = self.weights[name].handle
            # Gradient descent is one op in place of two, and these ops are a third of the graph of the update.
            ahead = tf.raw_ops.ReadVariableOp(resource=weight, dtype=tf.float32) - tf.cast(variable, tf.float32)
            tf.raw_ops.ResourceApplyGradientDescent(var=weight, alpha=share, delta=ahead)

    def restart(self) -> None:
        """Sets the EMA weights to the variables' current values."""
        for name, variable in self._variables.items():
            self.weights[name].assign(tf.cast(variable, tf.float32))


class LossScale(tf.Module):
    """Factor on the loss that keeps float16 gradients from vanishing; gradients are divided by it.

    A dynamic scale is halved by each step with overflowing gradients, which is skipped, and doubled
    after `growth_steps` steps in a row without overflow.  Source: Micikevicius et al., Mixed
    Precision Training, with the rules and defaults of Keras' LossScaleOptimizer.  Unlike in Keras,
    the scale never falls below 1, where it cannot cause an overflow, nor rises to infinity.

    Args:
        initial: initial scale, > 0.
        growth_steps: steps without overflow before the scale doubles; None: fixed scale.
    """

    def __init__(self, initial: float, *, growth_steps: int | None) -> None:
        super().__init__(name="loss_scale")
        # Every replica has the same gradients and updates its own copies: nothing is aggregated.
        self.scale = tf.Variable(initial, trainable=False, dtype=tf.float32, name="scale")
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="good_steps")
        self.skipped_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="skipped_steps")
        self._growth_steps = growth_steps

    def may_overflow(self) -> tf.Tensor:
        """Returns whether a smaller scale may fix non-finite gradients: bool scalar.

        False for a fixed scale: non-finite gradients are then an error, as without a scale.
        """
        return (tf.convert_to_tensor(self.scale) > 1.0) & (self._growth_steps is not None)

    def update(self, finite: tf.Tensor) -> None:
        """Adapts a dynamic scale after a step, and counts the step if it is skipped.

        Args:
            finite: bool scalar, whether all gradients of the global batch are finite.
        """
        if self._growth_steps is None:
            return
        scale = tf.convert_to_tensor(self.scale)
        good_steps = tf.where(finite, self.good_steps + 1, tf.constant(0, tf.int64))
        grows = good_steps >= self._growth_steps
        doubled = tf.where(tf.math.is_finite(scale * 2.0), scale * 2.0, scale)
        halved = tf.where(scale > 1.0, tf.maximum(scale / 2.0, 1.0), scale)
        self.scale.assign(tf.where(finite, tf.where(grows, doubled, scale), halved))
        self.good_steps.assign(tf.where(grows, tf.constant(0, tf.int64), good_steps))
        self.skipped_steps.assign_add(tf.cast(~finite, tf.int64))


class TrainState(NamedTuple):
    """The state of a training run.

    step: int64 scalar variable, number of completed steps.
    model: the detector with its raw weights.
    trainable: trainable variables, without frozen ones.
    optimizer: the optimizer with its slots.
    ema: EMA weights, or None.
    loss_scale: float16's loss scale, or None.
    """

    step: tf.Variable
    model: Detector
    trainable: tuple[keras.Variable, ...]
    optimizer: keras.optimizers.Optimizer
    ema: ExponentialMovingAverage | None
    loss_scale: LossScale | None = None

    @property
    def statistics(self) -> list[keras.Variable]:
        """Variables that the forward pass and the losses update: batch norm's, and the detector's `loss_statistics`."""
        return [*self.model.non_trainable_variables, *self.model.loss_statistics]

    def checkpoint(self) -> tf.train.Checkpoint:
        """Builds a checkpoint of the state by variable path, independent of the nesting of the objects."""
        parts = {
            STEP_PART: self.step,
            MODEL_PART: variables_by_path(self.model.variables),
            "optimizer": variables_by_path(self.optimizer.variables),
        }
        if self.model.loss_statistics:
            parts[LOSSES_PART] = variables_by_path(self.model.loss_statistics)
        if self.ema is not None:
            parts[EMA_PART] = dict(self.ema.weights)
        if self.loss_scale is not None:
            parts["loss_scale"] = self.loss_scale
        return tf.train.Checkpoint(**parts)
