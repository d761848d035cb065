"""Learning-rate schedules: pure functions of the step.

All start with a warm-up, optionally hold the peak for `hold_steps`, and measure their phase
from there.  Steps are counted from 0; arithmetic is float32, with exact step differences.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class Warmup(NamedTuple):
    """Warm-up at the start of training.

    steps: steps of warm-up; 0: no warm-up.
    start: learning rate at step 0.
    rises: True: the rate rises linearly to the peak; False: it stays at `start`, or at the peak
        if `start` is 0, and then jumps to the peak, like the burn-in of the TF Object Detection
        API's exponential decay.
    """

    steps: int = 0
    start: float = 0.0
    rises: bool = True


def constant(step: tf.Tensor, *, peak: float, warmup: Warmup) -> tf.Tensor:
    """Computes a constant rate: `peak` after the warm-up.

    Args:
        step: integer scalar, >= 0.
        peak: learning rate after warm-up.
        warmup: warm-up before the schedule.

    Returns:
        float32 scalar.
    """
    return _after_warmup(step, tf.constant(peak, tf.float32), peak, warmup)


def stepwise(
    step: tf.Tensor, *, peak: float, boundaries: Sequence[int], rates: Sequence[float], warmup: Warmup
) -> tf.Tensor:
    """Computes a piecewise constant rate: `peak`, then one rate from each boundary on.

    Source: TPU Mask R-CNN, google/automl (drops at 2/3 and 5/6 of the steps to a tenth and a
    hundredth), and the TF Object Detection API's manual steps.  Its warm-up rises from the first
    rate to the second until the first boundary; this equals a warm-up of that many steps from the
    first rate, with the second rate as the peak.

    Args:
        step: integer scalar, >= 0.
        peak: learning rate between warm-up and the first boundary.
        boundaries: first step of each rate, counted from step 0, increasing.
        rates: one learning rate per boundary.
        warmup: warm-up before the schedule.

    Returns:
        float32 scalar.
    """
    passed = tf.reduce_sum(tf.cast(tf.cast(step, tf.int64) >= tf.constant(boundaries, tf.int64), tf.int32))
    return _after_warmup(step, tf.gather(tf.constant([peak, *rates], tf.float32), passed), peak, warmup)


def cosine(
    step: tf.Tensor,
    *,
    peak: float,
    total_steps: int,
    warmup: Warmup,
    end: float = 0.0,
    hold_steps: int = 0,
    from_start: bool = False,
) -> tf.Tensor:
    """Computes half a cosine from `peak` to `end` at `total_steps`, and `end` from there on.

    Source: Loshchilov and Hutter, SGDR; TPU Mask R-CNN, with the phase measured from the end of
    warm-up; the TF Object Detection API, with `hold_steps` and `end` 0.

    Args:
        step: integer scalar, >= 0.
        peak: learning rate at the end of warm-up.
        total_steps: length of the schedule, > warmup.steps + hold_steps; a run may be shorter or longer.
        warmup: warm-up before the schedule.
        end: learning rate at the end.
        hold_steps: steps at the peak, after warm-up.
        from_start: the phase is step / (total_steps - warmup.steps), as in google/automl: the
            rate drops slightly at the end of warm-up, reaches `end` early and rises again.  For
            `hold_steps` = 0.

    Returns:
        float32 scalar.
    """
    begin = warmup.steps + hold_steps
    if from_start:
        phase = _since(0, step) / (total_steps - warmup.steps)
    else:
        phase = tf.clip_by_value(_since(begin, step) / (total_steps - begin), 0.0, 1.0)
    return _after_warmup(step, end + 0.5 * (peak - end) * (1.0 + tf.cos(math.pi * phase)), peak, warmup)


def polynomial(
    step: tf.Tensor,
    *,
    peak: float,
    total_steps: int,
    warmup: Warmup,
    power: float,
    end: float = 0.0,
    hold_steps: int = 0,
    from_start: bool = False,
) -> tf.Tensor:
    """Computes a decay from `peak` to `end` at `total_steps`: the fraction of remaining steps, to the power `power`.

    Source: google/automl (power 0.9), which counts the fraction from step 0.

    Args:
        step: integer scalar, >= 0.
        peak: learning rate at the end of warm-up.
        total_steps: length of the schedule, > warmup.steps + hold_steps; a run may be shorter or longer.
        warmup: warm-up before the schedule.
        power: 1 is linear.
        end: learning rate at the end.
        hold_steps: steps at the peak, after warm-up.
        from_start: the fraction is relative to all steps, as in google/automl: the rate drops
            slightly at the end of warm-up.  For `hold_steps` = 0.

    Returns:
        float32 scalar.
    """
    begin = 0 if from_start else warmup.steps + hold_steps
    left = tf.clip_by_value(-_since(total_steps, step) / (total_steps - begin), 0.0, 1.0)
    return _after_warmup(step, end + (peak - end) * tf.pow(left, power), peak, warmup)


def exponential(
    step: tf.Tensor,
    *,
    peak: float,
    decay_steps: int,
    factor: float,
    staircase: bool,
    warmup: Warmup,
    end: float = 0.0,
    hold_steps: int = 0,
) -> tf.Tensor:
    """Computes `peak` times `factor` per `decay_steps` steps, but not below `end`.

    Source: the TF Object Detection API.

    Args:
        step: integer scalar, >= 0.
        peak: learning rate at the end of warm-up.
        decay_steps: > 0.
        factor: 0 < factor <= 1.
        staircase: decay at multiples of `decay_steps` only.
        warmup: warm-up before the schedule.
        end: min learning rate.
        hold_steps: steps at the peak, after warm-up.

    Returns:
        float32 scalar.
    """
    times = tf.maximum(_since(warmup.steps + hold_steps, step), 0.0) / decay_steps
    times = tf.floor(times) if staircase else times
    return _after_warmup(step, tf.maximum(peak * tf.pow(factor, times), end), peak, warmup)


def _since(begin: int, step: tf.Tensor) -> tf.Tensor:
    """Returns the steps since `begin`, float32: exact up to 2 ** 24 steps."""
    return tf.cast(tf.cast(step, tf.int64) - begin, tf.float32)


def _after_warmup(step: tf.Tensor, value: tf.Tensor, peak: float, warmup: Warmup) -> tf.Tensor:
    if warmup.steps == 0:
        return value
    done = _since(0, step)
    rate = warmup.start + (peak - warmup.start) * done / warmup.steps if warmup.rises else warmup.start or peak
    return tf.where(done < warmup.steps, rate, value)
