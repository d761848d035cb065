"""Configuration of the two-stage family, Faster R-CNN and Mask R-CNN, and its presets.

The defaults follow TPU Mask R-CNN.
"""

import math
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from detection.models.backbones.make import BackboneOptions
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN, Relu
from detection.models.config import (
    BatchNormOptions,
    ImageSize,
    MaxLevel,
    MinLevel,
    PixelMean,
    PyramidAnchors,
    PyramidConfig,
)
from detection.models.detector import IMAGENET_MEAN
from detection.models.faster_rcnn.roi_heads import BoxHeadOptions, MaskHeadOptions
from detection.models.faster_rcnn.roi_targets import RoiOptions
from detection.models.faster_rcnn.rpn import RpnOptions
from detection.models.heads.postprocess import MaskPostprocess
from detection.models.necks.fpn import FpnLayout, FpnOptions
from detection.ops.anchors import AnchorLayout
from detection.ops.boxes import ScaleFactors
from schemas.config.train.schedule import ADAM_LEARNING_RATE


class Rules(NamedTuple):
    """What a program computes in its own way.

    layers: FPN and RPN; od-api: see `Fpn` and `RpnHead`, required by its weights.
    pixel_offset: pixels added to `max - min` for the size of a box, except in the RPN's targets: 1 if corners are
        pixel indices, 0 if they are edges.
    cell_centre: place of a feature in its cell: 0.5 for the centre, 0 for the start.
    max_log_size: upper limit of the size deltas, log(size / anchor size), in decoding.
    level_means: the RPN's box loss is the sum over levels of the mean over the level's positives, several times larger
        than the mean over the sampled positives of all levels.
    rpn_huber_delta: Huber delta of the RPN's box loss, in units of the deltas.
    rpn_code_factors: factors of the RPN's deltas (ty, tx, th, tw) in its loss.
    nms_by_level: proposals suppress those of their level only.
    clip_after_nms: proposals and detections are clipped to the image after NMS, not before.
    pooling: align: RoIAlign; crop-max-pool: `crop_and_resize` to twice the size, and 2x2 max-pooling.
    image_losses: losses are divided by the samples of an image, and averaged over the images; box losses are sums over
        the deltas, and the RPN's score loss has no weights of objects. False: samples of all images, the positive ones
        for boxes.
    """

    layers: FpnLayout = "standard"
    pixel_offset: float = 0.0
    cell_centre: float = 0.5
    max_log_size: float = math.log(1000.0 / 16.0)
    level_means: bool = False
    rpn_huber_delta: float = 1.0 / 9.0
    rpn_code_factors: ScaleFactors = (1.0, 1.0, 1.0, 1.0)
    nms_by_level: bool = True
    clip_after_nms: bool = False
    pooling: Literal["align", "crop-max-pool"] = "align"
    image_losses: bool = False


DIALECTS: dict[str, Rules] = {
    "standard": Rules(),
    "tpu": Rules(pixel_offset=1.0, cell_centre=0.0, level_means=True),
    "od-api": Rules(
        layers="od-api",
        max_log_size=10.0,
        rpn_huber_delta=1.0,
        rpn_code_factors=(10.0, 10.0, 5.0, 5.0),
        nms_by_level=False,
        clip_after_nms=True,
        pooling="crop-max-pool",
        image_losses=True,
    ),
}


class RpnAnchors(PyramidAnchors):
    """Anchors of the RPN."""

    crossing: Literal["keep", "clip", "ignore"] = Field(
        "keep",
        description="anchors that cross the input's border; clip: clipped to the input; ignore: so, and without a "
        "loss; the TF Object Detection API clips them in detection, and in training with clip_anchors_to_image",
    )


class FasterRcnnConfig(PyramidConfig):
    """Configuration of a Faster R-CNN or Mask R-CNN."""

    FUNCTION_FIELDS = (
        *("pixel_mean", "pixel_std", "padding", "backbone.layout", "activation", "batch_norm.epsilon", "dialect"),
        *("roi.canonical_level", "anchors.crossing"),
    )
    PRESET_FIELDS = (
        *("architecture", "backbone.name", "image_size", "max_level", "neck.filters", "include_mask"),
        "backbone.frozen_stages",
    )
    FROM_SCRATCH = {"backbone": {"frozen_stages": 0, "train_batch_norm": True}}  # noqa: RUF012 (pydantic's class variable)

    architecture: Literal["fpn", "c4"] = Field(
        "fpn",
        description="fpn: RPN and heads on a feature pyramid; c4: both on conv4_x of a ResNet, and conv5_x runs on "
        "each RoI, as in Faster R-CNN's paper; with min_level = max_level = 4, and without masks",
    )
    include_mask: bool = Field(True, description="with the mask head: Mask R-CNN; false: Faster R-CNN")
    dialect: Literal["standard", "tpu", "od-api"] = Field(
        "standard",
        description="the program whose boxes, losses and layers these are, required by its weights; tpu: TPU Mask "
        "R-CNN: corners are pixel indices, a feature is at the start of its cell, and the RPN's box loss is a sum of "
        "the levels' means; od-api: the TF Object Detection API: its FPN, RPN and anchors, NMS of proposals over all "
        "levels before boxes are clipped, crops and max-pooling in place of RoIAlign, and losses per image",
    )
    image_size: ImageSize = (1024, 1024)
    min_level: MinLevel = 2
    max_level: MaxLevel = 6
    backbone: BackboneOptions = BackboneOptions(frozen_stages=2, train_batch_norm=False)
    activation: Relu = Field("relu", description="activation of a ResNet, and of the FPN in the dialect od-api")
    neck: FpnOptions = FpnOptions()
    anchors: RpnAnchors = RpnAnchors(scale=8.0, num_scales=1, aspect_ratios=((1.0, 1.0), (1.4, 0.7), (0.7, 1.4)))
    rpn: RpnOptions = RpnOptions()
    roi: RoiOptions = RoiOptions()
    box_head: BoxHeadOptions = BoxHeadOptions()
    mask_head: MaskHeadOptions = MaskHeadOptions()
    batch_norm: BatchNormOptions = BatchNormOptions(epsilon=1e-4)
    pixel_mean: PixelMean = RESNET_PIXEL_MEAN
    postprocess: MaskPostprocess = MaskPostprocess(score_threshold=0.05)

    @property
    def rules(self) -> Rules:
        """What the dialect's program computes in its own way."""
        return DIALECTS[self.dialect]

    @property
    def learning_rate(self) -> float:
        """Default peak for AdamW; with fixed statistics, the value for Mask R-CNN in Liu et al., Swin, 2021."""
        return ADAM_LEARNING_RATE if self.backbone.train_batch_norm else 1e-4

    @property
    def anchor_layout(self) -> AnchorLayout:
        """See `PyramidConfig.anchor_layout`; the Object Detection API has another one without an FPN."""
        return "corners" if (self.dialect, self.architecture) == ("od-api", "c4") else super().anchor_layout

    def anchors_yxyx(self) -> npt.NDArray[np.float32]:
        """See `DetectorConfig.anchors_yxyx`."""
        anchors = super().anchors_yxyx()
        limits = np.tile(np.array(self.image_size, np.float32), 2)
        return anchors if self.anchors.crossing == "keep" else np.clip(anchors, np.float32(0.0), limits)

    @property
    def ignored_anchors(self) -> npt.NDArray[np.bool_]:
        """Anchors without a loss, bool [A]."""
        anchors = super().anchors_yxyx()
        inside = (anchors[:, :2] >= 0.0) & (anchors[:, 2:] <= np.array(self.image_size))
        return np.logical_and(~np.all(inside, axis=1), self.anchors.crossing == "ignore")

    @model_validator(mode="after")
    def _one_level(self) -> Self:
        if self.architecture == "fpn":
            return self
        if (self.min_level, self.max_level, self.include_mask, self.box_head.cascade_ious) != (4, 4, False, ()):
            raise ValueError(
                "architecture = c4 needs min_level = max_level = 4, include_mask = false and no box_head.cascade_ious"
            )
        if not self.backbone.name.startswith("resnet-"):
            raise ValueError(f"architecture = c4 needs a ResNet, not backbone.name = {self.backbone.name}")
        self.refuse(("neck",), "with architecture = c4")
        self.box_head.refuse(("layers", "units"), "with architecture = c4")
        self.roi.refuse(("canonical_level",), "with architecture = c4")
        return self

    @model_validator(mode="after")
    def _options_act(self) -> Self:
        self.roi.refuse(["align_samples"], f"with dialect = {self.dialect}", when=self.rules.pooling != "align")
        self.postprocess.refuse(["mask_output"], "without masks: set include_mask", when=not self.include_mask)
        if self.box_head.cascade_ious:
            self.roi.refuse(["positive_iou"], "with box_head.cascade_ious, whose first threshold replaces it")
        if not self.backbone.name.startswith("resnet-") and self.rules.layers != "od-api":
            self.refuse(["activation"], f"with backbone.name = {self.backbone.name} and dialect = {self.dialect}")
        return self


# Not from a paper; for CPUs and tests: objects of about an eighth to a half of a small image, no pretrained weights.
_NANO_PROPOSALS = {"pre_nms_top_k": 200, "post_nms_top_k": 100}
_NANO = FasterRcnnConfig().changed(
    {
        "backbone": {"name": "efficientnet-nano", "frozen_stages": 0, "train_batch_norm": True},
        "image_size": (128, 128),
        "pixel_mean": IMAGENET_MEAN,
        "batch_norm": {"epsilon": 1e-3},
        "max_level": 5,
        "neck": {"filters": 48},
        "anchors": {"scale": 4.0},
        "rpn": {"sampling": {"count": 64}, "train": _NANO_PROPOSALS, "test": _NANO_PROPOSALS},
        "roi": {"sampling": {"count": 64}},
        "box_head": {"units": 128},
        "postprocess": {"score_threshold": 0.01},
    }
)
_RESNETS = (18, 34, 50, 101, 152)

# The TF Object Detection API's: widths and heights in base sides of 64 pixels.
_C4_SHAPES = tuple((side * ratio**0.5, side / ratio**0.5) for ratio in (0.5, 1.0, 2.0) for side in (1, 2, 4, 8))
_C4: dict[str, Any] = {
    "architecture": "c4",
    "include_mask": False,
    "min_level": 4,
    "max_level": 4,
    "anchors": {"scale": 4.0, "aspect_ratios": _C4_SHAPES},
    "rpn": {"filters": 512, "test": {"post_nms_top_k": 300}},
    "roi": {"sampling": {"count": 64}},
}


def _resnet(depth: int, **others: Any) -> FasterRcnnConfig:
    return FasterRcnnConfig().changed({"backbone": {"name": f"resnet-{depth}"}, **others})


FASTER_RCNNS: dict[str, FasterRcnnConfig] = {
    **{f"faster-rcnn-r{depth}": _resnet(depth, include_mask=False) for depth in _RESNETS},
    **{f"mask-rcnn-r{depth}": _resnet(depth) for depth in _RESNETS},
    **{f"faster-rcnn-r{depth}-c4": _resnet(depth, **_C4) for depth in (50, 101, 152)},
    "mask-rcnn-nano": _NANO.changed({"mask_head": {"filters": 48, "layers": 2, "object_size": 56}}),
    "faster-rcnn-nano": _NANO.changed({"include_mask": False}),
}
