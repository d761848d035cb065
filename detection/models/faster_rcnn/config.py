"""Configuration of the two-stage family, Faster R-CNN and Mask R-CNN, and its presets.

The defaults follow TPU Mask R-CNN.
"""

import math
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from detection.models.backbones.make import BackboneOptions
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN, Relu, ResNetLayout
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD, Padding
from detection.models.heads.postprocess import MaskPostprocess
from detection.models.heads.rpn import ProposalOptions, RpnLayout
from detection.models.necks.fpn import FpnLayout
from detection.models.pyramid_config import (
    AnchorScale,
    AspectRatios,
    ImageSize,
    MaxLevel,
    MinLevel,
    NumScales,
    PyramidConfig,
)
from detection.ops.roi_align import CANONICAL_LEVEL
from detection.ops.sampling import max_positives
from schemas.config.train.schedule import ADAM_LEARNING_RATE

Rgb = tuple[float, float, float]
FourFactors = tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat]


class FasterRcnnConfig(PyramidConfig):
    """Configuration of a Faster R-CNN or Mask R-CNN."""

    FUNCTION_FIELDS = (
        *("pixel_mean", "pixel_std", "resnet_layout", "activation", "batch_norm_epsilon"),
        *("fpn_layout", "rpn_layout", "tpu_coordinates", "anchor_layout", "padding", "roi_pooling"),
        *("roi_canonical_level", "crossing_anchors"),
    )
    PRESET_FIELDS = (
        *("architecture", "backbone", "image_size", "max_level", "fpn_filters", "include_mask", "frozen_stages"),
    )
    FROM_SCRATCH = {"frozen_stages": 0, "train_batch_norm": True}  # noqa: RUF012 (pydantic's class variable)

    architecture: Literal["fpn", "c4"] = Field(
        "fpn",
        description="fpn: RPN and heads on a feature pyramid; c4: both on conv4_x of a ResNet, and conv5_x runs on "
        "each RoI, as in Faster R-CNN's paper; with min_level = max_level = 4, and without masks",
    )
    include_mask: bool = Field(True, description="with the mask head: Mask R-CNN; false: Faster R-CNN")
    image_size: ImageSize = (1024, 1024)
    pixel_mean: Rgb = Field(
        RESNET_PIXEL_MEAN, description="RGB mean of 0..255 pixels; default: as in keras.applications' ResNets"
    )
    pixel_std: Rgb = Field(IMAGENET_STD, description="RGB standard deviation of 0..255 pixels")

    padding: Padding = "mean"

    backbone: str = Field(
        "resnet-50",
        description="resnet-18, -34, -50, -101, -152 or -200, mnasnet-a1, -b1 or -small, mobilenet-v1 or -v2, or an "
        "EfficientNet",
    )
    resnet_layout: ResNetLayout = Field(
        "keras",
        description="position of a ResNet's strides, which must match the pretrained weights: keras: as in "
        "keras.applications; tpu: as in TPU Mask R-CNN; od-api: as in the TF Object Detection API and TF-Slim",
    )
    activation: Relu = Field("relu", description="activation of a ResNet, and of the FPN if its layout is od-api")
    frozen_stages: NonNegativeInt = Field(
        2,
        description="number of frozen backbone stages, batch norm included; stage l ends at level l; 2: stem and "
        "conv2_x of a ResNet; 0: all stages train; default without pretrained weights: 0",
    )
    train_batch_norm: bool = Field(
        False,
        description="batch norm uses batch statistics in training and updates its moving ones; false: the statistics "
        "are fixed, and only scale and offset train, outside of the frozen stages; default without pretrained weights: "
        "true",
    )
    batch_norm_epsilon: PositiveFloat = 1e-4
    gradient_checkpointing: bool = Field(
        False, description="recompute backbone blocks in the backward pass: less memory, more time"
    )
    min_level: MinLevel = 2
    max_level: MaxLevel = 6
    fpn_filters: PositiveInt = Field(256, description="channels of the pyramid")
    fpn_layout: FpnLayout = Field(
        "standard",
        description="od-api: as in the TF Object Detection API, required by its weights: a level gets the output of "
        "the level above, an activation follows each 3x3 convolution, and levels above the backbone are convolutions",
    )
    rpn_filters: PositiveInt | None = Field(
        None, description="channels of the RPN head; none: as many as the features have"
    )
    rpn_layout: RpnLayout = Field(
        "standard",
        description="od-api: as in the TF Object Detection API, required by its weights: separate output layers per "
        "level, and relu6; standard: output layers shared by all levels, and relu",
    )

    anchor_scale: AnchorScale = 8.0
    num_scales: NumScales = 1
    aspect_ratios: AspectRatios = ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))
    crossing_anchors: Literal["keep", "clip", "ignore"] = Field(
        "keep",
        description="anchors that cross the input's border; clip: clipped to the input; ignore: so, and without a "
        "loss; the TF Object Detection API clips them in detection, and in training with clip_anchors_to_image",
    )
    tpu_coordinates: bool = Field(
        False,
        description="TPU Mask R-CNN's coordinates, required by its weights: box corners are pixel indices, size = "
        "max - min + 1, except in the RPN's targets, and a feature is located at the start of its cell; false: "
        "corners are edges, and a feature is located at the centre of its cell",
    )
    max_log_size: PositiveFloat = Field(
        math.log(1000.0 / 16.0), description="upper limit of the size deltas, log(size / anchor size), in decoding"
    )

    rpn_positive_iou: float = Field(0.7, gt=0.0, le=1.0, description="min IoU of an anchor with an object")
    rpn_negative_iou: float = Field(
        0.3, gt=0.0, le=1.0, description="anchors below this IoU are background; between the two, they are ignored"
    )
    rpn_samples: PositiveInt = Field(256, description="anchors per image in the RPN's losses")
    rpn_positive_fraction: float = Field(0.5, gt=0.0, le=1.0, description="max fraction of positives in rpn_samples")
    rpn_box_loss: Literal["mean", "level_means"] = Field(
        "mean",
        description="mean: over the sampled positives of all levels; level_means: sum over levels of the mean over the "
        "level's positives, as in TPU Mask R-CNN; several times larger, if several levels have positives",
    )
    rpn_huber_delta: PositiveFloat = Field(
        1.0 / 9.0, description="Huber delta of the RPN's box loss, in units of the deltas"
    )

    rpn_code_factors: FourFactors = Field(
        (1.0, 1.0, 1.0, 1.0), description="factors of the RPN's deltas (ty, tx, th, tw) in its loss"
    )

    train_pre_nms_top_k: PositiveInt = Field(2000, description="best anchors of each level before NMS, in training")
    train_post_nms_top_k: PositiveInt = Field(1000, description="max proposals per image, in training")
    train_proposal_iou: float = Field(0.7, ge=0.0, le=1.0, description="IoU threshold of the NMS, in training")
    test_pre_nms_top_k: PositiveInt = Field(1000, description="best anchors of each level before NMS, in detection")
    test_post_nms_top_k: PositiveInt = Field(1000, description="max proposals per image, in detection")
    test_proposal_iou: float = Field(0.7, ge=0.0, le=1.0, description="IoU threshold of the NMS, in detection")
    proposal_min_size: NonNegativeFloat = Field(
        1.0, description="proposals with a shorter side are dropped; pixels of the network input"
    )

    proposal_nms: Literal["levels", "image"] = Field(
        "levels", description="levels: an NMS within each level; image: one over all levels"
    )
    clip_after_nms: bool = Field(
        False,
        description="proposals and detections are clipped to the image after NMS, as in the TF Object Detection API, "
        "not before",
    )

    roi_samples: PositiveInt = Field(512, description="RoIs per image in the losses of the heads")
    roi_positive_fraction: float = Field(0.25, gt=0.0, le=1.0, description="max fraction of positives in roi_samples")
    roi_positive_iou: float = Field(0.5, gt=0.0, le=1.0, description="RoIs above this IoU with an object are positive")
    roi_background_iou: tuple[float, float] = Field(
        (0.0, 0.5), description="(low, high): RoIs with low <= IoU < high are background; others are ignored"
    )
    cascade_ious: tuple[float, ...] = Field(
        (),
        description="IoU thresholds of the box heads of a Cascade R-CNN, such as [0.5, 0.6, 0.7]: each head refines "
        "the boxes of the previous one, and boxes are class-agnostic; the first threshold replaces "
        "roi_positive_iou; empty: one box head",
    )
    class_agnostic_boxes: bool = Field(False, description="one box per RoI, not one per class; so it is in a cascade")
    roi_pooling: Literal["align", "crop-max-pool"] = Field(
        "align",
        description="align: RoIAlign; crop-max-pool: as in the TF Object Detection API, required by its weights: "
        "crop_and_resize to twice the size, and 2x2 max-pooling",
    )
    roi_canonical_level: PositiveInt = Field(CANONICAL_LEVEL, description="level of RoIs of 224 x 224 pixels")
    roi_align_samples: PositiveInt = Field(1, description="bilinear samples per side of a RoIAlign bin")
    box_roi_size: PositiveInt = Field(7, description="RoIAlign bins per side in the box head")
    fc_layers: PositiveInt = Field(2, description="inner layers of the box head")
    fc_units: PositiveInt = Field(1024, description="units of each inner layer of the box head")
    box_code_factors: FourFactors = Field(
        (10.0, 10.0, 5.0, 5.0), description="factors of the box head's deltas (ty, tx, th, tw)"
    )
    box_huber_delta: PositiveFloat = Field(
        1.0, description="Huber delta of the box head's loss, in units of the scaled deltas"
    )
    mask_roi_size: PositiveInt = Field(
        14, description="RoIAlign bins per side in the mask head; masks have twice the size"
    )
    mask_layers: PositiveInt = Field(4, description="3x3 convolutions of the mask head")
    mask_filters: PositiveInt = Field(256, description="channels of the mask head's convolutions")
    object_mask_size: PositiveInt = Field(
        112, description="side of the mask within each object's box; the mask head's targets are cropped from it"
    )

    loss_normalizer: Literal["batch", "image"] = Field(
        "batch",
        description="divisor of the losses; batch: samples of all images, the positive ones for boxes; image: samples "
        "of an image, mean over the images; box losses are sums over the deltas, and the RPN's score loss has no "
        "weights of objects, as in the TF Object Detection API",
    )
    rpn_score_loss_weight: NonNegativeFloat = 1.0
    rpn_box_loss_weight: NonNegativeFloat = 1.0
    class_loss_weight: NonNegativeFloat = 1.0
    box_loss_weight: NonNegativeFloat = 1.0
    mask_loss_weight: NonNegativeFloat = 1.0
    postprocess: MaskPostprocess = MaskPostprocess(score_threshold=0.05)

    @property
    def learning_rate(self) -> float:
        """Default peak for AdamW; with fixed statistics, the value for Mask R-CNN in Liu et al., Swin, 2021."""
        return ADAM_LEARNING_RATE if self.train_batch_norm else 1e-4

    @property
    def backbone_options(self) -> BackboneOptions:
        """Options of the backbone."""
        return BackboneOptions(
            batch_norm=self.batch_norm,
            activation=self.activation if self.backbone.startswith("resnet-") else None,
            recompute=self.gradient_checkpointing,
            resnet_layout=self.resnet_layout,
            tail=self.architecture == "c4",
        )

    def anchors_yxyx(self) -> npt.NDArray[np.float32]:
        """See `LevelsConfig.anchors_yxyx`."""
        anchors = super().anchors_yxyx()
        limits = np.tile(np.array(self.image_size, np.float32), 2)
        return anchors if self.crossing_anchors == "keep" else np.clip(anchors, np.float32(0.0), limits)

    @property
    def ignored_anchors(self) -> npt.NDArray[np.bool_]:
        """Anchors without a loss, bool [A]."""
        anchors = super().anchors_yxyx()
        inside = (anchors[:, :2] >= 0.0) & (anchors[:, 2:] <= np.array(self.image_size))
        return np.logical_and(~np.all(inside, axis=1), self.crossing_anchors == "ignore")

    def proposal_options(self, *, training: bool) -> ProposalOptions:
        """Options of the proposals, in training or in detection."""
        phase = "train" if training else "test"
        return ProposalOptions(
            pre_nms_top_k=getattr(self, f"{phase}_pre_nms_top_k"),
            post_nms_top_k=getattr(self, f"{phase}_post_nms_top_k"),
            iou_threshold=getattr(self, f"{phase}_proposal_iou"),
            min_size=self.proposal_min_size,
            by_level=self.proposal_nms == "levels",
            clip_after_nms=self.clip_after_nms,
        )

    @property
    def pixel_offset(self) -> float:
        """Pixels added to `max - min` for the size of a box: 1 if corners are pixel indices, else 0."""
        return 1.0 if self.tpu_coordinates else 0.0

    @model_validator(mode="after")
    def _thresholds_fit(self) -> Self:
        if self.rpn_negative_iou > self.rpn_positive_iou:
            raise ValueError(
                f"rpn_negative_iou = {self.rpn_negative_iou} is above rpn_positive_iou = {self.rpn_positive_iou}"
            )
        low, high = self.roi_background_iou
        if not 0.0 <= low < high <= 1.0:
            raise ValueError(f"roi_background_iou = [{low}, {high}] must be 0 <= low < high <= 1")
        return self

    @model_validator(mode="after")
    def _cascade_rises(self) -> Self:
        ious = self.cascade_ious
        if ious and (len(ious) < 2 or list(ious) != sorted(set(ious)) or not 0.0 < ious[0] <= ious[-1] < 1.0):
            raise ValueError(f"cascade_ious = {list(ious)}: specify two or more ascending thresholds between 0 and 1")
        if ious:
            self.refuse(["roi_positive_iou"], "with cascade_ious, whose first threshold replaces it")
            self.refuse(["class_agnostic_boxes"], "with cascade_ious, whose boxes are")
        return self

    @model_validator(mode="after")
    def _one_level(self) -> Self:
        if self.architecture == "fpn":
            return self
        if (self.min_level, self.max_level, self.include_mask, self.cascade_ious) != (4, 4, False, ()):
            raise ValueError(
                "architecture = c4 needs min_level = max_level = 4, include_mask = false and no cascade_ious"
            )
        if not self.backbone.startswith("resnet-"):
            raise ValueError(f"architecture = c4 needs a ResNet, not backbone = {self.backbone}")
        unused = ("fpn_filters", "fpn_layout", "fc_layers", "fc_units", "roi_canonical_level")
        self.refuse(unused, "with architecture = c4")
        return self

    @model_validator(mode="after")
    def _image_losses(self) -> Self:
        self.refuse(["rpn_box_loss"], "with loss_normalizer = image", when=self.loss_normalizer == "image")
        self.refuse(["roi_align_samples"], "with roi_pooling = crop-max-pool", when=self.roi_pooling != "align")
        return self

    @model_validator(mode="after")
    def _activation_acts(self) -> Self:
        if not self.backbone.startswith("resnet-") and self.fpn_layout != "od-api":
            self.refuse(["activation"], f"with backbone = {self.backbone} and fpn_layout = {self.fpn_layout}")
        return self

    @model_validator(mode="after")
    def _there_is_room_for_positives(self) -> Self:
        for stage in ("rpn", "roi"):
            samples, fraction = getattr(self, f"{stage}_samples"), getattr(self, f"{stage}_positive_fraction")
            if not max_positives(samples, fraction):
                raise ValueError(
                    f"{stage}_samples = {samples} and {stage}_positive_fraction = {fraction} allow no positive sample"
                )
        return self


# Not from a paper; for CPUs and tests: objects of about an eighth to a half of a small image, no pretrained weights.
_NANO = {
    "backbone": "efficientnet-nano",
    "image_size": (128, 128),
    "pixel_mean": IMAGENET_MEAN,
    "frozen_stages": 0,
    "train_batch_norm": True,
    "batch_norm_epsilon": 1e-3,
    "max_level": 5,
    "fpn_filters": 48,
    "anchor_scale": 4.0,
    "rpn_samples": 64,
    "train_pre_nms_top_k": 200,
    "train_post_nms_top_k": 100,
    "test_pre_nms_top_k": 200,
    "test_post_nms_top_k": 100,
    "roi_samples": 64,
    "fc_units": 128,
    "postprocess": MaskPostprocess(score_threshold=0.01),
}
_NANO_MASKS = {"mask_filters": 48, "mask_layers": 2, "object_mask_size": 56}
_RESNETS = (18, 34, 50, 101, 152)

# The TF Object Detection API's: widths and heights in base sides of 64 pixels.
_C4_SHAPES = tuple((side * ratio**0.5, side / ratio**0.5) for ratio in (0.5, 1.0, 2.0) for side in (1, 2, 4, 8))
_C4 = {
    "architecture": "c4",
    "include_mask": False,
    "min_level": 4,
    "max_level": 4,
    "rpn_filters": 512,
    "anchor_scale": 4.0,
    "aspect_ratios": _C4_SHAPES,
    "test_post_nms_top_k": 300,
    "roi_samples": 64,
}

FASTER_RCNNS: dict[str, FasterRcnnConfig] = {
    **{f"faster-rcnn-r{depth}": FasterRcnnConfig(backbone=f"resnet-{depth}", include_mask=False) for depth in _RESNETS},
    **{f"mask-rcnn-r{depth}": FasterRcnnConfig(backbone=f"resnet-{depth}") for depth in _RESNETS},
    **{
        f"faster-rcnn-r{depth}-c4": FasterRcnnConfig.model_validate(_C4 | {"backbone": f"resnet-{depth}"})
        for depth in (50, 101, 152)
    },
    "mask-rcnn-nano": FasterRcnnConfig.model_validate(_NANO | _NANO_MASKS),
    "faster-rcnn-nano": FasterRcnnConfig.model_validate(_NANO | {"include_mask": False}),
}
