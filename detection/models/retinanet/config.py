"""Configuration of the RetinaNet family, and its presets.

Lin et al., "Focal Loss for Dense Object Detection", 2017.  Batch norm in neck and heads, and the constants of the
losses, as in the RetinaNet of Cloud TPU's reference models.
"""

from detection.models.backbones.make import BackboneOptions
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN
from detection.models.config import BatchNormOptions, Dialect, ImageSize, MaxLevel, MinLevel, PixelMean
from detection.models.dense.config import NeckActivation, SharedHeadsConfig
from detection.models.detector import IMAGENET_MEAN
from detection.models.heads.dense import HeadOptions
from detection.models.necks.fpn import FpnOptions


class RetinaNetConfig(SharedHeadsConfig):
    """Configuration of a RetinaNet."""

    FUNCTION_FIELDS = (
        *("pixel_mean", "pixel_std", "padding", "backbone.layout", "activation", "batch_norm.epsilon", "dialect"),
    )
    PRESET_FIELDS = ("backbone.name", "image_size", "max_level", "neck.filters", "head.layers", "anchors.scale")

    image_size: ImageSize = (640, 640)
    min_level: MinLevel = 3
    max_level: MaxLevel = 7
    backbone: BackboneOptions = BackboneOptions()
    dialect: Dialect = "standard"
    neck: FpnOptions = FpnOptions()
    head: HeadOptions = HeadOptions(layers=4)
    activation: NeckActivation = "relu"
    batch_norm: BatchNormOptions = BatchNormOptions(epsilon=1e-4)
    pixel_mean: PixelMean = RESNET_PIXEL_MEAN


# Not from a paper; for CPUs and tests: objects of about an eighth to a half of a small image, no pretrained weights.
_NANO = RetinaNetConfig().changed(
    {
        "backbone": {"name": "efficientnet-nano"},
        "image_size": (128, 128),
        "pixel_mean": IMAGENET_MEAN,
        "max_level": 5,
        "neck": {"filters": 48},
        "head": {"layers": 2},
        "anchors": {"scale": 2.0},
    }
)

# Images of -1 to 1, and the layers and losses of the TF Object Detection API, whose detectors these are.
_MOBILE = RetinaNetConfig().changed(
    {
        "backbone": {"name": "mobilenet-v1"},
        "dialect": "od-api",
        "activation": "relu6",
        "batch_norm": {"epsilon": 1e-3},
        "pixel_mean": (127.5, 127.5, 127.5),
        "pixel_std": (127.5, 127.5, 127.5),
        "anchors": {"num_scales": 2},
    }
)
_LITE = _MOBILE.changed(
    {
        "backbone": {"name": "mobilenet-v2"},
        "image_size": (320, 320),
        "neck": {"filters": 128, "separable_conv": True},
        "head": {"separable_conv": True, "share_tower": True},
    }
)

RETINANETS: dict[str, RetinaNetConfig] = {
    **{
        f"retinanet-r{depth}": RetinaNetConfig(backbone=BackboneOptions(name=f"resnet-{depth}"))
        for depth in (18, 34, 50, 101, 152)
    },
    "ssd-mobilenet-v1-fpn": _MOBILE,
    "ssd-mobilenet-v2-fpnlite": _LITE,
    "retinanet-nano": _NANO,
}
