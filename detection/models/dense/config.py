"""Config fields shared by the families of dense detectors; each family sets its defaults."""

from typing import Annotated, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from detection.models.backbones.make import BackboneOptions
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD, Activation
from detection.models.heads.dense import HeadOptions
from detection.models.heads.dense_losses import BoxLoss, ClassLoss, DenseLossOptions, Normalizer
from detection.models.heads.hard_examples import HardExampleMiner
from detection.models.heads.postprocess import BoxPostprocess
from detection.models.pyramid_config import LevelsConfig, PyramidConfig
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

_CLASS_LOSS_KEYS = {
    ("focal_alpha", "focal_gamma", "label_smoothing"): "focal",
    ("logit_scale",): "softmax",
    ("bootstrap_alpha",): "bootstrapped",
}


class DenseConfig(LevelsConfig):
    """Configuration of a dense detector: its backbone, its losses, its post-processing."""

    backbone: Backbone
    separable_conv: SeparableConv
    activation: NeckActivation
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
    class_loss: ClassLoss = Field(
        "focal",
        description="focal: with focal_gamma = 0 and no focal_alpha, sigmoid cross-entropy; softmax: over the classes "
        "and the background; logits_softmax: so are the targets; bootstrapped_sigmoid: targets are mixed with the "
        "predicted probabilities, hard_: with decisions",
    )
    class_loss_weight: NonNegativeFloat = 1.0
    focal_alpha: float | None = Field(
        0.25, ge=0.0, le=1.0, description="weight of targets, 1 - focal_alpha of the others; none: no weights"
    )
    focal_gamma: NonNegativeFloat = 1.5
    label_smoothing: float = Field(0.0, ge=0.0, lt=1.0)
    logit_scale: PositiveFloat = Field(1.0, description="divisor of the class outputs of a softmax")
    bootstrap_alpha: float = Field(0.95, ge=0.0, le=1.0, description="share of the true target in a bootstrapped one")
    box_loss: BoxLoss = Field(
        "huber",
        description="loss of the box deltas; code_iou and code_giou take them for boxes, as the TF Object Detection "
        "API's weighted_iou and weighted_giou do: set iou_loss_type for losses of boxes",
    )
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
    background_target: bool = Field(
        False, description="the target of the background class is 1 for anchors without an object, as in a softmax"
    )
    hard_example_miner: HardExampleMiner | None = Field(
        None, description="losses count only the anchors with the largest loss; none: all anchors"
    )
    postprocess: BoxPostprocess = BoxPostprocess()

    @property
    def loss_options(self) -> DenseLossOptions:
        """Options of the losses."""
        return DenseLossOptions(**{name: getattr(self, name) for name in DenseLossOptions._fields})

    @property
    def backbone_options(self) -> BackboneOptions:
        """Options of the backbone."""
        return BackboneOptions(
            activation=self.activation, recompute=self.gradient_checkpointing, batch_norm=self.batch_norm
        )

    @model_validator(mode="after")
    def _losses_fit(self) -> Self:
        if self.unmatched_threshold is not None and self.unmatched_threshold > self.match_threshold:
            raise ValueError(
                f"unmatched_threshold = {self.unmatched_threshold} is above match_threshold = {self.match_threshold}"
            )
        if self.iou_loss_type is None:
            self.refuse(("iou_loss_weight",), "without iou_loss_type")
        for keys, kind in _CLASS_LOSS_KEYS.items():
            self.refuse(keys, f"with class_loss = {self.class_loss}", when=kind not in self.class_loss)
        self.refuse(("huber_delta",), f"with box_loss = {self.box_loss}", when=self.box_loss != "huber")
        if not self.background_class and (self.background_target or "softmax" in self.class_loss):
            raise ValueError("a softmax and background_target need background_class = true")
        return self


class SharedHeadsConfig(DenseConfig, PyramidConfig):
    """Configuration of a dense detector whose heads have the same layers for all levels."""

    fpn_filters: FpnFilters
    head_layers: HeadLayers
    share_tower: bool = Field(
        False, description="the box head predicts from the class head's inner layers, and has none of its own"
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
