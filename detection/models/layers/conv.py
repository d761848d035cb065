"""Convolutions of necks and heads: plain or separable, with seeded initial weights."""

from collections.abc import Callable
from typing import Any

import keras

from detection.models.layers.initializers import glorot_uniform


def conv2d(
    filters: int,
    kernel: int,
    *,
    strides: int = 1,
    separable: bool = False,
    bias: float | None = 0.0,
    initializer: Callable[[], Any] = glorot_uniform,
    name: str,
    dtype: Any,
) -> Any:
    """Returns a convolution with padding `same`.

    Args:
        filters: output channels.
        kernel: side of the kernel.
        strides: stride.
        separable: depthwise, then pointwise, without batch norm between them; a 1x1 convolution stays plain.
        bias: initial bias; None: no bias.
        initializer: makes an initializer for each kernel.
        name: layer name.
        dtype: Keras dtype policy.
    """
    separable &= kernel > 1
    kernels = ("depthwise_initializer", "pointwise_initializer") if separable else ("kernel_initializer",)
    layer = keras.layers.SeparableConv2D if separable else keras.layers.Conv2D
    return layer(
        filters,
        kernel,
        strides=strides,
        padding="same",
        use_bias=bias is not None,
        bias_initializer=keras.initializers.Constant(bias or 0.0),
        name=name,
        dtype=dtype,
        **{key: initializer() for key in kernels},
    )
