"""Configuration of the CenterNet family, and its presets.

Zhou et al., "Objects as Points", 2019; necks, heads and constants of the TF Object Detection API's CenterNets.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from detection.models.backbones.efficientnet_spec import EfficientNetLayout
from detection.models.backbones.hourglass import HOURGLASSES
from detection.models.backbones.make import BackboneOptions
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN, ResNetLayout
from detection.models.dense.config import PixelMean, PixelStd
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD, Padding
from detection.models.heads.keypoint_options import KEYPOINT_TASKS, KeypointPostprocess
from detection.models.necks.upsampling import Interpolation
from detection.models.pyramid_config import ImageSize, LevelsConfig, MaxLevel, MinLevel
from schemas.config.section import Section
from schemas.metrics import COCO_KEYPOINTS


class CenterPostprocess(Section):
    """Options from raw outputs to boxes: the keys of `model.postprocess`."""

    score_threshold: float = Field(0.001, ge=0.0, le=1.0, description="detections have a score above this")
    max_detections: PositiveInt = Field(100, le=100_000, description="max detections per image")
    keypoints: KeypointPostprocess = KeypointPostprocess()


class CenterNetConfig(LevelsConfig):
    """Configuration of a CenterNet."""

    FUNCTION_FIELDS = (
        "pixel_mean",
        "pixel_std",
        "padding",
        "resnet_layout",
        "neck_interpolation",
        "efficientnet_layout",
        "batch_norm_epsilon",
    )
    PRESET_FIELDS = ("backbone", "image_size", "neck_filters", "head_filters")

    backbone: str = Field(
        "resnet-50",
        description="a key of resnet.RESNETS, efficientnet_spec.BACKBONES or hourglass.HOURGLASSES, which have no neck",
    )
    resnet_layout: ResNetLayout = Field(
        "keras",
        description="position of a ResNet's strides, which must match the pretrained weights: keras: as in "
        "keras.applications; od-api: as in the TF Object Detection API, whose ResNet-18 and -34 are pre-activated",
    )
    efficientnet_layout: EfficientNetLayout = Field(
        "automl",
        description="blocks of an EfficientNet or MobileNet that are levels: automl: the last before each stride; "
        "od-api, strided: as in the TF Object Detection API's EfficientDets and CenterNets",
    )
    image_size: ImageSize = (512, 512)
    min_level: MinLevel = 2
    max_level: MaxLevel = 5
    neck_filters: tuple[PositiveInt, ...] = Field(
        (256, 128, 64, 64), description="channels of the neck's levels, coarsest first; the last are those of the heads"
    )
    head_filters: PositiveInt = Field(256, description="channels of each head's 3x3 convolution")
    head_convs: dict[str, tuple[tuple[PositiveInt, PositiveInt], ...]] = Field(
        {},
        description="[channels, kernel side] of the convolutions of single heads, such as {size: [[64, 3], [32, 1]]}, "
        "before their 1x1 outputs; other heads have one 3x3 convolution of head_filters",
    )
    neck_interpolation: Interpolation = Field("nearest", description="of the neck's upsampling")
    separable_neck: bool = Field(False, description="3x3 convolutions of the neck are separable; false: plain ones")
    separable_heads: bool = Field(False, description="3x3 convolutions of the heads are separable; false: plain ones")
    batch_norm_epsilon: PositiveFloat = Field(1.001e-5, description="of the backbone")
    gradient_checkpointing: bool = Field(
        False, description="recompute backbone blocks in the backward pass: less memory, more time"
    )
    pixel_mean: PixelMean = RESNET_PIXEL_MEAN
    pixel_std: PixelStd = (1.0, 1.0, 1.0)
    padding: Padding = "mean"
    min_box_overlap_iou: float = Field(
        0.7, gt=0.0, lt=1.0, description="IoU that boxes keep within the radius of an object's Gaussian"
    )
    focal_alpha: NonNegativeFloat = Field(2.0, description="exponent of the heat-map's error in its focal loss")
    focal_beta: NonNegativeFloat = Field(4.0, description="exponent of 1 - target, which spares the cells near centers")
    center_loss_weight: NonNegativeFloat = 1.0
    size_loss_weight: NonNegativeFloat = 0.1
    offset_loss_weight: NonNegativeFloat = 1.0
    keypoints: bool = Field(False, description="find the keypoints that the categories name, too")
    keypoint_spread: dict[str, PositiveFloat] = Field(
        {},
        description="standard deviation of keypoints' Gaussians by name, as a factor of that of the object's center; "
        "1 for other names",
    )
    keypoint_radius: NonNegativeInt = Field(
        3, description="cells within this distance of a keypoint learn its offset, of a center its keypoints"
    )
    per_keypoint_offset: bool = Field(True, description="each keypoint has its own offsets; false: they share one")
    keypoint_heatmap_loss_weight: NonNegativeFloat = 1.0
    keypoint_offset_loss_weight: NonNegativeFloat = 1.0
    keypoint_regression_loss_weight: NonNegativeFloat = 0.1
    postprocess: CenterPostprocess = CenterPostprocess()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the heads."""
        return ("center", "size", "offset", *(KEYPOINT_TASKS if self.keypoints else ()))

    def convs(self, task: str) -> tuple[tuple[int, int], ...]:
        """Returns (channels, kernel side) of the convolutions of a head."""
        return self.head_convs.get(task, ((self.head_filters, 3),))

    @property
    def stride(self) -> int:
        """Side in pixels of the outputs' cells."""
        return int(2**self.min_level)

    @property
    def backbone_options(self) -> BackboneOptions:
        """Options of the backbone."""
        return BackboneOptions(
            batch_norm=self.batch_norm,
            recompute=self.gradient_checkpointing,
            resnet_layout=self.resnet_layout,
            efficientnet_layout=self.efficientnet_layout,
        )

    @model_validator(mode="after")
    def _filters_fit(self) -> Self:
        of_keypoints = ("keypoint_radius", "per_keypoint_offset", *(f"{task}_loss_weight" for task in KEYPOINT_TASKS))
        self.refuse(of_keypoints, "without keypoints", when=not self.keypoints)
        if unknown := set(self.head_convs).difference(self.tasks):
            raise ValueError(f"head_convs: no such head: {', '.join(sorted(unknown))}; heads: {', '.join(self.tasks)}")
        if self.backbone in HOURGLASSES:
            self.refuse(("gradient_checkpointing", "resnet_layout"), f"with {self.backbone}")
            if self.neck_filters or self.min_level != 2:
                raise ValueError(f"{self.backbone} needs neck_filters = [] and min_level = 2")
        elif len(self.neck_filters) != len(self.levels):
            raise ValueError(
                f"neck_filters = {list(self.neck_filters)}: specify one value for each of the {len(self.levels)} "
                f"levels {self.max_level} to {self.min_level}"
            )
        return self


def head_fields(convs: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, Any]:
    """Returns `head_filters`, and `head_convs` of the heads that need them, for (channels, kernel side) by head.

    >>> head_fields({"center": [(64, 3)], "size": [(32, 3), (32, 1)], "offset": [(64, 3)]})
    {'head_filters': 64, 'head_convs': {'size': [(32, 3), (32, 1)]}}
    """
    single = [own[0][0] for own in convs.values() if [kernel for _, kernel in own] == [3]]
    filters = max(single, key=single.count, default=CenterNetConfig.model_fields["head_filters"].default)
    others = {task: own for task, own in convs.items() if list(own) != [(filters, 3)]}
    return {"head_filters": filters} | ({"head_convs": others} if others else {})


# Spreads of the keypoints of COCO's persons, as in the original's configurations; a nose, then pairs.
_PAIRS = (0.25, 0.35, 0.79, 0.72, 0.62, 1.07, 0.89, 0.89)
PERSON_SPREADS = dict(zip(COCO_KEYPOINTS, (0.26, *(spread for spread in _PAIRS for _ in range(2))), strict=True))

_MOBILENET = CenterNetConfig(
    backbone="mobilenet-v2",
    efficientnet_layout="strided",
    neck_filters=(64, 32, 24, 24),
    separable_neck=True,
    separable_heads=True,
    batch_norm_epsilon=1e-3,
    pixel_mean=(127.5, 127.5, 127.5),
    pixel_std=(127.5, 127.5, 127.5),
)

_HOURGLASS = CenterNetConfig(
    backbone="hourglass-104",
    neck_filters=(),
    batch_norm_epsilon=1e-5,
    pixel_mean=(119.916595, 114.034225, 104.01362),
    pixel_std=(70.91508, 69.89082, 73.60277),
)

_BOXES: dict[str, CenterNetConfig] = {
    **{f"centernet-r{depth}": CenterNetConfig(backbone=f"resnet-{depth}") for depth in (18, 34, 50, 101)},
    "centernet-mobilenet-v2": _MOBILENET,
    **{f"centernet-{name}": _HOURGLASS.model_copy(update={"backbone": name}) for name in HOURGLASSES},
    # Not from a paper; for CPUs and tests.
    "centernet-nano": CenterNetConfig(
        backbone="efficientnet-nano",
        image_size=(128, 128),
        neck_filters=(64, 48, 48, 48),
        head_filters=64,
        batch_norm_epsilon=1e-3,
        pixel_mean=IMAGENET_MEAN,
        pixel_std=IMAGENET_STD,
    ),
}

CENTERNETS: dict[str, CenterNetConfig] = _BOXES | {
    f"{name}-kpts": preset.model_copy(update={"keypoints": True, "keypoint_spread": PERSON_SPREADS})
    for name, preset in _BOXES.items()
}
