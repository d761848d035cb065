"""FPN: adds the features of coarser levels to each finer level.

Lin et al., "Feature Pyramid Networks for Object Detection", 2017.
"""

from collections.abc import Sequence
from typing import Any, Literal

import keras
import tensorflow as tf
from pydantic import Field, PositiveInt

from detection.models.layers.batch_norm import BatchNormalization, activate
from detection.models.layers.conv import conv2d
from detection.models.necks.resample import upsample_nearest
from schemas.config.section import Section

FpnLayout = Literal["standard", "od-api"]


class FpnOptions(Section):
    """The convolutions of an FPN."""

    filters: PositiveInt = Field(256, description="channels of the pyramid, and of dense heads")
    separable_conv: bool = Field(False, description="3x3 convolutions of the neck are separable; false: plain ones")


class Fpn(keras.layers.Layer):
    """1x1 laterals, top-down nearest upsampling, 3x3 output convolutions, and extra coarser levels.

    Without batch norm, a single extra level takes every second pixel of the level below, as in TPU
    Mask R-CNN; otherwise, extra levels are 3x3 convolutions with stride 2, with relu between them.
    Batch norm, if any, comes after all that, as in Cloud TPU's RetinaNet.

    The layout `od-api` is that of the TF Object Detection API: the backbone's coarsest level has
    no 3x3 convolution; the others get the output of the level above, not its sum; all extra levels
    are convolutions; and batch norm, if any, in place of a bias, and the activation follow each 3x3
    convolution.  In its Faster R-CNN, batch norms can be folded into the convolutions.

    Args:
        options: channels and kind of the convolutions.
        min_level: finest level.
        backbone_level: coarsest level of the backbone, min_level <= backbone_level.
        max_level: coarsest level, backbone_level <= max_level.
        layout: `standard` or `od-api`.
        activation: activation in the layout `od-api`.
        batch_norm: arguments of `BatchNormalization`; None: no batch norm.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        options: FpnOptions,
        *,
        min_level: int,
        backbone_level: int,
        max_level: int,
        layout: FpnLayout = "standard",
        activation: str = "relu",
        batch_norm: dict[str, float] | None = None,
        name: str = "fpn",
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self._filters = options.filters
        self._hands_outputs_down = layout == "od-api"
        self._activation = activation
        self._subsamples = max_level == backbone_level + 1 and not (self._hands_outputs_down or batch_norm)
        self._batch_norm = batch_norm
        self._separable_conv = options.separable_conv
        levels = range(min_level, backbone_level + 1)
        self.laterals = [self._conv(1, 1, f"lateral_p{level}") for level in levels]
        finer = levels[:-1] if self._hands_outputs_down else levels
        above = [] if self._subsamples else range(backbone_level + 1, max_level + 1)
        self.outputs = [self._conv(3, 1, f"output_p{level}") for level in finer]
        self.extra_levels = [self._conv(3, 2, f"p{level}") for level in above]
        self.norms = [
            BatchNormalization(name=f"{conv.name}_bn", dtype=self.dtype_policy, **batch_norm)
            for conv in (*self.outputs, *self.extra_levels)
            if batch_norm
        ]

    def _conv(self, kernel: int, stride: int, name: str) -> Any:
        has_bias = kernel == 1 or not (self._hands_outputs_down and self._batch_norm)
        return conv2d(
            self._filters,
            kernel,
            strides=stride,
            separable=self._separable_conv,
            bias=0.0 if has_bias else None,
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per backbone level, finest first."""
        inner = (None, None, None, self._filters)
        for lateral, shape in zip(self.laterals, input_shape, strict=True):
            lateral.build(shape)
        for conv in (*self.outputs, *self.extra_levels):
            conv.build(inner)
        for norm in self.norms:
            norm.build(inner)

    def call(self, features: Sequence[tf.Tensor], training: bool = False) -> list[tf.Tensor]:
        """Returns features [B, h, w, filters] of the levels min_level..max_level.

        Args:
            features: float [B, h, w, C_l] of the levels min_level..backbone_level, static
                sizes, each half of the finer one, rounded up.
            training: use batch statistics.
        """
        merged = [lateral(feature) for lateral, feature in zip(self.laterals, features, strict=True)]
        if self._hands_outputs_down:
            return self._outputs_handed_down(merged, training=training)
        for place in reversed(range(len(merged) - 1)):
            merged[place] = _with_coarser(merged[place], merged[place + 1])
        pyramid = [output(feature) for output, feature in zip(self.outputs, merged, strict=True)]
        if self._subsamples:
            pyramid.append(pyramid[-1][:, ::2, ::2])
        for number, conv in enumerate(self.extra_levels):
            pyramid.append(conv(tf.nn.relu(pyramid[-1]) if number else pyramid[-1]))
        if self.norms:
            pyramid = [norm(level, training=training) for norm, level in zip(self.norms, pyramid, strict=True)]
        return pyramid

    def _outputs_handed_down(self, laterals: list[tf.Tensor], *, training: bool) -> list[tf.Tensor]:
        """Returns the pyramid of the layout `od-api` from the laterals' outputs, finest first."""
        pyramid = [laterals[-1]]
        for place in reversed(range(len(self.outputs))):
            merged = _with_coarser(laterals[place], pyramid[0])
            pyramid.insert(0, self._activated(self.outputs[place], merged, place, training))
        for place, conv in enumerate(self.extra_levels, start=len(self.outputs)):
            pyramid.append(self._activated(conv, pyramid[-1], place, training))
        return pyramid

    def _activated(self, conv: Any, inputs: tf.Tensor, place: int, training: bool) -> tf.Tensor:
        outputs = conv(inputs)
        outputs = self.norms[place](outputs, training=training) if self.norms else outputs
        return activate(outputs, self._activation)


def _with_coarser(finer: tf.Tensor, coarser: tf.Tensor) -> tf.Tensor:
    """Upsamples a level and adds it to the finer one."""
    height, width = finer.shape[1:3]
    return finer + upsample_nearest(coarser, (height, width))
