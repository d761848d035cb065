"""SSD: a backbone, strided convolutions above it, and a convolution per level and output.

Liu et al., "SSD: Single Shot MultiBox Detector", 2016.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from detection.models.backbones.efficientnet import Block
from detection.models.backbones.efficientnet_spec import BlockSpec
from detection.models.dense.detector import DenseDetector
from detection.models.layers.batch_norm import BatchNormalization, activate
from detection.models.layers.conv import ConvNorm
from detection.models.layers.initializers import normal
from detection.models.ssd.config import SsdConfig
from schemas.errors import ConfigError


class Ssd(DenseDetector):
    """An SSD; see `DenseDetector`."""

    config: SsdConfig
    expanded_levels = True

    def make_neck(self) -> None:
        """Makes two layers for each level above the backbone's: one halves the channels, one the sides."""
        config, neck, first = self.config, self.config.neck, len(self.backbone.level_filters) + 1
        levels = range(first, config.max_level + 1)
        if len(levels) != len(neck.filters):
            raise ConfigError(
                f"model.overrides.neck.filters = {list(neck.filters)}: {config.backbone.name} lacks {len(levels)} "
                f"levels, {first} to {config.max_level}. Specify one value for each, or change max_level."
            )
        options: dict[str, Any] = {"batch_norm": config.batch_norm.arguments, "dtype": self.dtype_policy}
        options["activation"] = config.activation
        self.extra_levels: list[ConvNorm | Block] = []
        channels = self.backbone.level_filters[-1]
        for level, filters in zip(levels, neck.filters, strict=True):
            name, half = f"extra_p{level}", filters // 2
            self.extra_levels.append(ConvNorm(channels, half, 1, name=f"{name}_reduce", **options))
            if neck.separable_conv:
                spec = BlockSpec(3, 2, 1, half, filters, squeeze_excite=False, adds=False, activates=True)
                self.extra_levels.append(Block(spec=spec, index=0, survival=None, name=name, **options))
            else:
                self.extra_levels.append(ConvNorm(half, filters, 3, 2, name=name, **options))
            channels = filters

    def build_neck(self, level_filters: list[int]) -> list[int]:
        """See `DenseDetector.build_neck`."""
        filters = list(level_filters)
        for number, extra in enumerate(self.config.neck.filters):
            for layer, channels in zip(self.extra_levels[2 * number :], (filters[-1], extra // 2), strict=False):
                layer.build((None, None, None, channels))
            filters.append(extra)
        return filters[self.config.min_level - 1 :]

    def call_neck(self, levels: list[tf.Tensor], sizes: list[tuple[int, int]], training: bool) -> list[tf.Tensor]:
        """See `DenseDetector.call_neck`."""
        levels = list(levels)
        for reduce, halve in zip(self.extra_levels[::2], self.extra_levels[1::2], strict=True):
            levels.append(halve(reduce(levels[-1], training=training), training=training))
        return levels[self.config.min_level - 1 :]

    def make_head(self, prefix: str, *, outputs: int, output_bias: float) -> Any:
        """See `DenseDetector.make_head`."""
        return LevelHeads(self.config, prefix=prefix, outputs=outputs, bias=output_bias, dtype=self.dtype_policy)


class LevelHeads(keras.layers.Layer):
    """A convolution for each level, without inner layers; named `class_net` or `box_net`.

    Args:
        config: levels, anchors and options of the heads.
        prefix: `class` or `box`.
        outputs: outputs per anchor.
        bias: initial bias.
        dtype: Keras dtype policy.
    """

    def __init__(self, config: SsdConfig, *, prefix: str, outputs: int, bias: float, dtype: Any):
        super().__init__(name=f"{prefix}_net", dtype=dtype)
        self._activation = config.activation
        self._depthwise = []
        self._norms = []
        self._convs = []
        for level, shapes in zip(config.levels, config.anchor_shapes, strict=True):
            name = f"{prefix}-p{level}"
            common = {"padding": "same", "dtype": self.dtype_policy}
            kernel = config.head.kernel
            if config.head.separable_conv:
                depthwise = keras.layers.DepthwiseConv2D(
                    kernel, use_bias=False, depthwise_initializer=normal(0.01), name=f"{name}-depthwise", **common
                )
                self._depthwise.append(depthwise)
                batch_norm = config.batch_norm.arguments
                self._norms.append(BatchNormalization(name=f"{name}-bn", dtype=self.dtype_policy, **batch_norm))
                kernel = 1
            self._convs.append(
                keras.layers.Conv2D(
                    len(shapes) * outputs,
                    kernel,
                    kernel_initializer=normal(0.01),
                    bias_initializer=keras.initializers.Constant(bias),
                    name=name,
                    **common,
                )
            )

    @property
    def output_variables(self) -> list[Any]:
        """The variables whose last axis is the prediction's channels."""
        return [variable for conv in self._convs for variable in (conv.kernel, conv.bias)]

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per level."""
        for layers in (self._depthwise, self._norms, self._convs):
            for layer, shape in zip(layers, input_shape, strict=False):
                layer.build(shape)

    def call(
        self, features: Sequence[tf.Tensor], training: bool = False, seed: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """Returns predictions [B, h, w, K * outputs] per level, K anchors per cell, in the compute dtype."""
        inner = list(features)
        for place, (depthwise, norm) in enumerate(zip(self._depthwise, self._norms, strict=True)):
            inner[place] = activate(norm(depthwise(features[place]), training=training), self._activation)
        return [conv(feature) for conv, feature in zip(self._convs, inner, strict=True)]
