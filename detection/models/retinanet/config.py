"""Configuration of the RetinaNet family, and its presets.

Lin et al., "Focal Loss for Dense Object Detection", 2017.  Batch norm in neck and heads, and the constants of the
losses, as in the RetinaNet of Cloud TPU's reference models.
"""

from dataclasses import replace

from pydantic import Field, PositiveFloat

from detection.models.backbones.make import BackboneOptions
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN, ResNetLayout
from detection.models.dense.config import (
    Backbone,
    FpnFilters,
    HeadLayers,
    NeckActivation,
    PixelMean,
    SeparableConv,
    SharedHeadsConfig,
)
from detection.models.detector import IMAGENET_MEAN
from detection.models.heads.dense import HeadOptions
from detection.models.necks.fpn import FpnLayout
from detection.models.pyramid_config import AnchorScale, AspectRatios, ImageSize, MaxLevel, MinLevel, NumScales


class RetinaNetConfig(SharedHeadsConfig):
    """Configuration of a RetinaNet."""

    FUNCTION_FIELDS = (
        *("pixel_mean", "pixel_std", "resnet_layout", "activation", "batch_norm_epsilon"),
        *("fpn_layout", "anchor_layout"),
    )
    PRESET_FIELDS = ("backbone", "image_size", "max_level", "fpn_filters", "head_layers", "anchor_scale")

    backbone: Backbone = "resnet-50"
    resnet_layout: ResNetLayout = Field(
        "keras",
        description="position of a ResNet's strides, which must match the pretrained weights: keras: as in "
        "keras.applications; od-api: as in the TF Object Detection API",
    )
    image_size: ImageSize = (640, 640)
    min_level: MinLevel = 3
    max_level: MaxLevel = 7
    fpn_filters: FpnFilters = 256
    fpn_layout: FpnLayout = Field(
        "standard",
        description="od-api: as in the TF Object Detection API, required by its weights: a level gets the output of "
        "the level above, batch norm and activation follow each 3x3 convolution, and no biases before batch norm",
    )
    head_layers: HeadLayers = 4
    separable_conv: SeparableConv = False
    activation: NeckActivation = "relu"
    batch_norm_epsilon: PositiveFloat = 1e-4
    pixel_mean: PixelMean = RESNET_PIXEL_MEAN
    anchor_scale: AnchorScale = 4.0
    num_scales: NumScales = 3
    aspect_ratios: AspectRatios = (1.0, 2.0, 0.5)

    @property
    def backbone_options(self) -> BackboneOptions:
        """See `DenseConfig.backbone_options`."""
        return replace(super().backbone_options, resnet_layout=self.resnet_layout)

    def head_options(self, dtype: object) -> HeadOptions:
        """See `SharedHeadsConfig.head_options`."""
        return replace(super().head_options(dtype), conv_bias=self.fpn_layout == "standard")


# Not from a paper; for CPUs and tests: objects of about an eighth to a half of a small image, no pretrained weights.
_NANO = RetinaNetConfig(
    backbone="efficientnet-nano",
    image_size=(128, 128),
    pixel_mean=IMAGENET_MEAN,
    max_level=5,
    fpn_filters=48,
    head_layers=2,
    anchor_scale=2.0,
)

# Images of -1 to 1, and the layers and losses of the TF Object Detection API, whose detectors these are.
_MOBILE = {
    "fpn_layout": "od-api",
    "activation": "relu6",
    "batch_norm_epsilon": 1e-3,
    "pixel_mean": (127.5, 127.5, 127.5),
    "pixel_std": (127.5, 127.5, 127.5),
    "num_scales": 2,
}
_LITE = {"image_size": (320, 320), "fpn_filters": 128, "separable_conv": True, "share_tower": True}

RETINANETS: dict[str, RetinaNetConfig] = {
    **{f"retinanet-r{depth}": RetinaNetConfig(backbone=f"resnet-{depth}") for depth in (18, 34, 50, 101, 152)},
    "ssd-mobilenet-v1-fpn": RetinaNetConfig.model_validate(_MOBILE | {"backbone": "mobilenet-v1"}),
    "ssd-mobilenet-v2-fpnlite": RetinaNetConfig.model_validate(_MOBILE | _LITE | {"backbone": "mobilenet-v2"}),
    "retinanet-nano": _NANO,
}
