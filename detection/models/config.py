"""The options that all detectors have, and those of a pyramid of anchors.

A detector's configuration is the tree of the options of its parts: `backbone`, `neck`, `head`, `anchors`, `loss` and
`postprocess` are the objects that the parts take.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from detection.models.backbones.make import BackboneOptions
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD, Padding
from detection.ops.anchors import AnchorLayout, feature_sizes, pyramid_anchors_yxyx
from schemas.config.section import Section

# Descriptions and bounds belong to the types: a family redeclares a field to set its default, and pydantic does not
# inherit them from the base class then.
Rgb = tuple[float, float, float]
ImageSize = Annotated[tuple[PositiveInt, PositiveInt], Field(description="(height, width), pixels")]
MinLevel = Annotated[PositiveInt, Field(description="finest pyramid level; level l has stride 2^l")]
MaxLevel = Annotated[PositiveInt, Field(description="coarsest pyramid level")]
PixelMean = Annotated[Rgb, Field(description="RGB mean of 0..255 pixels")]
PixelStd = Annotated[Rgb, Field(description="RGB standard deviation of 0..255 pixels")]

_LONG_RUN_MOMENTUM = 0.99


class BatchNormOptions(Section):
    """Batch norm of all layers that have it."""

    momentum: float | None = Field(
        None,
        ge=0.0,
        lt=1.0,
        description="none: from the length of the run, 1 - 30 / steps, clipped to 0.9..0.99, so that the moving "
        "statistics converge",
    )
    epsilon: PositiveFloat = Field(1e-3, description="added to the variance")

    @property
    def arguments(self) -> dict[str, float]:
        """Arguments of `BatchNormalization`; a training sets `momentum` before it reads them."""
        return {"momentum": _LONG_RUN_MOMENTUM if self.momentum is None else self.momentum, "epsilon": self.epsilon}


class DetectorConfig(Section):
    """Options of every detector; a family adds its parts and sets the defaults."""

    # Dotted fields that change the network's function, but not its variables: a warm start warns about other values.
    FUNCTION_FIELDS: ClassVar[tuple[str, ...]]
    # Dotted fields that are the columns of the table of presets in the docs.
    PRESET_FIELDS: ClassVar[tuple[str, ...]]
    # Values of fields in a training that starts from random weights, unless the user sets the field.
    FROM_SCRATCH: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    image_size: ImageSize
    min_level: MinLevel
    max_level: MaxLevel
    backbone: BackboneOptions
    batch_norm: BatchNormOptions = BatchNormOptions()
    gradient_checkpointing: bool = Field(
        False,
        description="recompute backbone blocks, and cells and layers of an EfficientDet's neck and of dense heads, in "
        "the backward pass: less memory, more time",
    )
    pixel_mean: PixelMean = IMAGENET_MEAN
    pixel_std: PixelStd = IMAGENET_STD
    padding: Padding = "mean"

    @property
    def levels(self) -> range:
        """Pyramid levels, finest first."""
        return range(self.min_level, self.max_level + 1)

    @property
    def level_sizes(self) -> list[tuple[int, int]]:
        """(height, width) of the features of each level, finest first."""
        return feature_sizes(self.image_size, self.max_level)[self.min_level :]

    def anchors_yxyx(self) -> npt.NDArray[np.float32]:
        """Returns the anchors of all levels, float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the input."""
        raise NotImplementedError


class PyramidAnchors(Section):
    """Anchors of octave scales and aspect ratios, the same in each level but for the level's stride."""

    scale: PositiveFloat | tuple[PositiveFloat, ...] = Field(
        4.0, description="base anchor side in strides; a list: one per level, finest first"
    )
    num_scales: PositiveInt = Field(3, description="anchor octave scales")
    aspect_ratios: tuple[PositiveFloat | tuple[PositiveFloat, PositiveFloat], ...] = Field(
        (1.0, 2.0, 0.5), min_length=1, description="each width / height, or [width, height] in base sides"
    )

    @property
    def per_cell(self) -> int:
        """Number of anchors in each cell of each level."""
        return self.num_scales * len(self.aspect_ratios)


Dialect = Annotated[
    Literal["standard", "od-api"],
    Field(
        description="od-api: neck and anchors as in the TF Object Detection API, required by its weights: an FPN's "
        "level gets the output of the level above, batch norm and activation follow each 3x3 convolution, and no "
        "biases before batch norm; strides of anchors are powers of two, and the first one is at 0 if the input's "
        "side is no multiple"
    ),
]


class PyramidConfig(DetectorConfig):
    """Options of a detector with `PyramidAnchors`."""

    dialect: str
    anchors: PyramidAnchors = PyramidAnchors()

    @property
    def anchor_layout(self) -> AnchorLayout:
        """Places of the anchors in their cells."""
        return "od-api" if self.dialect == "od-api" else "cells"

    @property
    def anchors_per_level(self) -> list[int]:
        """Number of anchors of each level, finest first."""
        return [height * width * self.anchors.per_cell for height, width in self.level_sizes]

    def anchors_yxyx(self) -> npt.NDArray[np.float32]:
        """See `DetectorConfig.anchors_yxyx`."""
        return pyramid_anchors_yxyx(
            self.image_size,
            min_level=self.min_level,
            max_level=self.max_level,
            num_scales=self.anchors.num_scales,
            aspect_ratios=self.anchors.aspect_ratios,
            anchor_scale=self.anchors.scale,
            layout=self.anchor_layout,
        )

    @model_validator(mode="after")
    def _one_scale_per_level(self) -> Self:
        scale = self.anchors.scale
        if isinstance(scale, tuple) and len(scale) != len(self.levels):
            raise ValueError(
                f"anchors.scale has {len(scale)} values for the {len(self.levels)} levels {self.min_level} to "
                f"{self.max_level}; specify one number, or one per level"
            )
        return self
