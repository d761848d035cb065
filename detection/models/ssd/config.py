"""Configuration of the SSD family, and its presets.

Liu et al., "SSD: Single Shot MultiBox Detector", 2016; layers, anchors and constants of the TF Object Detection API's
SSDs with a MobileNet, which are those of Sandler et al., "MobileNetV2", 2018, section 6.2, without SSDLite.
"""

import math
from dataclasses import replace
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from detection.models.backbones.make import BackboneOptions
from detection.models.dense.config import Backbone, DenseConfig, NeckActivation, PixelMean, PixelStd, SeparableConv
from detection.models.pyramid_config import ImageSize, MaxLevel, MinLevel
from detection.ops.anchors import grid_anchors_yxyx

Part = PositiveFloat


class SsdConfig(DenseConfig):
    """Configuration of an SSD."""

    FUNCTION_FIELDS = (
        *("pixel_mean", "pixel_std", "activation", "batch_norm_epsilon"),
        *("min_scale", "max_scale", "aspect_ratios", "interpolated_aspect_ratio"),
    )
    PRESET_FIELDS = ("backbone", "image_size", "max_level", "extra_filters", "separable_conv")

    backbone: Backbone = "mobilenet-v2"
    image_size: ImageSize = (300, 300)
    min_level: MinLevel = 4
    max_level: MaxLevel = 9
    extra_filters: tuple[PositiveInt, ...] = Field(
        (512, 256, 256, 128), description="channels of the levels above the backbone's; one per level"
    )
    separable_conv: SeparableConv = False
    head_kernel: PositiveInt = Field(1, description="kernel side of the heads' convolutions")
    activation: NeckActivation = "relu6"
    pixel_mean: PixelMean = (127.5, 127.5, 127.5)
    pixel_std: PixelStd = (127.5, 127.5, 127.5)
    min_scale: Part = Field(0.2, description="side of the finest level's anchors, as a fraction of the short side")
    max_scale: Part = Field(0.95, description="the same of the coarsest level's; levels between are evenly spaced")
    aspect_ratios: tuple[PositiveFloat, ...] = Field(
        (1.0, 2.0, 0.5, 3.0, 0.3333), min_length=1, description="each width / height"
    )
    interpolated_aspect_ratio: float = Field(
        1.0,
        ge=0.0,
        description="width / height of one more anchor, of the geometric mean of the level's scale and the next "
        "one's; 0: no such anchor",
    )
    reduce_finest_level: bool = Field(
        True, description="the finest level has three anchors: a tenth of the short side, and min_scale with 2 and 1/2"
    )

    @property
    def backbone_options(self) -> BackboneOptions:
        """See `DenseConfig.backbone_options`."""
        return replace(super().backbone_options, expanded=True)

    @property
    def anchor_shapes(self) -> list[list[tuple[float, float]]]:
        """(scale, width / height) of the anchors of a cell, of each level."""
        count = len(self.levels)
        step = (self.max_scale - self.min_scale) / max(count - 1, 1)
        scales = [self.min_scale + step * number for number in range(count)] + [1.0]
        shapes = [[(scale, ratio) for ratio in self.aspect_ratios] for scale in scales[:-1]]
        if self.interpolated_aspect_ratio:
            for number, level in enumerate(shapes):
                level.append((math.sqrt(scales[number] * scales[number + 1]), self.interpolated_aspect_ratio))
        if self.reduce_finest_level:
            shapes[0] = [(0.1, 1.0), (scales[0], 2.0), (scales[0], 0.5)]
        return shapes

    def anchors_yxyx(self) -> npt.NDArray[np.float32]:
        """See `LevelsConfig.anchors_yxyx`."""
        return grid_anchors_yxyx(self.image_size, self.level_sizes, self.anchor_shapes)

    @model_validator(mode="after")
    def _levels_fit(self) -> Self:
        if self.min_scale > self.max_scale:
            raise ValueError(f"min_scale = {self.min_scale} is above max_scale = {self.max_scale}")
        return self


SSDS: dict[str, SsdConfig] = {
    "ssd-mobilenet-v1": SsdConfig(backbone="mobilenet-v1"),
    "ssd-mobilenet-v2": SsdConfig(),
    # Not from a paper; for CPUs and tests: objects of about an eighth to a half of a small image.
    "ssd-nano": SsdConfig(
        backbone="efficientnet-nano",
        image_size=(128, 128),
        min_level=3,
        max_level=6,
        extra_filters=(128,),
        activation="relu",
        min_scale=0.15,
        max_scale=0.6,
    ),
}
