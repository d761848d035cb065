"""Gradient checkpointing: recomputes activations in the backward pass instead of keeping them in memory."""

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import tensorflow as tf

from detection.models.layers.batch_norm import statistics_updates


def recomputed(function: Callable[[Any], Any], inputs: Any, *, enabled: bool = True) -> Any:
    """Returns `function(inputs)` without keeping intermediate activations for the gradient.

    The backward pass computes the function again, so a step takes about a third more work and
    much less memory (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).  Batch
    norms update their moving statistics in the first pass only, so the result of a training step
    is the same.

    Args:
        function: maps tensors to tensors; draws random numbers from seeds only.
        inputs: a tensor, or a list of tensors.
        enabled: False: call the function directly.
    """
    if not enabled:
        return function(inputs)
    passes = 0
    context = copy_context()  # the gradient may be computed outside of the contexts of this call

    def one_pass(*tensors: tf.Tensor) -> Any:
        nonlocal passes
        passes += 1
        return context.run(_call, function, list(tensors) if isinstance(inputs, list) else tensors[0], passes == 1)

    return tf.recompute_grad(one_pass)(*(inputs if isinstance(inputs, list) else [inputs]))


def _call(function: Callable[[Any], Any], inputs: Any, is_first_pass: bool) -> Any:
    with statistics_updates(is_first_pass):
        return function(inputs)
