"""Configuration of the SSD family, and its presets.

Liu et al., "SSD: Single Shot MultiBox Detector", 2016; layers, anchors and constants of the TF Object Detection API's
SSDs with a MobileNet, which are those of Sandler et al., "MobileNetV2", 2018, section 6.2, without SSDLite.
"""

import math

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt

from detection.models.backbones.make import BackboneOptions
from detection.models.config import ImageSize, MaxLevel, MinLevel, PixelMean, PixelStd
from detection.models.dense.config import DenseConfig, NeckActivation
from detection.ops.anchors import grid_anchors_yxyx
from schemas.config.section import Section


class ExtraLevelsOptions(Section):
    """The levels above the backbone's."""

    filters: tuple[PositiveInt, ...] = Field(
        (512, 256, 256, 128), description="channels of the levels above the backbone's; one per level"
    )
    separable_conv: bool = Field(False, description="their 3x3 convolutions are separable; false: plain ones")


class LevelHeadsOptions(Section):
    """The class and the box head, a convolution for each level."""

    kernel: PositiveInt = Field(1, description="kernel side of the heads' convolutions")
    separable_conv: bool = Field(
        False, description="depthwise convolution, batch norm, activation and 1x1 convolution; false: a plain one"
    )


class ScaledAnchors(Section):
    """Anchors whose sides are fractions of the image's, evenly spaced over the levels."""

    min_scale: PositiveFloat = Field(
        0.2, description="side of the finest level's anchors, as a fraction of the short side"
    )
    max_scale: PositiveFloat = Field(
        0.95, description="the same of the coarsest level's; levels between are evenly spaced"
    )
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

    def _check_keys(self) -> None:
        if self.min_scale > self.max_scale:
            raise ValueError(f"min_scale = {self.min_scale} is above max_scale = {self.max_scale}")

    def shapes(self, levels: int) -> list[list[tuple[float, float]]]:
        """Returns (scale, width / height) of the anchors of a cell, for each of a number of levels."""
        step = (self.max_scale - self.min_scale) / max(levels - 1, 1)
        scales = [self.min_scale + step * number for number in range(levels)] + [1.0]
        shapes = [[(scale, ratio) for ratio in self.aspect_ratios] for scale in scales[:-1]]
        if self.interpolated_aspect_ratio:
            for number, level in enumerate(shapes):
                level.append((math.sqrt(scales[number] * scales[number + 1]), self.interpolated_aspect_ratio))
        if self.reduce_finest_level:
            shapes[0] = [(0.1, 1.0), (scales[0], 2.0), (scales[0], 0.5)]
        return shapes


class SsdConfig(DenseConfig):
    """Configuration of an SSD."""

    FUNCTION_FIELDS = ("pixel_mean", "pixel_std", "padding", "activation", "batch_norm.epsilon", "anchors")
    PRESET_FIELDS = ("backbone.name", "image_size", "max_level", "neck.filters")

    image_size: ImageSize = (300, 300)
    min_level: MinLevel = 4
    max_level: MaxLevel = 9
    backbone: BackboneOptions = BackboneOptions(name="mobilenet-v2")
    neck: ExtraLevelsOptions = ExtraLevelsOptions()
    head: LevelHeadsOptions = LevelHeadsOptions()
    anchors: ScaledAnchors = ScaledAnchors()
    activation: NeckActivation = "relu6"
    pixel_mean: PixelMean = (127.5, 127.5, 127.5)
    pixel_std: PixelStd = (127.5, 127.5, 127.5)

    @property
    def anchor_shapes(self) -> list[list[tuple[float, float]]]:
        """(scale, width / height) of the anchors of a cell, of each level."""
        return self.anchors.shapes(len(self.levels))

    def anchors_yxyx(self) -> npt.NDArray[np.float32]:
        """See `DetectorConfig.anchors_yxyx`."""
        return grid_anchors_yxyx(self.image_size, self.level_sizes, self.anchor_shapes)


SSDS: dict[str, SsdConfig] = {
    "ssd-mobilenet-v1": SsdConfig(backbone=BackboneOptions(name="mobilenet-v1")),
    "ssd-mobilenet-v2": SsdConfig(),
    # Not from a paper; for CPUs and tests: objects of about an eighth to a half of a small image.
    "ssd-nano": SsdConfig().changed(
        {
            "backbone": {"name": "efficientnet-nano"},
            "image_size": (128, 128),
            "min_level": 3,
            "max_level": 6,
            "neck": {"filters": (128,)},
            "activation": "relu",
            "anchors": {"min_scale": 0.15, "max_scale": 0.6},
        }
    ),
}
