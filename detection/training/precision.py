"""Numeric precision of a run, and the loss scale that float16 needs."""

import tensorflow as tf

_ALIASES = {"bfloat16": "mixed_bfloat16"}


def dtype_policy(precision: str) -> str:
    """Keras' name for `train.precision`; variables are float32 under all of them."""
    return _ALIASES.get(precision, precision)


class LossScale(tf.Module):
    """A factor on the loss that keeps float16 gradients from vanishing; they are divided by it.

    A dynamic scale is halved by each step whose gradients are not finite, which is to
    be skipped, and doubled after `growth_steps` steps in a row without one.
    Source: Micikevicius et al., Mixed Precision Training, with the rules and defaults
    of Keras' LossScaleOptimizer; other than there, it never falls below 1, where no
    scale is to blame, nor rises to infinity.

    Args:
        initial: the scale at first, > 0.
        growth_steps: see above; None: the scale is fixed.
    """

    def __init__(self, initial: float, *, growth_steps: int | None) -> None:
        super().__init__(name="loss_scale")
        # Every replica has the same gradients and updates its own copies: nothing is aggregated.
        self.scale = tf.Variable(initial, trainable=False, dtype=tf.float32, name="scale")
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="good_steps")
        self.skipped_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="skipped_steps")
        self._growth_steps = growth_steps

    @property
    def is_dynamic(self) -> bool:
        """Whether steps with gradients that are not finite are to be skipped; a fixed scale excuses none."""
        return self._growth_steps is not None

    def update(self, finite: tf.Tensor) -> None:
        """Adapts a dynamic scale after a step.

        Args:
            finite: bool scalar, whether all gradients of the global batch are.
        """
        if self._growth_steps is None:
            return
        scale = tf.convert_to_tensor(self.scale)
        good_steps = tf.where(finite, self.good_steps + 1, tf.constant(0, tf.int64))
        doubled = scale * 2.0
        grows = (good_steps >= self._growth_steps) & tf.math.is_finite(doubled)
        kept = tf.where(grows, doubled, scale)
        self.scale.assign(tf.where(finite, kept, tf.maximum(scale / 2.0, 1.0)))
        self.good_steps.assign(tf.where(grows, tf.constant(0, tf.int64), good_steps))
        self.skipped_steps.assign_add(tf.cast(tf.logical_not(finite), tf.int64))
