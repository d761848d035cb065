"""The section `train.augment`: augmentation of training images.

Only flip and scale jitter are on by default.  The order is
fixed: mosaic, mixup, grid mask, AutoAugment or RandAugment, `steps` in their own order, flip, scale jitter.
"""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from schemas.config.input_size import ImageSize
from schemas.config.section import Section
from schemas.config.train.augmentation_steps import Part, PositivePart, StepEntry


class SwitchedSection(Section):
    """An augmentation whose first key switches it on; if off, the other keys may not be set."""

    def _check_keys(self) -> None:
        switch, *others = type(self).model_fields
        self.refuse(others, f"while {switch} = 0 switches this off; set {switch} too", when=not getattr(self, switch))


class PhaseSection(SwitchedSection):
    """An augmentation of a part of the run."""

    probability: Part = Field(0.0, description="probability per image; 0: off")
    start: Part = Field(0.0, description="fraction of train.steps before which it is off")
    end: Part = Field(1.0, description="fraction of train.steps from which it is off")

    def _check_keys(self) -> None:
        super()._check_keys()
        if self.probability and self.start >= self.end:
            raise ValueError(f"start = {self.start} is not below end = {self.end}")


class MosaicConfig(PhaseSection):
    """Four images in one, around a random point (google/automl)."""

    image_size: ImageSize = Field(680, description="side of the mosaic, or [height, width], pixels")
    min_share: float = Field(
        0.25, gt=0.0, le=0.5, description="min fraction of the mosaic's height and width per image"
    )


class MixupConfig(PhaseSection):
    """Two blended images with the instances of both (Zhang et al., 2019)."""

    alpha: PositiveFloat = Field(
        1.5, description="parameter of the beta distribution (alpha, alpha) of the blend ratio"
    )


class GridMaskConfig(SwitchedSection):
    """A grid of black squares (google/automl)."""

    probability: Part = Field(0.0, description="probability per image; 0: off; google/automl: 0.69")
    ratio: float = Field(0.6, gt=0.0, lt=1.0, description="fraction of the grid's period to keep, along each axis")
    rotation: NonNegativeFloat = Field(10.0, description="max rotation of the grid in either direction, degrees")


class RandAugmentConfig(SwitchedSection):
    """Random operations of AutoAugment (google/automl's `randaug`)."""

    layers: NonNegativeInt = Field(0, description="number of operations per image; 0: off; google/automl: 1")
    magnitude: NonNegativeFloat = Field(15.0, description="strength of the operations; the max of AutoAugment is 10")


class AugmentConfig(Section):
    """Training-time augmentation."""

    end: PositivePart = Field(
        1.0,
        description="fraction of train.steps from which images are only mirrored, and scaled by 1: the last phase of "
        "the recipes of transformers",
    )
    horizontal_flip: bool | Literal["auto"] = Field(
        "auto",
        description="mirror half of the images; auto: unless the names of two categories differ in left and right, as "
        "turn_left and turn_right",
    )
    scale_min: PositiveFloat | Literal["auto"] = Field(
        "auto", description="min scale of scale jitter; 1 fits the image into the input; auto: 1 / scale_max"
    )
    scale_max: PositiveFloat | Literal["auto"] = Field(
        "auto",
        description="max scale of scale jitter; above 1, a random window is cropped; auto: 1 + epochs / 300, at most "
        "1.5: the more often an image is seen, the more it is varied",
    )
    mosaic: MosaicConfig = MosaicConfig()
    mixup: MixupConfig = MixupConfig()
    grid_mask: GridMaskConfig = GridMaskConfig()
    autoaugment: Literal["v0", "v1", "v2", "v3"] | None = Field(
        None, description="AutoAugment policy (Zoph et al., 2019); none: off"
    )
    randaugment: RandAugmentConfig = RandAugmentConfig()
    steps: tuple[StepEntry, ...] = Field(
        (),
        description="steps of the TF Object Detection API, `name` or `{name: {field: value}}`, in order, after the "
        "sections above and before horizontal_flip and scale jitter; for these steps alone, set "
        "horizontal_flip: false, scale_min: 1 and scale_max: 1",
    )

    @property
    def scales(self) -> tuple[float, float]:
        """Min and max of scale jitter; `auto`, before the number of epochs is known, is 1."""
        low, high = (1.0 if value == "auto" else value for value in (self.scale_min, self.scale_max))
        return low, high

    def _check_keys(self) -> None:
        if self.scales[0] > self.scales[1]:
            raise ValueError(f"scale_min = {self.scale_min} is above scale_max = {self.scale_max}")
        if self.autoaugment is not None and self.randaugment.layers:
            raise ValueError("autoaugment and randaugment select the same operations; set one")
