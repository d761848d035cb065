"""Learning-rate schedules: pure functions of the step."""

import math
from collections.abc import Callable

import keras
import tensorflow as tf


def constant(step: tf.Tensor, *, peak: float, warmup_steps: int, warmup_start: float) -> tf.Tensor:
    """Linear from `warmup_start` to `peak`, then `peak`.

    Args:
        step: number scalar, >= 0.
        peak: learning rate after warm-up.
        warmup_steps: 0 for none.
        warmup_start: learning rate at step 0.

    Returns:
        float32 scalar.
    """
    return _after_warmup(step, tf.constant(peak, tf.float32), peak, warmup_steps, warmup_start)


def cosine(step: tf.Tensor, *, peak: float, total_steps: int, warmup_steps: int, warmup_start: float) -> tf.Tensor:
    """Linear warm-up, then half a cosine to 0 at `total_steps`.

    Source: Loshchilov and Hutter, SGDR.  The phase is measured from the end of
    warm-up; google/automl measured it from step 0, reached 0 early and rose again.

    Args:
        step: number scalar, >= 0.
        peak: learning rate at the end of warm-up.
        total_steps: > warmup_steps.
        warmup_steps: 0 for none.
        warmup_start: learning rate at step 0.

    Returns:
        float32 scalar.
    """
    phase = (tf.cast(step, tf.float32) - warmup_steps) / (total_steps - warmup_steps)
    decayed = 0.5 * peak * (1.0 + tf.cos(math.pi * tf.clip_by_value(phase, 0.0, 1.0)))
    return _after_warmup(step, decayed, peak, warmup_steps, warmup_start)


def _after_warmup(step: tf.Tensor, value: tf.Tensor, peak: float, warmup_steps: int, warmup_start: float) -> tf.Tensor:
    if warmup_steps == 0:
        return value
    step = tf.cast(step, tf.float32)
    rising = warmup_start + (peak - warmup_start) * step / warmup_steps
    return tf.where(step < warmup_steps, rising, value)


class StepFunction(keras.optimizers.schedules.LearningRateSchedule):
    """A function of the step as Keras' optimizers take it."""

    def __init__(self, function: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._function = function

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """The learning rate at `step`."""
        return self._function(step)
