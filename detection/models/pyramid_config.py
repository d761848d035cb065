"""Config fields shared by detector families with anchors on a feature pyramid; each family sets the defaults."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from detection.ops.anchors import AnchorLayout, feature_sizes, pyramid_anchors_yxyx
from schemas.config.section import Section

# Descriptions and bounds belong to the types: a family redeclares a field to set its default, and pydantic does not
# inherit them from the base class then.
ImageSize = Annotated[tuple[PositiveInt, PositiveInt], Field(description="(height, width), pixels")]
MinLevel = Annotated[PositiveInt, Field(description="finest pyramid level; level l has stride 2^l")]
MaxLevel = Annotated[PositiveInt, Field(description="coarsest pyramid level")]
AnchorScale = Annotated[
    PositiveFloat | tuple[PositiveFloat, ...],
    Field(description="base anchor side in strides; a list: one per level, finest first"),
]
NumScales = Annotated[PositiveInt, Field(description="anchor octave scales")]
AspectRatios = Annotated[
    tuple[PositiveFloat | tuple[PositiveFloat, PositiveFloat], ...],
    Field(min_length=1, description="each width / height, or [width, height] in base sides"),
]
BatchNormMomentum = Annotated[
    float | None,
    Field(
        ge=0.0,
        lt=1.0,
        description="none: from the length of the run, 1 - 30 / steps, clipped to 0.9..0.99, so that the moving "
        "statistics converge",
    ),
]
_LONG_RUN_MOMENTUM = 0.99


class LevelsConfig(Section):
    """Input size and pyramid levels of a detector; momentum of batch norm."""

    # Fields that change the network's function, but not its variables: a warm start warns about different values.
    FUNCTION_FIELDS: ClassVar[tuple[str, ...]]
    # Columns of the table of presets in the docs.
    PRESET_FIELDS: ClassVar[tuple[str, ...]]
    # Values of fields in a training that starts from random weights, unless the user sets the field.
    FROM_SCRATCH: ClassVar[Mapping[str, Any]] = {}

    image_size: ImageSize
    min_level: MinLevel
    max_level: MaxLevel
    batch_norm_momentum: BatchNormMomentum = None
    batch_norm_epsilon: PositiveFloat

    @property
    def momentum(self) -> float:
        """Momentum of batch norm; only used in training, where `batch_norm_momentum` is not None."""
        return _LONG_RUN_MOMENTUM if self.batch_norm_momentum is None else self.batch_norm_momentum

    @property
    def batch_norm(self) -> dict[str, float]:
        """Arguments of `BatchNormalization`."""
        return {"momentum": self.momentum, "epsilon": self.batch_norm_epsilon}

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


class PyramidConfig(LevelsConfig):
    """Anchors of octave scales and aspect ratios, the same in each level but for the level's stride."""

    anchor_scale: AnchorScale
    num_scales: NumScales
    aspect_ratios: AspectRatios
    anchor_layout: AnchorLayout = Field(
        "cells",
        description="cells: anchors are at the centres of a level's cells; od-api: as in the TF Object Detection API, "
        "required by its weights: strides are powers of two, and the first anchor is at 0 if the input's side is no "
        "multiple; corners: so are strides, and the first anchor is always at 0, as in its grid_anchor_generator",
    )

    @property
    def anchors_per_cell(self) -> int:
        """Number of anchors in each cell of each level."""
        return self.num_scales * len(self.aspect_ratios)

    @property
    def anchors_per_level(self) -> list[int]:
        """Number of anchors of each level, finest first."""
        return [height * width * self.anchors_per_cell for height, width in self.level_sizes]

    def anchors_yxyx(self) -> npt.NDArray[np.float32]:
        """See `LevelsConfig.anchors_yxyx`."""
        return pyramid_anchors_yxyx(
            self.image_size,
            min_level=self.min_level,
            max_level=self.max_level,
            num_scales=self.num_scales,
            aspect_ratios=self.aspect_ratios,
            anchor_scale=self.anchor_scale,
            layout=self.anchor_layout,
        )

    @model_validator(mode="after")
    def _one_scale_per_level(self) -> Self:
        if isinstance(self.anchor_scale, tuple) and len(self.anchor_scale) != len(self.levels):
            raise ValueError(
                f"anchor_scale has {len(self.anchor_scale)} values for the {len(self.levels)} levels {self.min_level} "
                f"to {self.max_level}; specify one number, or one per level"
            )
        return self
