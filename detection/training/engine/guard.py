"""The guard against steps that are not finite: their update is not applied, nor any after the run has halted.

It decides on the device, so a loop of many steps needs no word from the host.
"""

import tensorflow as tf


class NonFiniteGuard(tf.Module):
    """Remembers how many more non-finite steps in a row are passed over.

    Args:
        skips: non-finite steps in a row whose update is left out; one more halts the
            run.  0: the first one does.
    """

    def __init__(self, *, skips: int) -> None:
        super().__init__(name="guard")
        self._skips = skips
        # int64: variables of int32 would live in the host's memory.
        self._left = tf.Variable(
            skips, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def judge(self, finite: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes note of a step.

        Args:
            finite: bool scalar, the same on all replicas: the step's figures are finite.

        Returns:
            apply: bool scalar, whether the step's update may be applied.
            halted: bool scalar, whether the run has come to its end, with this step or
                before; it stays so.
        """
        left = tf.convert_to_tensor(self._left)
        running = left >= 0
        after = tf.where(running, tf.where(finite, tf.constant(self._skips, tf.int64), left - 1), left)
        self._left.assign(after)
        return running & finite, after < 0
