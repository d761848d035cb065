"""The necks of the TF Object Detection API's CenterNets, with one output, of the finest level."""

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
    """The neck: its kind and its levels."""

    kind: Literal["fpn", "deconv"] = Field(
        "fpn",
        description="fpn: upsampling, plus the level's features; deconv: a convolution, and a transposed one that "
        "upsamples, from the coarsest level alone",
    )
    filters: tuple[PositiveInt, ...] = Field(
        (256, 128, 64, 64),
        description="channels of the neck's levels, coarsest first, for deconv without the coarsest; the last are "
        "those of the heads",
    )
    interpolation: Literal["nearest", "bilinear"] = Field("nearest", description="interpolation of the upsampling")
    separable_conv: bool = Field(False, description="3x3 convolutions of the neck are separable; false: plain ones")

    def _check_keys(self) -> None:
        self.refuse(("interpolation", "separable_conv"), "with kind = deconv", when=self.kind == "deconv")


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


class DeconvNeck(keras.layers.Layer):
    """From the coarsest level to the finest: 3x3 convolution, batch norm, ReLU; the same, transposed with stride 2.

    Source: `center_net_resnet_feature_extractor.py` of the original; Xiao et al., "Simple Baselines for Human Pose
    Estimation and Tracking", 2018.

    Args:
        options: channels of the levels.
        momentum: momentum of batch norm.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(self, options: UpsamplingOptions, *, momentum: float, name: str = "neck", dtype: Any = None):
        super().__init__(name=name, dtype=dtype)
        common = {"bias": None, "dtype": self.dtype_policy}
        self.convs = [
            conv2d(filters, 3, strides=2 if transposed else 1, transposed=transposed, name=f"{kind}_{place}", **common)
            for place, filters in enumerate(options.filters, start=1)
            for kind, transposed in (("conv", False), ("deconv", True))
        ]
        self.norms = [
            BatchNormalization(momentum=momentum, epsilon=_EPSILON, name=f"{conv.name}_bn", dtype=self.dtype_policy)
            for conv in self.convs
        ]

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per level, finest first."""
        shape = input_shape[-1]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            conv.build(shape)
            shape = (None, None, None, conv.filters)
            norm.build(shape)

    def call(self, features: Sequence[tf.Tensor], training: bool = False) -> tf.Tensor:
        """Maps features [B, h, w, C_l] per level, finest first, to [B, h, w, filters[-1]] of the finest."""
        merged = features[-1]
        for conv, norm, level in zip(
            self.convs, self.norms, [each for each in features[-2::-1] for _ in range(2)], strict=True
        ):
            merged = tf.nn.relu(norm(conv(merged), training=training))
            merged = merged[:, : level.shape[1], : level.shape[2]]  # sides are rounded up on the way down
        return merged
