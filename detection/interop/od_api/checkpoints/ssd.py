"""The TF Object Detection API's checkpoints of SSDs with a MobileNet and without an FPN, of TF2.

Sources: `ssd_mobilenet_v2_keras_feature_extractor.py`, `feature_map_generators.py` and `predictors/` of the original,
and its configurations, such as `ssd_mobilenet_v2_320x320_coco17_tpu-8.config`.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from detection.interop.conversion import SEPARABLE
from detection.interop.od_api.checkpoints.backbones import SsdBackboneFormat, backbone_layer
from detection.interop.od_api.checkpoints.faster_rcnn_sources import without_box_scales
from detection.interop.od_api.checkpoints.heads import LOSSES
from detection.interop.od_api.checkpoints.names import BACKBONE_LEVEL, FPN_EPSILON
from detection.models.ssd.config import SSDS, SsdConfig
from detection.weights.checkpoint_format import Shapes, VariableSource, unchanged
from schemas.errors import DataError

_PRESETS = {name: preset for name, preset in SSDS.items() if preset.backbone.name in ("mobilenet-v1", "mobilenet-v2")}
_CLASSES, _BOXES = "ClassPredictor_{}/bias", "BoxEncodingPredictor_{}/bias"
# Variables that every such network has, and their numbers of axes.
_SIZED = {_CLASSES.format(0): 1, _BOXES.format(0): 1, "BoxEncodingPredictor_0/kernel": 4}
_EXTRA = re.compile(r"extra_(\d+)_3x3_conv/kernel")
_HEADS = {"class": "ClassPredictor", "box": "BoxEncodingPredictor"}
_PARTS = {"conv2d": "conv", "batch_normalization": "batchnorm"}
# Layers of a depthwise convolution, batch norm, 1x1 convolution, batch norm.
_SEPARABLE = {"depthwise_conv2d": "depthwise_conv", "batch_normalization": "depthwise_batchnorm"}
_SEPARABLE |= {"conv2d": "conv", "batch_normalization_1": "batchnorm"}


def _extra_levels(names: Collection[str]) -> list[tuple[int, str]]:
    """Returns the original's number of each extra level, and the name of the kernel that has its channels."""
    return sorted((int(match[1]), name) for name in names if (match := _EXTRA.fullmatch(name)))


def _extra_layer(part: str, layer: str, variable: str, extras: list[int], *, separable: bool) -> tuple[str, str]:
    level, _, reduce = part.removeprefix("extra_p").partition("_")
    index = int(level) - BACKBONE_LEVEL - 1
    number = extras[index] if index < len(extras) else level
    if reduce:
        return f"extra_{number}_1x1_{_PARTS[layer]}", variable
    kinds: Mapping[str, str] = _SEPARABLE if separable else _PARTS
    return f"extra_{number}_3x3_{kinds[layer]}", "depthwise_kernel" if layer == "depthwise_conv2d" else variable


def _head_layer(layer: str, variable: str, config: SsdConfig) -> tuple[str, str]:
    head, level, *inner = layer.split("-")
    name = f"{_HEADS[head]}_{int(level[1:]) - config.min_level}"
    if not inner:
        return name, variable
    if inner == ["bn"]:
        return f"{name}_depthwise_batchnorm", variable
    return f"{name}_depthwise", "depthwise_kernel"


class SsdFormat(SsdBackboneFormat):
    """A checkpoint of an SSD without an FPN."""

    family = "an SSD"
    config_class = SsdConfig
    presets = _PRESETS
    networks = "the Object Detection API's SSDs without an FPN"

    def network(self, config: SsdConfig) -> dict[str, Any]:
        """Implements `OdApiFormat.network`; sizes of the network are those of its variables."""
        self.structure()
        self.require_variables(_SIZED, "not a checkpoint of an SSD without an FPN:")
        extras = [self.shape(name)[-1] for _, name in _extra_levels(self.names)]
        return {
            "activation": "relu6",
            "batch_norm.epsilon": FPN_EPSILON,
            "max_level": BACKBONE_LEVEL + len(extras),
            "neck.filters": extras,
            **dict.fromkeys(SEPARABLE, "BoxEncodingPredictor_0_depthwise/depthwise_kernel" in self.names),
            "head.kernel": self.shape("BoxEncodingPredictor_0/kernel")[0],
            "loss.background_class": True,
            "loss.focal_alpha": 0.75,
            "loss.focal_gamma": 2.0,
            **LOSSES,
        }

    def classes(self, config: SsdConfig) -> int:
        """Implements `OdApiFormat.classes`."""
        classes = 0
        for number, anchors in enumerate(map(len, config.anchor_shapes)):
            found = [next(iter(self.shape(name.format(number))), 0) for name in (_CLASSES, _BOXES)]
            if found[1] != 4 * anchors or found[0] % anchors:
                raise DataError(
                    f"{self.where}: {found[1]} box outputs and {found[0]} class outputs of level "
                    f"{config.min_level + number} do not match {anchors} anchors per cell. Pass those of its "
                    "pipeline.config with --set model.overrides.anchors.aspect_ratios=VALUE, "
                    "interpolated_aspect_ratio and reduce_finest_level."
                )
            classes = found[0] // anchors
        return classes - config.loss.background_class

    def sources(self, ours: Shapes, config: SsdConfig) -> dict[str, VariableSource]:
        """Implements `CheckpointFormat.sources`."""
        extras = [number for number, _ in _extra_levels(self.names)]
        sources = {}
        for path, shape in ours.items():
            layer, _, variable = path.rpartition("/")
            part, _, rest = layer.partition("/")
            if part == config.backbone.name:
                name = backbone_layer(config.backbone.name, rest)
                variable = "depthwise_kernel" if rest.endswith("depthwise_conv2d") else variable
            elif part.startswith("extra_p"):
                name, variable = _extra_layer(part, rest, variable, extras, separable=config.neck.separable_conv)
            else:
                name, variable = _head_layer(rest, variable, config)
            is_boxes = part == "box_net" and layer.endswith(tuple(f"-p{level}" for level in config.levels))
            sources[path] = self.source(f"{name}/{variable}", shape, without_box_scales if is_boxes else unchanged)
        return sources
