"""Exponential moving average of weights."""

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf


def dynamic_decay(decay: float, step: tf.Tensor) -> tf.Tensor:
    """min(decay, (1 + step) / (10 + step)): averages over a short past while training is young.

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
    """Shadows of some variables that follow them slowly; they start at the variables' values.

    Args:
        variables: by name; made under the strategy that trains them.
        decay: share of the shadow that stays in each update.
        dynamic: see `dynamic_decay`.
    """

    def __init__(self, variables: Mapping[str, tf.Variable], *, decay: float, dynamic: bool) -> None:
        super().__init__(name="ema")
        self._decay = decay
        self._dynamic = dynamic
        self._followed = dict(variables)
        self.shadows = {
            name: tf.Variable(
                tf.identity(variable),
                trainable=False,
                # Every replica computes the same update.
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            for name, variable in variables.items()
        }

    def update(self, step: tf.Tensor) -> None:
        """Moves the shadows after the weights of `step` (counted from 0) were updated."""
        decay = dynamic_decay(self._decay, step) if self._dynamic else tf.constant(self._decay, tf.float32)
        for name, variable in self._followed.items():
            shadow = self.shadows[name]
            shadow.assign_sub((shadow - tf.cast(variable, shadow.dtype)) * tf.cast(1.0 - decay, shadow.dtype))

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Puts the averages into the variables for the duration of the block, then the raw values back."""
        raw = {name: variable.numpy() for name, variable in self._followed.items()}
        try:
            for name, variable in self._followed.items():
                variable.assign(self.shadows[name].numpy())
            yield
        finally:
            for name, variable in self._followed.items():
                variable.assign(raw[name])
