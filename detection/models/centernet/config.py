"""Configuration of the CenterNet family, and its presets.

Zhou et al., "Objects as Points", 2019; necks, heads and constants of the TF Object Detection API's CenterNets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, NonNegativeFloat, PositiveInt

from detection.models.backbones.hourglass import HOURGLASSES
from detection.models.backbones.make import BackboneOptions
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN
from detection.models.centernet.cell_values import CellHeadOptions
from detection.models.centernet.keypoint_options import KEYPOINT_TASKS, KeypointOptions, KeypointPostprocess
from detection.models.config import BatchNormOptions, DetectorConfig, ImageSize, MaxLevel, MinLevel, PixelMean, PixelStd
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD
from detection.models.necks.upsampling import UpsamplingOptions
from schemas.config.section import Section
from schemas.metrics import COCO_KEYPOINTS


class CenterPostprocess(Section):
    """Options from raw outputs to boxes: the keys of `model.postprocess`."""

    score_threshold: float = Field(0.001, ge=0.0, le=1.0, description="detections have a score above this")
    max_detections: PositiveInt = Field(100, le=100_000, description="max detections per image")
    keypoints: KeypointPostprocess = KeypointPostprocess()


class CenterLossOptions(Section):
    """Losses of the heat-map of centers, and of the sizes and offsets there."""

    min_box_overlap_iou: float = Field(
        0.7, gt=0.0, lt=1.0, description="IoU that boxes keep within the radius of an object's Gaussian"
    )
    focal_alpha: NonNegativeFloat = Field(2.0, description="exponent of the heat-map's error in its focal loss")
    focal_beta: NonNegativeFloat = Field(
        4.0, description="exponent of 1 - target, which reduces the penalty near object centers"
    )
    center_loss_weight: NonNegativeFloat = 1.0
    size_loss_weight: NonNegativeFloat = 0.1
    offset_loss_weight: NonNegativeFloat = 1.0


class CenterNetConfig(DetectorConfig):
    """Configuration of a CenterNet; the epsilon of `batch_norm` is the backbone's."""

    FUNCTION_FIELDS = (
        *("pixel_mean", "pixel_std", "padding", "backbone.layout", "neck.interpolation", "batch_norm.epsilon"),
    )
    PRESET_FIELDS = ("backbone.name", "image_size", "neck.filters", "head.filters")

    image_size: ImageSize = (512, 512)
    min_level: MinLevel = 2
    max_level: MaxLevel = 5
    backbone: BackboneOptions = BackboneOptions()
    neck: UpsamplingOptions = UpsamplingOptions()
    head: CellHeadOptions = CellHeadOptions()
    batch_norm: BatchNormOptions = BatchNormOptions(epsilon=1.001e-5)
    pixel_mean: PixelMean = RESNET_PIXEL_MEAN
    pixel_std: PixelStd = (1.0, 1.0, 1.0)
    loss: CenterLossOptions = CenterLossOptions()
    keypoints: KeypointOptions | None = Field(
        None, description="find the keypoints that the categories name, too; none: boxes only"
    )
    postprocess: CenterPostprocess = CenterPostprocess()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the heads."""
        return ("center", "size", "offset", *(KEYPOINT_TASKS if self.keypoints else ()))

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses by head."""
        weights = {task: getattr(self.loss, f"{task}_loss_weight") for task in ("center", "size", "offset")}
        for task in KEYPOINT_TASKS if self.keypoints else ():
            weights[task] = getattr(self.keypoints, f"{task.removeprefix('keypoint_')}_loss_weight")
        return weights

    @property
    def stride(self) -> int:
        """Side in pixels of the outputs' cells."""
        return int(2**self.min_level)

    def _check_keys(self) -> None:
        if unknown := set(self.head.convs).difference(self.tasks):
            raise ValueError(f"head.convs: no such head: {', '.join(sorted(unknown))}; heads: {', '.join(self.tasks)}")
        filters, backbone = self.neck.filters, self.backbone.name
        if backbone in HOURGLASSES:
            if filters or self.min_level != 2:
                raise ValueError(f"{backbone} needs neck.filters = [] and min_level = 2")
        else:
            coarsest = self.max_level - (self.neck.kind == "deconv")
            count = coarsest - self.min_level + 1
            if len(filters) != count:
                raise ValueError(
                    f"neck.filters = {list(filters)}: specify one value for each of the {count} levels {coarsest} to "
                    f"{self.min_level}"
                )


def head_keys(convs: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, Any]:
    """Returns the options of the heads by dotted key for (channels, kernel side) of each head's convolutions.

    >>> head_keys({"center": [(64, 3)], "size": [(32, 3), (32, 1)], "offset": [(64, 3)]})
    {'head.filters': 64, 'head.convs': {'size': [(32, 3), (32, 1)]}}
    """
    single = [own[0][0] for own in convs.values() if [kernel for _, kernel in own] == [3]]
    filters = max(single, key=single.count, default=CellHeadOptions().filters)
    others = {task: own for task, own in convs.items() if list(own) != [(filters, 3)]}
    return {"head.filters": filters} | ({"head.convs": others} if others else {})


# Spreads of the keypoints of COCO's persons, as in the original's configurations; a nose, then pairs.
_PAIRS = (0.25, 0.35, 0.79, 0.72, 0.62, 1.07, 0.89, 0.89)
PERSON_SPREADS = dict(zip(COCO_KEYPOINTS, (0.26, *(spread for spread in _PAIRS for _ in range(2))), strict=True))

_MOBILENET = CenterNetConfig().changed(
    {
        "backbone": {"name": "mobilenet-v2", "layout": "strided"},
        "neck": {"filters": (64, 32, 24, 24), "separable_conv": True},
        "head": {"separable_conv": True},
        "batch_norm": {"epsilon": 1e-3},
        "pixel_mean": (127.5, 127.5, 127.5),
        "pixel_std": (127.5, 127.5, 127.5),
    }
)

_V2 = CenterNetConfig().changed(
    {
        "backbone": {"name": "resnet-50-v2"},
        "neck": {"kind": "deconv", "filters": (256, 128, 64)},
        "pixel_mean": (127.5, 127.5, 127.5),
        "pixel_std": (127.5, 127.5, 127.5),
    }
)

_HOURGLASS: dict[str, Any] = {
    "neck": {"filters": ()},
    "batch_norm": {"epsilon": 1e-5},
    "pixel_mean": (119.916595, 114.034225, 104.01362),
    "pixel_std": (70.91508, 69.89082, 73.60277),
}

_BOXES: dict[str, CenterNetConfig] = {
    **{
        f"centernet-r{depth}": CenterNetConfig(backbone=BackboneOptions(name=f"resnet-{depth}"))
        for depth in (18, 34, 50, 101)
    },
    **{f"centernet-r{depth}-v2": _V2.changed({"backbone": {"name": f"resnet-{depth}-v2"}}) for depth in (50, 101)},
    "centernet-mobilenet-v2": _MOBILENET,
    **{
        f"centernet-{name}": CenterNetConfig().changed(_HOURGLASS | {"backbone": {"name": name}})
        for name in HOURGLASSES
    },
    # Not from a paper; for CPUs and tests.
    "centernet-nano": CenterNetConfig().changed(
        {
            "backbone": {"name": "efficientnet-nano"},
            "image_size": (128, 128),
            "neck": {"filters": (64, 48, 48, 48)},
            "head": {"filters": 64},
            "batch_norm": {"epsilon": 1e-3},
            "pixel_mean": IMAGENET_MEAN,
            "pixel_std": IMAGENET_STD,
        }
    ),
}

CENTERNETS: dict[str, CenterNetConfig] = _BOXES | {
    f"{name}-kpts": preset.changed({"keypoints": {"spread": PERSON_SPREADS}}) for name, preset in _BOXES.items()
}
