"""The section `train.augment`: augmentation of training images.

Only flip and scale jitter are on by default.  The order is
fixed: mosaic, mixup, grid mask, AutoAugment or RandAugment, colour jitter, SSD crop,
`steps` in their own order, flip, scale jitter.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from schemas.config.input_size import ImageSize
from schemas.config.section import Section
from schemas.config.train.augmentation_steps import Part, PositivePart, StepEntry


def _ascending(values: tuple[float, float]) -> tuple[float, float]:
    if values[0] > values[1]:
        raise ValueError(f"range [{values[0]:g}, {values[1]:g}] is not ascending; swap the values")
    return values


Range = Annotated[tuple[NonNegativeFloat, NonNegativeFloat], AfterValidator(_ascending)]
PositiveRange = Annotated[tuple[PositiveFloat, PositiveFloat], AfterValidator(_ascending)]
PositivePartRange = Annotated[tuple[PositivePart, PositivePart], AfterValidator(_ascending)]


class SwitchedSection(Section):
    """An augmentation whose first key switches it on; if off, the other keys may not be set."""

    def _check_keys(self) -> None:
        switch, *others = type(self).model_fields
        self.refuse(others, f"while {switch} = 0 switches this off; set {switch} too", when=not getattr(self, switch))


class MosaicConfig(SwitchedSection):
    """Four images in one, around a random point (google/automl)."""

    probability: Part = Field(0.0, description="probability per image; 0: off")
    image_size: ImageSize = Field(680, description="side of the mosaic, or [height, width], pixels")
    min_share: float = Field(
        0.25, gt=0.0, le=0.5, description="min fraction of the mosaic's height and width per image"
    )


class MixupConfig(SwitchedSection):
    """Two blended images with the instances of both (Zhang et al., 2019)."""

    probability: Part = Field(0.0, description="probability per image; 0: off")
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


class ColorConfig(SwitchedSection):
    """Colour jitter; amounts are drawn from ranges (TF Object Detection API)."""

    probability: Part = Field(0.0, description="probability per image; 0: off")
    brightness: Part = Field(0.2, description="max change, as a fraction of 255; 0: off")
    contrast: Range = Field((0.8, 1.25), description="range of the factor for the distance to the mean; [1, 1]: off")
    saturation: Range = Field((0.8, 1.25), description="range of the factor; [1, 1]: off")
    hue: float = Field(0.02, ge=0.0, le=0.5, description="max rotation, as a fraction of the colour circle; 0: off")
    gray_probability: Part = Field(0.1, description="probability of conversion to grey")


class SsdCropConfig(SwitchedSection):
    """The random crop of SSD (TF Object Detection API's `ssd_random_crop`)."""

    probability: Part = Field(0.0, description="probability per image; 0: off; TF Object Detection API: 0.85")
    min_overlaps: Annotated[tuple[Part, ...], Field(min_length=1)] = Field(
        (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0),
        description="values to draw from: min fraction of at least one object that the window covers",
    )
    aspect_ratio_range: PositiveRange = Field((0.5, 2.0), description="range of the window's width / height")
    area_range: PositivePartRange = Field(
        (0.1, 1.0), description="range of the window's area, as a fraction of the image's"
    )
    keep: Literal["overlap", "centre"] = Field(
        "overlap",
        description="overlap: keep objects with at least the drawn fraction inside the window; centre: keep objects "
        "with their centre inside",
    )


class AugmentConfig(Section):
    """Training-time augmentation."""

    horizontal_flip: bool = Field(True, description="mirror half of the images")
    scale_min: PositiveFloat = Field(0.5, description="min scale of scale jitter; 1 fits the image into the input")
    scale_max: PositiveFloat = Field(1.5, description="max scale of scale jitter; above 1, a random window is cropped")
    mosaic: MosaicConfig = MosaicConfig()
    mixup: MixupConfig = MixupConfig()
    grid_mask: GridMaskConfig = GridMaskConfig()
    autoaugment: Literal["v0", "v1", "v2", "v3"] | None = Field(
        None, description="AutoAugment policy (Zoph et al., 2019); none: off"
    )
    randaugment: RandAugmentConfig = RandAugmentConfig()
    color: ColorConfig = ColorConfig()
    ssd_crop: SsdCropConfig = SsdCropConfig()
    steps: tuple[StepEntry, ...] = Field(
        (),
        description="steps of the TF Object Detection API, `name` or `{name: {field: value}}`, in order, after the "
        "sections above and before horizontal_flip and scale jitter; for these steps alone, set "
        "horizontal_flip: false, scale_min: 1 and scale_max: 1",
    )

    def _check_keys(self) -> None:
        if self.scale_min > self.scale_max:
            raise ValueError(f"scale_min = {self.scale_min} is above scale_max = {self.scale_max}")
        if self.autoaugment is not None and self.randaugment.layers:
            raise ValueError("autoaugment and randaugment select the same operations; set one")
        if self.ssd_crop.probability and self.scale_max > 1.0:
            raise ValueError(
                f"ssd_crop and scale_max = {self.scale_max:g} would both crop the image; "
                "set scale_max = 1 (and scale_min = 1, or less to shrink), or remove ssd_crop"
            )
