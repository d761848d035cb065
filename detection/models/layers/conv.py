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
    """Convolution without bias, batch norm, activation, and with `affine` a learnt scale and offset.

    Args:
        in_filters: channels of the input.
        filters: channels of the output.
        kernel: side of the kernel.
        stride: stride.
        depthwise: each channel has its own convolution.
        centred: a strided convolution pads all sides equally; False: even sides at the end only.
        activation: name of the activation; None: none, and no scale and offset.
        affine: a scale and an offset of all channels follow the activation.
        batch_norm: arguments of `BatchNormalization`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        in_filters: int,
        filters: int,
        kernel: int,
        stride: int = 1,
        *,
        depthwise: bool = False,
        centred: bool = False,
        activation: str | None,
        affine: bool = False,
        batch_norm: dict[str, float],
        name: str,
        dtype: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self.in_filters, self.filters = in_filters, filters
        self._activation, self._affine = activation, affine and activation is not None
        self._padding = kernel // 2 if depthwise and centred and stride > 1 else 0
        self.conv: Any
        if depthwise:
            self.conv = keras.layers.DepthwiseConv2D(
                kernel,
                strides=stride,
                padding="valid" if self._padding else "same",
                use_bias=False,
                depthwise_initializer=he_normal(),
                name="depthwise_conv2d",
                dtype=dtype,
            )
        else:
            options: dict[str, Any] = {"strides": stride, "centred": centred, "dtype": dtype}
            self.conv = conv2d(filters, kernel, bias=None, initializer=he_normal, name="conv2d", **options)
        self.norm = BatchNormalization(name="batch_normalization", dtype=dtype, **batch_norm)
        self.scale: Any = None
        self.offset: Any = None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        self.conv.build(input_shape)
        self.norm.build((None, None, None, self.filters))
        if self._affine:
            self.scale = self.add_weight(name="scale", shape=(1,), initializer="ones")
            self.offset = self.add_weight(name="offset", shape=(1,), initializer="zeros")

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, H, W, in_filters] to [B, H / stride, W / stride, filters], rounded up."""
        if padding := [self._padding] * 2 if self._padding else None:
            inputs = tf.pad(inputs, [[0, 0], padding, padding, [0, 0]])
        outputs = self.norm(self.conv(inputs), training=training)
        if self._activation is not None:
            outputs = activate(outputs, self._activation)
        if self.scale is None:
            return outputs
        return outputs * tf.cast(self.scale, outputs.dtype) + tf.cast(self.offset, outputs.dtype)
