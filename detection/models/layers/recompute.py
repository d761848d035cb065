"""Gradient checkpointing: parts of a network are computed again for their gradients instead of kept in memory."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from detection.models.layers.batch_norm import statistics_updates


def recomputed(function: Callable[[Any], Any], inputs: Any, *, enabled: bool = True) -> Any:
    """Returns `function(inputs)`, of whose inner values none is kept for the gradient.

    The gradient's pass computes the function once more, so a step takes about a third more
    work and much less memory (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
    2016).  Batch norms update their moving statistics in the first pass only, so that the
    result of a training step is the same.

    Args:
        function: maps tensors to tensors; draws random numbers from seeds only.
        inputs: a tensor, or a list of tensors.
        enabled: False: calls the function as it is.
    """
    if not enabled:
        return function(inputs)
    passes = 0

    def one_pass(*tensors: tf.Tensor) -> Any:
        nonlocal passes
        passes += 1
        with statistics_updates(passes == 1):
            return function(list(tensors) if isinstance(inputs, list) else tensors[0])

    return tf.recompute_grad(one_pass)(*(inputs if isinstance(inputs, list) else [inputs]))
