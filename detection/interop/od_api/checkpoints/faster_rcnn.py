"""The TF Object Detection API's checkpoints of Faster R-CNN and Mask R-CNN with a ResNet v1, of TF2 and TF1.

Checkpoints of TF2 are imported completely, except masks; of TF1, or into another architecture, only their ResNet.
Sources: `faster_rcnn_resnet_keras_feature_extractor.py`, `faster_rcnn_resnet_v1_fpn_keras_feature_extractor.py`,
`feature_map_generators.py`, `faster_rcnn_meta_arch.py`, `predictors/` and `box_coders/` of the original, and its
configurations, such as `faster_rcnn_resnet50_v1_fpn_640x640_coco17_tpu-8.config` and
`faster_rcnn_resnet50_v1_640x640_coco17_tpu-8.config`.
"""

import math
from typing import Any, ClassVar

from detection.interop.od_api.checkpoints.backbones import OdApiFormat
from detection.interop.od_api.checkpoints.faster_rcnn_sources import faster_rcnn_sources
from detection.interop.od_api.checkpoints.names import (
    FPN_EPSILON,
    architecture,
    fpn_levels,
    is_fpn,
    resnet_of_variables,
)
from detection.interop.od_api.configuration.faster_rcnn import FUNCTION
from detection.interop.od_api.configuration.parts import RESNET_FUNCTION
from detection.models.faster_rcnn.config import FASTER_RCNNS, FasterRcnnConfig
from detection.weights.checkpoint_format import Shapes, VariableSource
from schemas.errors import ConfigError, DataError

_CLASSES = "ClassPredictor_dense/bias"
# Variables whose shapes determine sizes of the network, and their numbers of axes.
_BOXES = "BoxEncodingPredictor_dense/bias"
_SIZED = {"RPNConv/kernel": 4, _CLASSES: 1, _BOXES: 1}
_SIZED_FPN = {"projection_1/kernel": 4, "dense_0/kernel": 2}
# Fields of `model.overrides` that a checkpoint does not have, as in the configurations of the zoo.
_ZOO = {
    "anchors.crossing": "clip",
    "rpn.train.post_nms_top_k": 300,
    "rpn.test.post_nms_top_k": 300,
    "roi.sampling.count": 64,
    "rpn.box_loss_weight": 2.0,
    "box_head.box_loss_weight": 2.0,
}
_BACKBONE = ("backbone.layout", "pixel_mean", "pixel_std", "activation", "batch_norm.epsilon")
_RESNETS = ("resnet-50", "resnet-101", "resnet-152")
_PRESETS = {name: preset for name, preset in FASTER_RCNNS.items() if preset.backbone.name in _RESNETS}


class FasterRcnnFormat(OdApiFormat):
    """A checkpoint of a Faster R-CNN or Mask R-CNN with a ResNet v1, or of another network with one."""

    family = "a Faster R-CNN or Mask R-CNN"
    config_class = FasterRcnnConfig
    presets = _PRESETS
    postprocess: ClassVar = {"score_threshold": 0.0, "iou_threshold": 0.6, "max_detections": 300}

    def network(self, config: FasterRcnnConfig) -> dict[str, Any]:
        """Implements `OdApiFormat.network`; sizes of the network are those of its variables.

        For another architecture than the checkpoint's, only the ResNet is imported.
        """
        self.structure()
        has_fpn = is_fpn(self.names)
        layers = {"activation": "relu6", "batch_norm.epsilon": FPN_EPSILON} if has_fpn else RESNET_FUNCTION
        backbone = {name: (FUNCTION | layers)[name] for name in _BACKBONE}
        if architecture(self.names) != config.architecture:
            return backbone
        start = f"a Faster R-CNN {'with' if has_fpn else 'without'} an FPN, but"
        self.require_variables(_SIZED | (_SIZED_FPN if has_fpn else {}), start)
        common = FUNCTION | layers | _ZOO | {"rpn.filters": self.shape("RPNConv/kernel")[-1]}
        common["box_head.class_agnostic"] = self.shape(_BOXES) == (4,)
        if not has_fpn:
            return common
        fpn, dense = (self.shape(name) for name in _SIZED_FPN)
        finest, coarsest = fpn_levels(self.names)
        return common | {
            "min_level": finest,
            "max_level": coarsest,
            "neck.filters": fpn[-1],
            "anchors.scale": 4.0,
            "anchors.num_scales": 2,
            "anchors.aspect_ratios": [1.0, 2.0, 0.5],
            "box_head.roi_size": math.isqrt(dense[0] // max(fpn[-1], 1)),
            "roi.canonical_level": coarsest - 1,
            "box_head.units": dense[-1],
        }

    @classmethod
    def structures(cls, config: FasterRcnnConfig) -> tuple[str]:
        """Returns the structure of a configured network: its ResNet.

        Raises:
            ConfigError: the original has no such network.
        """
        cls.require_backbone(config, "the Object Detection API's Faster R-CNNs")
        return (config.backbone.name,)

    def structure(self) -> str:
        """Returns the name of the ResNet.

        Raises:
            DataError: the checkpoint has no ResNet.
        """
        return resnet_of_variables(self.shapes, where=self.where)

    def classes(self, config: FasterRcnnConfig) -> int | None:
        """Returns the number of classes of a network, without background; None: only a backbone.

        Raises:
            DataError: the RPN and the configuration have different numbers of anchors per cell.
            ConfigError: the configuration has another layout.
        """
        if architecture(self.names) != config.architecture:
            return None
        if config.dialect != "od-api":
            raise ConfigError(
                f"model.overrides.dialect = {config.dialect}: the original's variables require od-api. Remove it."
            )
        outputs = self.shape("ClassPredictor_0/bias")
        anchors = config.anchors.per_cell
        if outputs and outputs != (2 * anchors,):
            raise DataError(
                f"{self.where}: the RPN has {outputs[0] // 2} anchors per cell, but the configuration {anchors}. Pass "
                "anchor_scale, scales_per_octave and aspect_ratios of its pipeline.config with "
                "--set model.overrides.anchors.scale=VALUE, num_scales and aspect_ratios."
            )
        return self.shape(_CLASSES)[0] - 1

    def sources(self, ours: Shapes, config: FasterRcnnConfig) -> dict[str, VariableSource]:
        """Implements `CheckpointFormat.sources`."""
        return faster_rcnn_sources(self, ours, config)

    def differences(self, config: FasterRcnnConfig) -> tuple[str, ...]:
        """Implements `CheckpointFormat.differences`."""
        found = architecture(self.names)
        if found != config.architecture:
            c4 = ". Pass --model faster-rcnn-r50-c4, -r101-c4 or -r152-c4 to import the complete network"
            return (
                "only the ResNet is imported: the original's RPN and heads, if it has any, use other features than "
                f"those of architecture = {config.architecture}. In a detector with one feature level, conv5_x was "
                f"trained on features of RoIs{c4 if found == 'c4' else ''}",
            )
        masks = "the mask head starts from random weights: the original's takes one vector per RoI, not a feature map"
        return (masks,) if config.include_mask else ()
