"""The TF Object Detection API's checkpoints of SSDs with a ResNet v1 or a MobileNet and an FPN (RetinaNets), of TF2.

Sources: `ssd_resnet_v1_fpn_keras_feature_extractor.py` and those of MobileNet, `feature_map_generators.py`,
`predictors/` and `box_coders/` of the original, and its configurations, such as
`ssd_resnet50_v1_fpn_640x640_coco17_tpu-8.config` and `ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8.config`.
"""

import re
from collections.abc import Collection
from typing import Any

from detection.interop.conversion import SEPARABLE
from detection.interop.od_api.checkpoints.backbones import SsdBackboneFormat, backbone_layer
from detection.interop.od_api.checkpoints.heads import (
    BOXES,
    CLASSES,
    LOSSES,
    class_outputs,
    head_conversion,
    head_names,
)
from detection.interop.od_api.checkpoints.names import BACKBONE_LEVEL, FPN_EPSILON, fpn_levels
from detection.interop.od_api.configuration.parts import RESNET
from detection.models.retinanet.config import RETINANETS, RetinaNetConfig
from detection.weights.checkpoint_format import Shapes, VariableSource, count_of
from schemas.errors import ConfigError

_BACKBONES = ("resnet-50", "resnet-101", "resnet-152", "mobilenet-v1", "mobilenet-v2")
_PRESETS = {name: preset for name, preset in RETINANETS.items() if preset.backbone.name in _BACKBONES}
# Variables whose shapes determine sizes of the network, and their numbers of axes.
_SIZED = {"projection_1/kernel": 4, CLASSES: 1, BOXES: 1}


def _fpn_layer(layer: str, config: RetinaNetConfig, names: Collection[str]) -> str:
    """Returns the original's layer; extra levels are numbered on from the backbone's blocks."""
    layer, norm, _ = layer.partition("_bn")
    kind, _, level = layer.rpartition("p")
    number = int(level) - config.min_level + 1
    if kind == "lateral_":
        return f"projection_{number}"
    block = f"smoothing_{number}"
    if not kind:
        numbers = (int(match[1]) for name in names if (match := re.match(r"bottom_up_block(\d+)_", name)))
        block = f"bottom_up_block{min(numbers, default=0) + int(level) - BACKBONE_LEVEL - 1}"
    return f"{block}_batchnorm" if norm else f"{block}_conv"


class RetinaNetFormat(SsdBackboneFormat):
    """A checkpoint of an SSD with an FPN."""

    family = "a RetinaNet"
    config_class = RetinaNetConfig
    presets = _PRESETS
    networks = "the Object Detection API's SSDs with an FPN"

    def network(self, config: RetinaNetConfig) -> dict[str, Any]:
        """Implements `OdApiFormat.network`; sizes of the network are those of its variables."""
        backbone = self.structure()
        self.require_variables(_SIZED, "not a checkpoint of a RetinaNet:")
        finest, coarsest = fpn_levels(self.names)
        return ({} if backbone.startswith("mobilenet") else RESNET) | {
            "activation": "relu6",
            "batch_norm.epsilon": FPN_EPSILON,
            "min_level": finest,
            "max_level": coarsest,
            "neck.filters": self.shape("projection_1/kernel")[-1],
            "dialect": "od-api",
            "head.layers": count_of(r"(?:Class)?PredictionTower/conv2d_(\d+)/.*", self.names),
            "head.share_tower": any(name.startswith("PredictionTower/") for name in self.names),
            **dict.fromkeys(SEPARABLE, "BoxPredictor/depthwise_kernel" in self.names),
            "anchors.scale": 4.0,
            "anchors.num_scales": 2,
            "loss.background_class": True,
            "loss.focal_gamma": 2.0,
            **LOSSES,
        }

    @classmethod
    def structures(cls, config: RetinaNetConfig) -> tuple[str]:
        """Implements `CheckpointFormat.structures`."""
        structures = super().structures(config)
        if config.dialect != "od-api":
            raise ConfigError(
                f"model.overrides.dialect = {config.dialect}: the Object Detection API's SSDs with an FPN have "
                "od-api. Pass --set model.overrides.dialect=od-api, or the section `model` that import-checkpoint "
                "writes for the checkpoint."
            )
        return structures

    def classes(self, config: RetinaNetConfig) -> int:
        """Implements `OdApiFormat.classes`."""
        return class_outputs(self, config) - config.loss.background_class

    def sources(self, ours: Shapes, config: RetinaNetConfig) -> dict[str, VariableSource]:
        """Implements `CheckpointFormat.sources`."""
        heads = head_names(config.levels, config.head.layers, shared=config.head.share_tower)
        sources = {}
        for path, shape in ours.items():
            layer, _, variable = path.rpartition("/")
            part, _, rest = layer.partition("/")
            if part == config.backbone.name:
                name = backbone_layer(config.backbone.name, rest)
            else:
                name = _fpn_layer(rest, config, self.names) if part == "fpn" else heads[layer]
            name = f"{name}/{'depthwise_kernel' if layer.endswith('/depthwise_conv2d') else variable}"
            sources[path] = self.source(name, shape, head_conversion(layer, variable, config))
        return sources
