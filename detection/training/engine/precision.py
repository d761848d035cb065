"""Numeric precision of a run, and the loss scale that float16 needs."""

import tensorflow as tf


class LossScale(tf.Module):
    """A factor on the loss that keeps float16 gradients from vanishing; they are divided by it.

    A dynamic scale is halved by each step whose gradients overflow, which is skipped, and
    doubled after `growth_steps` steps in a row without one.  Source: Micikevicius et al.,
    Mixed Precision Training, with the rules and defaults of Keras' LossScaleOptimizer;
    other than there it does not fall below 1, where no scale is to blame any more, nor
    rise to infinity.

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

    def excuses(self) -> tf.Tensor:
        """Whether gradients that are not finite may be the scale's doing, which a smaller one cures; a bool scalar.

        Never of a fixed scale: such gradients are a fault then, as without a scale.
        """
        return (tf.convert_to_tensor(self.scale) > 1.0) & (self._growth_steps is not None)

    def update(self, finite: tf.Tensor) -> None:
        """Adapts a dynamic scale after a step and counts the step if it is skipped.

        Args:
            finite: bool scalar, whether all gradients of the global batch are.
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
