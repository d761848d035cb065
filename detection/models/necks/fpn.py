"""FPN: every level gets the coarser levels' features from above.

Lin et al., "Feature Pyramid Networks for Object Detection", 2017.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from detection.models.necks.resample import upsample_nearest


class Fpn(keras.layers.Layer):
    """1x1 laterals, nearest upsampling from the top down, 3x3 output convolutions, and coarser levels above.

    One level above the backbone's is every second pixel of the level below; of several, each
    is a 3x3 convolution with stride 2, with relu between them.  There is no batch norm.

    Args:
        min_level: finest level.
        backbone_level: coarsest level of the backbone, min_level <= backbone_level.
        max_level: coarsest level, backbone_level <= max_level.
        filters: channels of all outputs.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        min_level: int,
        backbone_level: int,
        max_level: int,
        filters: int,
        name: str = "fpn",
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self._filters = filters
        self._subsamples = max_level == backbone_level + 1
        levels = range(min_level, backbone_level + 1)
        self.laterals = [self._conv(1, 1, f"lateral_p{level}") for level in levels]
        self.outputs = [self._conv(3, 1, f"output_p{level}") for level in levels]
        above = range(backbone_level + 1, max_level + 1)
        self.extra_levels = [] if self._subsamples else [self._conv(3, 2, f"p{level}") for level in above]

    def _conv(self, kernel: int, stride: int, name: str) -> Any:
        return keras.layers.Conv2D(
            self._filters, kernel, strides=stride, padding="same", name=name, dtype=self.dtype_policy
        )

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per backbone level, finest first."""
        inner = (None, None, None, self._filters)
        for lateral, output, shape in zip(self.laterals, self.outputs, input_shape, strict=True):
            lateral.build(shape)
            output.build(inner)
        for conv in self.extra_levels:
            conv.build(inner)

    def call(self, features: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns features [B, h, w, filters] of the levels min_level..max_level.

        Args:
            features: float [B, h, w, C_l] of the levels min_level..backbone_level, static
                sizes, each half the one before, rounded up.
        """
        merged = [lateral(feature) for lateral, feature in zip(self.laterals, features, strict=True)]
        for place in reversed(range(len(merged) - 1)):
            finer = merged[place]
            height, width = finer.shape[1:3]
            merged[place] = finer + upsample_nearest(merged[place + 1], (height, width))
        pyramid = [output(feature) for output, feature in zip(self.outputs, merged, strict=True)]
        if self._subsamples:
            pyramid.append(pyramid[-1][:, ::2, ::2])
        for number, conv in enumerate(self.extra_levels):
            pyramid.append(conv(tf.nn.relu(pyramid[-1]) if number else pyramid[-1]))
        return pyramid
