"""The hybrid encoder: attention among the cells of the coarsest level, and paths down and up between the levels.

Source: Zhao et al., "DETRs Beat YOLOs on Real-time Object Detection", 2023, with the blocks of D-FINE.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from pydantic import Field, PositiveInt

from detection.models.dfine.transformer import SelfAttention, dense, grid_positions, layer_norm
from detection.models.layers.batch_norm import activate
from detection.models.layers.conv import ConvNorm
from detection.models.necks.resample import upsample_nearest
from schemas.config.section import Section


class HybridEncoderOptions(Section):
    """The hybrid encoder."""

    filters: PositiveInt = Field(256, description="channels of the levels and of the attention")
    feedforward: PositiveInt = Field(1024, description="inner channels of the attention's dense layers")
    heads: PositiveInt = Field(8, description="heads of the attention")
    blocks: PositiveInt = Field(3, description="RepVGG blocks of each branch between levels")
    block_filters: PositiveInt = Field(128, description="channels of these blocks")
    activation: str = Field("swish", description="activation of the convolutions")
    transposed_positions: bool = Field(
        False, description="positions of an oblong input as in the original, which exchanges height and width"
    )


class HybridEncoder(keras.layers.Layer):
    """Maps the levels of a backbone to levels of the same sizes.

    Args:
        options: the encoder.
        in_filters: channels of each level, finest first.
        batch_norm: arguments of `BatchNormalization`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        options: HybridEncoderOptions,
        in_filters: Sequence[int],
        *,
        batch_norm: dict[str, float],
        name: str = "encoder",
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        filters, between = options.filters, range(len(in_filters) - 1)
        common: dict[str, Any] = {"batch_norm": batch_norm, "dtype": dtype}
        plain = common | {"activation": None}
        strided = plain | {"depthwise": True, "centred": True}
        self.projections = [
            ConvNorm(channels, filters, 1, name=f"input_projection_{number}", **plain)
            for number, channels in enumerate(in_filters)
        ]
        self.attention = EncoderLayer(options, name="attention", dtype=dtype)
        self.laterals = [ConvNorm(filters, filters, 1, name=f"lateral_{number}", **plain) for number in between]
        self.top_down = [Elan(options, name=f"top_down_{number}", **common) for number in between]
        self.downsamples = [
            [
                ConvNorm(filters, filters, 1, name=f"downsample_{number}_pointwise", **plain),
                ConvNorm(filters, filters, 3, 2, name=f"downsample_{number}_depthwise", **strided),
            ]
            for number in between
        ]
        self.bottom_up = [Elan(options, name=f"bottom_up_{number}", **common) for number in between]

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per level, finest first."""
        layers: list[Any] = [*self.projections, *self.laterals, *self.top_down, *self.bottom_up, self.attention]
        for layer in (*layers, *(one for pair in self.downsamples for one in pair)):
            layer.build((None, None, None, layer.in_filters))

    def call(self, features: Sequence[tf.Tensor], training: bool = False) -> list[tf.Tensor]:
        """Maps features [B, h, w, C_l] per level, finest first, to [B, h, w, filters] per level."""
        levels = [layer(level, training=training) for layer, level in zip(self.projections, features, strict=True)]
        inner = [self.attention(levels[-1])]
        for lateral, block, level in zip(self.laterals, self.top_down, levels[-2::-1], strict=True):
            inner[0] = lateral(inner[0], training=training)
            upsampled = upsample_nearest(inner[0], (level.shape[1], level.shape[2]))
            inner.insert(0, block(tf.concat([upsampled, level], axis=-1), training=training))
        outputs = inner[:1]
        for downsample, block, level in zip(self.downsamples, self.bottom_up, inner[1:], strict=True):
            smaller = outputs[-1]
            for layer in downsample:
                smaller = layer(smaller, training=training)
            outputs.append(block(tf.concat([smaller, level], axis=-1), training=training))
        return outputs


class EncoderLayer(keras.layers.Layer):
    """A transformer's layer on the cells of a level: attention and dense layers, each added and normalised."""

    def __init__(self, options: HybridEncoderOptions, *, name: str, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self._feedforward = options.feedforward
        self.transposed_positions = options.transposed_positions
        self.in_filters = options.filters
        self.attention = SelfAttention(options.filters, heads=options.heads, name="self_attention", dtype=dtype)
        self.norms = [layer_norm(f"norm_{number}", dtype) for number in (1, 2)]
        widths = (options.filters, options.feedforward, options.filters)
        self.linears = [
            dense(widths[at], widths[at + 1], name=f"linear_{at + 1}", dtype=dtype) for at in range(len(widths) - 1)
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        self.attention.build(input_shape)
        for norm in self.norms:
            norm.build((None, self.in_filters))
        self.linears[0].build((None, self.in_filters))
        self.linears[1].build((None, self._feedforward))

    def call(self, features: tf.Tensor) -> tf.Tensor:
        """Maps [B, h, w, C] to [B, h, w, C]."""
        _, height, width, channels = features.shape
        positions = grid_positions(height, width, channels, transposed=self.transposed_positions)[np.newaxis]
        tokens = tf.reshape(features, [-1, height * width, channels])
        tokens = self.norms[0](tokens + self.attention(tokens, tf.constant(positions)))
        inner = tf.nn.gelu(self.linears[0](tokens), approximate=False)
        tokens = self.norms[1](tokens + self.linears[1](inner))
        return tf.reshape(tokens, [-1, height, width, channels])


class Elan(keras.layers.Layer):
    """Two levels become one: half of the channels pass two branches in a row, and all parts are aggregated.

    Source: Wang et al., "YOLOv9", 2024, the block RepNCSPELAN4; there, a branch has a third convolution.
    """

    def __init__(self, options: HybridEncoderOptions, *, name: str, dtype: Any, **common: Any):
        super().__init__(name=name, dtype=dtype)
        filters, inner = options.filters, options.block_filters
        common |= {"dtype": dtype, "activation": options.activation}
        self.in_filters = 2 * filters
        self.first = ConvNorm(2 * filters, 2 * filters, 1, name="first", **common)
        self.branches: list[list[Any]] = [
            [
                Csp(channels, inner, blocks=options.blocks, name=f"branch_{number}", **common),
                ConvNorm(inner, inner, 3, name=f"branch_{number}_last", **common),
            ]
            for number, channels in ((1, filters), (2, inner))
        ]
        self.last = ConvNorm(2 * (filters + inner), filters, 1, name="last", **common)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        for layer in (self.first, *(one for branch in self.branches for one in branch), self.last):
            layer.build((None, None, None, layer.in_filters))

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, h, w, 2 * filters] to [B, h, w, filters]."""
        parts = tf.split(self.first(inputs, training=training), 2, axis=-1)
        for branch in self.branches:
            features = parts[-1]
            for layer in branch:
                features = layer(features, training=training)
            parts.append(features)
        return self.last(tf.concat(parts, axis=-1), training=training)


class Csp(keras.layers.Layer):
    """A 1x1 convolution with RepVGG blocks after it, plus another 1x1 convolution."""

    def __init__(self, in_filters: int, filters: int, *, blocks: int, name: str, dtype: Any, **common: Any):
        super().__init__(name=name, dtype=dtype)
        self.in_filters = in_filters
        common |= {"dtype": dtype}
        self.first, self.other = (ConvNorm(in_filters, filters, 1, name=part, **common) for part in ("first", "other"))
        self.blocks = [RepVgg(filters, name=f"block_{number}", **common) for number in range(1, blocks + 1)]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        layers: list[Any] = [self.first, self.other, *self.blocks]
        for layer in layers:
            layer.build((None, None, None, layer.in_filters))

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, h, w, in_filters] to [B, h, w, filters]."""
        features = self.first(inputs, training=training)
        for block in self.blocks:
            features = block(features, training=training)
        return features + self.other(inputs, training=training)


class RepVgg(keras.layers.Layer):
    """A 3x3 and a 1x1 convolution of the same input, added and activated.

    Source: Ding et al., "RepVGG", 2021, without the identity.
    """

    def __init__(self, filters: int, *, activation: str, name: str, dtype: Any, **common: Any):
        super().__init__(name=name, dtype=dtype)
        self._activation, self.in_filters = activation, filters
        common |= {"dtype": dtype, "activation": None}
        self.convs = [ConvNorm(filters, filters, kernel, name=f"conv{kernel}x{kernel}", **common) for kernel in (3, 1)]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        for conv in self.convs:
            conv.build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, h, w, filters] to [B, h, w, filters]."""
        return activate(tf.add_n([conv(inputs, training=training) for conv in self.convs]), self._activation)
