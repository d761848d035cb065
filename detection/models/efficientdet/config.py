"""Configuration of the EfficientDet family, and its presets.

Tan, Pang and Le, "EfficientDet: Scalable and Efficient Object Detection", 2020,
table 1; the lite variants and D7x as in google/automl.
"""

from typing import Self

from pydantic import model_validator

from detection.models.backbones.make import BackboneOptions
from detection.models.config import Dialect, ImageSize, MaxLevel, MinLevel
from detection.models.dense.config import NeckActivation, SharedHeadsConfig
from detection.models.heads.dense import HeadOptions
from detection.models.necks.bifpn import BiFpnOptions


class EfficientDetConfig(SharedHeadsConfig):
    """Configuration of an EfficientDet."""

    FUNCTION_FIELDS = (
        *("pixel_mean", "pixel_std", "padding", "backbone.layout", "activation", "batch_norm.epsilon", "dialect"),
    )
    PRESET_FIELDS = (
        *("backbone.name", "image_size", "max_level", "neck.filters", "neck.cells", "neck.fusion", "head.layers"),
        *("activation", "anchors.scale"),
    )

    image_size: ImageSize = (512, 512)
    min_level: MinLevel = 3
    max_level: MaxLevel = 7
    backbone: BackboneOptions = BackboneOptions(name="efficientnet-b0", frozen_stages=None, survival_probability=0.8)
    dialect: Dialect = "standard"
    neck: BiFpnOptions = BiFpnOptions()
    head: HeadOptions = HeadOptions(separable_conv=True)
    activation: NeckActivation = "swish"

    @property
    def learning_rate(self) -> float:
        """Default peak learning rate of Adam and AdamW: measured, see docs/recipes.md."""
        return 0.003

    @model_validator(mode="after")
    def _fuses_levels(self) -> Self:
        if self.min_level >= self.max_level:
            raise ValueError(f"levels {self.min_level} to {self.max_level}: specify at least two levels")
        return self


def _lite(backbone: str, side: int, filters: int, cells: int, layers: int, *, scale: float) -> EfficientDetConfig:
    return EfficientDetConfig().changed(
        {
            "backbone": {"name": backbone},
            "image_size": (side, side),
            "neck": {"filters": filters, "cells": cells, "fusion": "sum"},
            "head": {"layers": layers},
            "activation": "relu6",
            "anchors": {"scale": scale},
            "pixel_mean": (127.0, 127.0, 127.0),
            "pixel_std": (128.0, 128.0, 128.0),
        }
    )


def _full(backbone: str, side: int, filters: int, cells: int, layers: int) -> EfficientDetConfig:
    survival = None if backbone.endswith("b0") else 0.8
    return EfficientDetConfig().changed(
        {
            "backbone": {"name": backbone, "survival_probability": survival},
            "image_size": (side, side),
            "neck": {"filters": filters, "cells": cells},
            "head": {"layers": layers},
        }
    )


_D6 = _full("efficientnet-b6", 1280, 384, 8, 5).changed({"neck": {"fusion": "sum"}})
_D7 = _D6.changed({"image_size": (1536, 1536)})

EFFICIENTDETS: dict[str, EfficientDetConfig] = {
    "efficientdet-d0": _full("efficientnet-b0", 512, 64, 3, 3),
    "efficientdet-d1": _full("efficientnet-b1", 640, 88, 4, 3),
    "efficientdet-d2": _full("efficientnet-b2", 768, 112, 5, 3),
    "efficientdet-d3": _full("efficientnet-b3", 896, 160, 6, 4),
    "efficientdet-d4": _full("efficientnet-b4", 1024, 224, 7, 4),
    "efficientdet-d5": _full("efficientnet-b5", 1280, 288, 7, 4),
    "efficientdet-d6": _D6,
    "efficientdet-d7": _D7.changed({"anchors": {"scale": 5.0}}),
    "efficientdet-d7x": _D7.changed({"backbone": {"name": "efficientnet-b7"}, "max_level": 8}),
    "efficientdet-lite0": _lite("efficientnet-lite0", 320, 64, 3, 3, scale=3.0),
    "efficientdet-lite1": _lite("efficientnet-lite1", 384, 88, 4, 3, scale=3.0),
    "efficientdet-lite2": _lite("efficientnet-lite2", 448, 112, 5, 3, scale=3.0),
    "efficientdet-lite3": _lite("efficientnet-lite3", 512, 160, 6, 4, scale=4.0),
    "efficientdet-lite3x": _lite("efficientnet-lite3", 640, 200, 6, 4, scale=3.0),
    "efficientdet-lite4": _lite("efficientnet-lite4", 640, 224, 7, 4, scale=4.0),
    # Not from the paper; for CPUs and tests: objects of about an eighth to a half of a small image.
    "efficientdet-nano": EfficientDetConfig().changed(
        {
            "backbone": {"name": "efficientnet-nano", "survival_probability": None},
            "image_size": (128, 128),
            "max_level": 5,
            "neck": {"filters": 48, "cells": 2},
            "head": {"layers": 2},
            "activation": "relu",
            "anchors": {"scale": 2.0},
        }
    ),
}
