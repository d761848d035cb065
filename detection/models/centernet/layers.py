"""Layers of CenterNet: its neck, up to the finest level, and its heads."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization
from detection.models.layers.initializers import glorot_uniform
from detection.models.necks.resample import upsample_nearest

_NECK_EPSILON = 1e-3


class UpsamplingNeck(keras.layers.Layer):
    """From the coarsest level to the finest: nearest upsampling, plus a 1x1 lateral, 3x3 convolution, batch norm, ReLU.

    Args:
        filters: channels per level, coarsest first.
        momentum: momentum of batch norm.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(self, *, filters: Sequence[int], momentum: float, name: str = "neck", dtype: Any = None):
        super().__init__(name=name, dtype=dtype)
        self._filters = tuple(filters)
        # A lateral has the channels of the level above, to which it is added.
        inner = (filters[0], *filters[:-1])
        self.laterals = [
            _conv(channels, 1, name=f"lateral_{place}", dtype=self.dtype_policy) for place, channels in enumerate(inner)
        ]
        self.convs = [
            _conv(channels, 3, use_bias=False, name=f"output_{place}", dtype=self.dtype_policy)
            for place, channels in enumerate(filters[1:], start=1)
        ]
        self.norms = [
            BatchNormalization(
                momentum=momentum, epsilon=_NECK_EPSILON, name=f"{conv.name}_bn", dtype=self.dtype_policy
            )
            for conv in self.convs
        ]

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per level, finest first."""
        for lateral, shape in zip(self.laterals, reversed(input_shape), strict=True):
            lateral.build(shape)
        for conv, norm, lateral in zip(self.convs, self.norms, self.laterals[1:], strict=True):
            conv.build((None, None, None, lateral.filters))
            norm.build((None, None, None, conv.filters))

    def call(self, features: Sequence[tf.Tensor], training: bool = False) -> tf.Tensor:
        """Maps features [B, h, w, C_l] per level, finest first, to [B, h, w, filters[-1]] of the finest."""
        coarsest, *finer = reversed(features)
        merged = self.laterals[0](coarsest)
        for lateral, conv, norm, level in zip(self.laterals[1:], self.convs, self.norms, finer, strict=True):
            height, width = level.shape[1:3]
            merged = lateral(level) + upsample_nearest(merged, (height, width))
            merged = tf.nn.relu(norm(conv(merged), training=training))
        return merged


class Head(keras.layers.Layer):
    """A 3x3 convolution, ReLU, and a 1x1 convolution.

    Args:
        task: key of its output.
        place: number of the features that it takes.
        filters: inner channels.
        outputs: channels of the output.
        output_bias: initial bias of the output.
        dtype: Keras dtype policy.
    """

    def __init__(self, *, task: str, place: int, filters: int, outputs: int, output_bias: float, dtype: Any):
        super().__init__(name=f"{task}_head_{place}" if place else f"{task}_head", dtype=dtype)
        self.task = task
        self.place = place
        self.inner = _conv(filters, 3, name="conv", dtype=self.dtype_policy)
        self.predict = _conv(outputs, 1, bias=output_bias, name="predict", dtype=self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        self.inner.build(input_shape)
        self.predict.build((None, None, None, self.inner.filters))

    def call(self, features: tf.Tensor) -> tf.Tensor:
        """Maps [B, h, w, F] to [B, h, w, outputs], in the compute dtype."""
        return self.predict(tf.nn.relu(self.inner(features)))


def _conv(filters: int, kernel: int, *, bias: float = 0.0, name: str, dtype: Any, use_bias: bool = True) -> Any:
    return keras.layers.Conv2D(
        filters,
        kernel,
        padding="same",
        use_bias=use_bias,
        kernel_initializer=glorot_uniform(),
        bias_initializer=keras.initializers.Constant(bias),
        name=name,
        dtype=dtype,
    )
