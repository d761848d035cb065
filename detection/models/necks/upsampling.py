"""The neck of the TF Object Detection API's CenterNets, with one output, of the finest level."""

from collections.abc import Sequence
from typing import Any, Literal

import keras
import tensorflow as tf
from pydantic import Field, PositiveInt

from detection.models.layers.batch_norm import BatchNormalization
from detection.models.layers.conv import conv2d
from detection.models.necks.resample import upsample_nearest
from schemas.config.section import Section

_EPSILON = 1e-3


class UpsamplingOptions(Section):
    """The levels of an `UpsamplingNeck`."""

    filters: tuple[PositiveInt, ...] = Field(
        (256, 128, 64, 64), description="channels of the neck's levels, coarsest first; the last are those of the heads"
    )
    interpolation: Literal["nearest", "bilinear"] = Field("nearest", description="interpolation of the upsampling")
    separable_conv: bool = Field(False, description="3x3 convolutions of the neck are separable; false: plain ones")


class UpsamplingNeck(keras.layers.Layer):
    """From the coarsest level to the finest: upsampling, plus a 1x1 lateral, 3x3 convolution, batch norm, ReLU.

    Args:
        options: channels and kind of the levels.
        momentum: momentum of batch norm.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(self, options: UpsamplingOptions, *, momentum: float, name: str = "neck", dtype: Any = None):
        super().__init__(name=name, dtype=dtype)
        self._interpolation = options.interpolation
        filters = options.filters
        # A lateral has the channels of the level above, to which it is added.
        inner = (filters[0], *filters[:-1])
        self.laterals = [
            conv2d(channels, 1, name=f"lateral_{place}", dtype=self.dtype_policy)
            for place, channels in enumerate(inner)
        ]
        self.convs = [
            conv2d(
                channels,
                3,
                separable=options.separable_conv,
                bias=None,
                name=f"output_{place}",
                dtype=self.dtype_policy,
            )
            for place, channels in enumerate(filters[1:], start=1)
        ]
        self.norms = [
            BatchNormalization(momentum=momentum, epsilon=_EPSILON, name=f"{conv.name}_bn", dtype=self.dtype_policy)
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
            if self._interpolation == "nearest":
                larger = upsample_nearest(merged, (height, width))
            else:
                larger = tf.cast(tf.image.resize(merged, (height, width)), merged.dtype)
            merged = lateral(level) + larger
            merged = tf.nn.relu(norm(conv(merged), training=training))
        return merged
