"""What training does to images before the network sees them."""

from typing import Self

from pydantic import Field, PositiveFloat, model_validator

from schemas.section import Section


class AugmentConfig(Section):
    """Training-time augmentation."""

    horizontal_flip: bool = True
    scale_min: PositiveFloat = Field(0.1, description="scale jitter, relative to fitting the input")
    scale_max: PositiveFloat = 2.0

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.scale_min > self.scale_max:
            raise ValueError(f"scale_min = {self.scale_min} is above scale_max = {self.scale_max}")
        return self
