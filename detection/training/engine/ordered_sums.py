"""Sums whose bits do not depend on time, which op determinism leaves out."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_math_ops

_ARITHMETIC = "arithmetic_optimization"


@contextlib.contextmanager
def ordered_sums() -> Iterator[None]:
    """Makes TensorFlow add three and more tensors from left to right in the graphs that are traced and run inside.

    The op AddN writes its sum into the first input that no other op still needs, and adds the
    others to that one.  Which input this is depends on how far the other threads are, and the order
    of three terms changes the rounding.  `GradientTape` and `tf.add_n` make such ops, and Grappler's
    arithmetic optimization makes them of a + b + c.
    """
    options, add_n = tf.config.optimizer.get_experimental_options(), gen_math_ops.add_n

    def add_in_order(inputs: Sequence[Any], name: str | None = None) -> tf.Tensor:
        # Two terms have one sum; variants, such as lists of tensors, have no other op.
        if len(inputs) < 3 or not inputs[0].dtype.is_floating:
            return add_n(inputs, name=name)
        return functools.reduce(tf.add, inputs)

    tf.config.optimizer.set_experimental_options({_ARITHMETIC: False})
    gen_math_ops.add_n = add_in_order  # there is no public way
    try:
        yield
    finally:
        gen_math_ops.add_n = add_n
        tf.config.optimizer.set_experimental_options({_ARITHMETIC: options.get(_ARITHMETIC, True)})
