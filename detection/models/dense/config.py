"""Config fields shared by the families of dense detectors; each family sets its defaults."""

from typing import Annotated, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from detection.models.backbones.make import BackboneOptions
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD, Activation
from detection.models.heads.dense import HeadOptions
from detection.models.heads.dense_losses import DenseLossOptions, Normalizer
from detection.models.heads.postprocess import BoxPostprocess
from detection.models.pyramid_config import PyramidConfig
from detection.ops.losses import IouLoss

Rgb = tuple[float, float, float]
FourWeights = tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat, NonNegativeFloat]

# As in `PyramidConfig`, descriptions and bounds belong to the types.
Backbone = Annotated[str, Field(description="a key of resnet.RESNETS or efficientnet_spec.BACKBONES")]
FpnFilters = Annotated[PositiveInt, Field(description="channels of neck and heads")]
HeadLayers = Annotated[PositiveInt, Field(description="inner layers of each head")]
SeparableConv = Annotated[
    bool, Field(description="3x3 convolutions of neck and heads are separable; false: plain ones")
]
NeckActivation = Annotated[Activation, Field(description="activation of backbone, neck and heads")]
PixelMean = Annotated[Rgb, Field(description="RGB mean of 0..255 pixels")]
PixelStd = Annotated[Rgb, Field(description="RGB standard deviation of 0..255 pixels")]
MatchThreshold = Annotated[float, Field(gt=0.0, le=1.0, description="min IoU of a positive anchor")]
UnmatchedThreshold = Annotated[
    float | None,
    Field(gt=0.0, le=1.0, description="anchors with an IoU from here to match_threshold are ignored; none: no band"),
]
HuberDelta = Annotated[PositiveFloat, Field(description="in units of the weighted box deltas")]
CodeWeights = Annotated[FourWeights, Field(description="factors of the box deltas (ty, tx, th, tw)")]
LossNormalizer = Annotated[
    Normalizer, Field(description="divisor of the losses; positives: positive anchors, at least 1")
]


class DenseConfig(PyramidConfig):
    """Configuration of a dense detector: its network but for the neck, its losses, its post-processing."""

    backbone: Backbone
    fpn_filters: FpnFilters
    head_layers: HeadLayers
    separable_conv: SeparableConv
    activation: NeckActivation
    share_tower: bool = Field(
        False, description="the box head predicts from the class head's inner layers, and has none of its own"
    )
    gradient_checkpointing: bool = Field(
        False,
        description="recompute backbone blocks, cells of the neck and layers of the heads in the backward pass: "
        "less memory, more time",
    )
    batch_norm_epsilon: PositiveFloat = 1e-3
    pixel_mean: PixelMean = IMAGENET_MEAN
    pixel_std: PixelStd = IMAGENET_STD
    match_threshold: MatchThreshold = 0.5
    unmatched_threshold: UnmatchedThreshold = None
    force_match: bool = Field(True, description="each object also gets the anchor that it overlaps most")
    focal_alpha: float = Field(0.25, ge=0.0, le=1.0)
    focal_gamma: NonNegativeFloat = 1.5
    label_smoothing: float = Field(0.0, ge=0.0, lt=1.0)
    huber_delta: HuberDelta = 0.1
    code_weights: CodeWeights = (1.0, 1.0, 1.0, 1.0)
    box_loss_weight: NonNegativeFloat = 50.0
    iou_loss_type: IouLoss | None = Field(None, description="IoU loss beside the Huber loss; none: no IoU loss")
    iou_loss_weight: NonNegativeFloat = Field(1.0, description="weight of the IoU loss")
    normalizer: LossNormalizer = "positives_plus_one"
    positives_momentum: float = Field(
        0.0, ge=0.0, lt=1.0, description="momentum of the divisor's moving average; 0: a divisor per batch"
    )
    background_class: bool = Field(
        False,
        description="the class outputs have a background before the classes, whose target is 0, as in the TF Object "
        "Detection API, required by its weights",
    )
    postprocess: BoxPostprocess = BoxPostprocess()

    @property
    def batch_norm(self) -> dict[str, float]:
        """Arguments of `BatchNormalization`."""
        return {"momentum": self.momentum, "epsilon": self.batch_norm_epsilon}

    @property
    def loss_options(self) -> DenseLossOptions:
        """Options of the losses."""
        return DenseLossOptions(**{name: getattr(self, name) for name in DenseLossOptions._fields})

    @property
    def backbone_options(self) -> BackboneOptions:
        """Options of the backbone."""
        return BackboneOptions(
            activation=self.activation,
            recompute=self.gradient_checkpointing,
            momentum=self.momentum,
            epsilon=self.batch_norm_epsilon,
        )

    def head_options(self, dtype: object) -> HeadOptions:
        """Options of the class and the box head."""
        return HeadOptions(
            filters=self.fpn_filters,
            num_layers=self.head_layers,
            levels=self.levels,
            activation=self.activation,
            batch_norm=self.batch_norm,
            separable_conv=self.separable_conv,
            recompute=self.gradient_checkpointing,
            dtype=dtype,
        )

    @model_validator(mode="after")
    def _losses_fit(self) -> Self:
        if self.unmatched_threshold is not None and self.unmatched_threshold > self.match_threshold:
            raise ValueError(
                f"unmatched_threshold = {self.unmatched_threshold} is above match_threshold = {self.match_threshold}"
            )
        if self.iou_loss_type is None:
            self.refuse(("iou_loss_weight",), "without iou_loss_type")
        return self
