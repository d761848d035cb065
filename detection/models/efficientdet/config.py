"""Configuration of the EfficientDet family, and its presets.

Tan, Pang and Le, "EfficientDet: Scalable and Efficient Object Detection", 2020,
table 1; the lite variants and D7x as in google/automl.
"""

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from detection.models.backbones.efficientnet_spec import EfficientNetLayout
from detection.models.backbones.make import BackboneOptions
from detection.models.dense.config import (
    Backbone,
    FpnFilters,
    HeadLayers,
    NeckActivation,
    SeparableConv,
    SharedHeadsConfig,
)
from detection.models.heads.dense import HeadOptions
from detection.models.pyramid_config import AnchorScale, AspectRatios, ImageSize, MaxLevel, MinLevel, NumScales

FpnNode = tuple[PositiveInt, tuple[NonNegativeInt, ...]]


class EfficientDetConfig(SharedHeadsConfig):
    """Configuration of an EfficientDet."""

    FUNCTION_FIELDS = (
        "pixel_mean",
        "pixel_std",
        "efficientnet_layout",
        "activation",
        "batch_norm_epsilon",
        "anchor_layout",
    )
    PRESET_FIELDS = (
        *("backbone", "image_size", "max_level", "fpn_filters", "fpn_cells", "fpn_fusion", "head_layers"),
        *("activation", "anchor_scale"),
    )

    backbone: Backbone = "efficientnet-b0"
    efficientnet_layout: EfficientNetLayout = Field(
        "automl",
        description="blocks whose outputs are the levels: automl: the last block before each stride; od-api: as in the "
        "TF Object Detection API, required by its weights: the blocks that are the last ones in EfficientNet-B0; "
        "blocks after the deepest level are not built",
    )
    frozen_stages: NonNegativeInt | None = Field(
        None,
        description="number of frozen backbone stages, batch norm included; stage l ends at level l; 0: all stages "
        "train; none: 4 in a training that starts from ImageNet weights by `model.weights`, else 0",
    )
    image_size: ImageSize = (512, 512)
    min_level: MinLevel = 3
    max_level: MaxLevel = 7
    fpn_filters: FpnFilters = 64
    fpn_cells: PositiveInt = Field(3, description="number of cells in the neck")
    fpn_graph: Literal["bifpn", "qufpn"] | tuple[FpnNode, ...] = Field(
        "bifpn",
        description="nodes of a cell: a name, or a list of [level, [inputs]]; inputs are numbers of the cell's levels, "
        "finest first and from 0, then of its nodes",
    )
    fpn_fusion: Literal["fast_attention", "attention", "channel_fast_attention", "channel_attention", "sum"] = Field(
        "fast_attention",
        description="weights of a node's inputs: fast_attention: relu(w) / (sum + 1e-4); attention: softmax(w); with "
        "channel_: a weight per channel; sum: 1",
    )
    conv_bn_act: bool = Field(
        False, description="nodes of the neck: convolution, batch norm, activation; false: activation comes first"
    )
    resample_batch_norm: bool = Field(
        True, description="batch norm after the 1x1 convolutions that change channels in the neck"
    )
    conv_after_pooling: bool = Field(False, description="those convolutions come after pooling, not before")
    head_layers: HeadLayers = 3
    separable_conv: SeparableConv = True
    activation: NeckActivation = "swish"
    survival_probability: float | None = Field(
        0.8, gt=0.0, le=1.0, description="survival of the last backbone block; none: off"
    )
    head_survival_probability: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="inner layers of the heads, from the second on, are residual branches with this survival; none: "
        "no residual branches",
    )
    anchor_scale: AnchorScale = 4.0
    num_scales: NumScales = 3
    aspect_ratios: AspectRatios = (1.0, 2.0, 0.5)

    @property
    def backbone_options(self) -> BackboneOptions:
        """See `DenseConfig.backbone_options`."""
        options = super().backbone_options
        return replace(options, survival=self.survival_probability, efficientnet_layout=self.efficientnet_layout)

    @property
    def learning_rate(self) -> float:
        """Default peak learning rate of Adam and AdamW: measured, see docs/recipes.md."""
        return 0.003

    def head_options(self, dtype: object) -> HeadOptions:
        """See `SharedHeadsConfig.head_options`."""
        return replace(super().head_options(dtype), survival=self.head_survival_probability)

    @model_validator(mode="after")
    def _fuses_levels(self) -> Self:
        if self.min_level >= self.max_level:
            raise ValueError(f"levels {self.min_level} to {self.max_level}: specify at least two levels")
        return self


def _lite(backbone: str, side: int, filters: int, cells: int, layers: int, *, scale: float) -> EfficientDetConfig:
    return EfficientDetConfig(
        backbone=backbone,
        image_size=(side, side),
        fpn_filters=filters,
        fpn_cells=cells,
        fpn_fusion="sum",
        head_layers=layers,
        activation="relu6",
        anchor_scale=scale,
        pixel_mean=(127.0, 127.0, 127.0),
        pixel_std=(128.0, 128.0, 128.0),
    )


def _full(backbone: str, side: int, filters: int, cells: int, layers: int) -> EfficientDetConfig:
    return EfficientDetConfig(
        backbone=backbone,
        image_size=(side, side),
        fpn_filters=filters,
        fpn_cells=cells,
        head_layers=layers,
        survival_probability=None if backbone.endswith("b0") else 0.8,
    )


_D6 = _full("efficientnet-b6", 1280, 384, 8, 5).model_copy(update={"fpn_fusion": "sum"})

EFFICIENTDETS: dict[str, EfficientDetConfig] = {
    "efficientdet-d0": _full("efficientnet-b0", 512, 64, 3, 3),
    "efficientdet-d1": _full("efficientnet-b1", 640, 88, 4, 3),
    "efficientdet-d2": _full("efficientnet-b2", 768, 112, 5, 3),
    "efficientdet-d3": _full("efficientnet-b3", 896, 160, 6, 4),
    "efficientdet-d4": _full("efficientnet-b4", 1024, 224, 7, 4),
    "efficientdet-d5": _full("efficientnet-b5", 1280, 288, 7, 4),
    "efficientdet-d6": _D6,
    "efficientdet-d7": _D6.model_copy(update={"image_size": (1536, 1536), "anchor_scale": 5.0}),
    "efficientdet-d7x": _D6.model_copy(
        update={"backbone": "efficientnet-b7", "image_size": (1536, 1536), "max_level": 8}
    ),
    "efficientdet-lite0": _lite("efficientnet-lite0", 320, 64, 3, 3, scale=3.0),
    "efficientdet-lite1": _lite("efficientnet-lite1", 384, 88, 4, 3, scale=3.0),
    "efficientdet-lite2": _lite("efficientnet-lite2", 448, 112, 5, 3, scale=3.0),
    "efficientdet-lite3": _lite("efficientnet-lite3", 512, 160, 6, 4, scale=4.0),
    "efficientdet-lite3x": _lite("efficientnet-lite3", 640, 200, 6, 4, scale=3.0),
    "efficientdet-lite4": _lite("efficientnet-lite4", 640, 224, 7, 4, scale=4.0),
    # Not from the paper; for CPUs and tests: objects of about an eighth to a half of a small image.
    "efficientdet-nano": EfficientDetConfig(
        backbone="efficientnet-nano",
        image_size=(128, 128),
        max_level=5,
        fpn_filters=48,
        fpn_cells=2,
        head_layers=2,
        activation="relu",
        survival_probability=None,
        anchor_scale=2.0,
    ),
}
