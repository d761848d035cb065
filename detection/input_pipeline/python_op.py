"""Python inside a data pipeline's graph."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def python_op(
    function: Callable[..., Any], inputs: Sequence[Any], dtype: tf.DType, shape: Sequence[int | None]
) -> tf.Tensor:
    """The result of a Python function, as a tensor of a known shape.

    Args:
        function: of numpy arrays and, for tensors without axes, Python values; equal inputs
            must give equal results.
        inputs: its arguments.
        dtype: of the result.
        shape: of the result, None where it varies.

    Returns:
        The result.  What the function raises comes out of the pipeline as a
        `tf.errors.UnknownError` with the message in its text, where
        `schemas.errors.find_user_error` finds it.
    """

    def call(*values: Any) -> Any:
        # Eagerly, scalars come as arrays.
        return function(
            *(value.item() if isinstance(value, np.ndarray) and not value.ndim else value for value in values)
        )

    # Stateless: otherwise op determinism would run the whole pipeline serially.
    return tf.ensure_shape(tf.numpy_function(call, inputs, dtype, stateful=False), shape)
