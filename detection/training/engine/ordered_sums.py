"""Sums in a fixed order, which op determinism does not guarantee."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_math_ops

_ARITHMETIC = "arithmetic_optimization"


@contextlib.contextmanager
def ordered_sums() -> Iterator[None]:
    """Makes TensorFlow add three or more tensors from left to right in graphs traced and run in the context.

    The op AddN reuses the first input that no other op still needs for the sum, and adds the others
    to it.  Which input that is depends on the timing of other threads, and the order of three terms
    changes the rounding.  `GradientTape` and `tf.add_n` create AddN ops, and Grappler's arithmetic
    optimization creates them from a + b + c.
    """
    options, add_n = tf.config.optimizer.get_experimental_options(), gen_math_ops.add_n

    def add_in_order(inputs: Sequence[Any], name: str | None = None) -> tf.Tensor:
        # The order of two terms does not matter; variants, such as lists of tensors, have no other op.
        if len(inputs) < 3 or not inputs[0].dtype.is_floating:
            return add_n(inputs, name=name)
        return functools.reduce(tf.add, inputs)

    tf.config.optimizer.set_experimental_options({_ARITHMETIC: False})
    gen_math_ops.add_n = add_in_order  # TensorFlow has no public API for this
    try:
        yield
    finally:
        gen_math_ops.add_n = add_n
        tf.config.optimizer.set_experimental_options({_ARITHMETIC: options.get(_ARITHMETIC, True)})
