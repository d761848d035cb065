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
    """Shadows of some variables that follow them slowly; they start at the variables' values and are float32.

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
        # Every replica computes the same update of its own copy: nothing is aggregated, nothing sent.
        self.shadows = {
            name: tf.Variable(tf.cast(variable, tf.float32), trainable=False) for name, variable in variables.items()
        }

    def update(self, step: tf.Tensor) -> None:
        """Moves the shadows after the weights of `step` (counted from 0) were updated."""
        decay = dynamic_decay(self._decay, step) if self._dynamic else tf.constant(self._decay, tf.float32)
        for name, variable in self._followed.items():
            shadow = self.shadows[name]
            shadow.assign_sub((shadow - tf.cast(variable, tf.float32)) * (1.0 - decay))

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Puts the averages into the variables for the duration of the block, then the raw values back.

        To be entered outside of replicas.  The raw values wait on the variables' device.
        """
        raw = {name: tf.identity(variable) for name, variable in self._followed.items()}
        try:
            for name, variable in self._followed.items():
                variable.assign(tf.cast(self.shadows[name], variable.dtype))
            yield
        finally:
            for name, variable in self._followed.items():
                variable.assign(raw[name])
