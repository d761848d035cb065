"""Convolutions, plain or separable, also with batch norm, with seeded initial weights."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization, activate
from detection.models.layers.initializers import glorot_uniform, he_normal


def conv2d(
    filters: int,
    kernel: int,
    *,
    strides: int = 1,
    separable: bool = False,
    centred: bool = False,
    transposed: bool = False,
    bias: float | None = 0.0,
    initializer: Callable[[], Any] = glorot_uniform,
    name: str,
    dtype: Any,
) -> Any:
    """Returns a convolution with padding `same`, by which strided ones pad even sides at the end only.

    Args:
        filters: output channels.
        kernel: side of the kernel.
        strides: stride.
        separable: depthwise, then pointwise, without batch norm between them; a 1x1 convolution stays plain.
        centred: a strided plain one pads all sides equally.
        transposed: a plain one, whose strides enlarge its input.
        bias: initial bias; None: no bias.
        initializer: makes an initializer for each kernel.
        name: layer name.
        dtype: Keras dtype policy.
    """
    separable &= kernel > 1
    kernels = ("depthwise_initializer", "pointwise_initializer") if separable else ("kernel_initializer",)
    centred &= kernel > 1 and strides > 1 and not separable
    plain = keras.layers.Conv2DTranspose if transposed else keras.layers.Conv2D
    layer = keras.layers.SeparableConv2D if separable else _CentredConv2D if centred else plain
    return layer(
        filters,
        kernel,
        strides=strides,
        padding="valid" if centred else "same",
        use_bias=bias is not None,
        bias_initializer=keras.initializers.Constant(bias or 0.0),
        name=name,
        dtype=dtype,
        **{key: initializer() for key in kernels},
    )


class _CentredConv2D(keras.layers.Conv2D):
    """Convolution that pads all sides by half of the kernel's."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps [B, H, W, C] to [B, H / strides, W / strides, filters], rounded up."""
        padding = [self.kernel_size[0] // 2] * 2
        return super().call(tf.pad(inputs, [[0, 0], padding, padding, [0, 0]]))


class ConvNorm(keras.layers.Layer):
    """Convolution without bias, batch norm, activation."""

    def __init__(
        self,
        filters: int,
        kernel: int,
        stride: int,
        *,
        activation: str,
        batch_norm: dict[str, float],
        centred: bool = False,
        name: str,
        dtype: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self._activation = activation
        options: dict[str, Any] = {"strides": stride, "centred": centred, "dtype": dtype}
        self.conv = conv2d(filters, kernel, bias=None, initializer=he_normal, name="conv2d", **options)
        self.norm = BatchNormalization(name="batch_normalization", dtype=dtype, **batch_norm)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        self.conv.build(input_shape)
        self.norm.build((None, None, None, self.conv.filters))

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, H, W, C] to [B, H / stride, W / stride, filters]."""
        return activate(self.norm(self.conv(images), training=training), self._activation)
