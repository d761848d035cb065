"""TPU Mask R-CNN's checkpoints: names of variables, structure of the network, class outputs.

The program is the TF1 code of tensorflow/tpu.  It numbers the layers of its backbone in the order of
construction: `resnet50/conv2d`, `resnet50/conv2d_1`, ...; the others have names.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from detection.interop.tpu_mask_rcnn.params import NETWORK
from detection.models.backbones.resnet import RESNETS, ResNetSpec
from detection.models.faster_rcnn.config import FASTER_RCNNS, FasterRcnnConfig
from detection.weights.checkpoint_format import CheckpointFormat, Shapes, VariableSource, some
from schemas.errors import ConfigError, DataError

_CLASS_BIAS = "box_head/class-predict/bias"
_STEM = "conv2d/kernel"
_STEM_CHANNELS = (3, 64)
_BACKBONE_LEVEL = 5


def layer_names(config: FasterRcnnConfig) -> dict[str, str]:
    """Returns the names in TPU Mask R-CNN of the layers outside of the backbone, by their paths."""
    names = {
        "rpn/conv2d": "rpn_head/rpn",
        "rpn/score": "rpn_head/rpn-class",
        "rpn/box": "rpn_head/rpn-box",
        "box_head/class": "box_head/class-predict",
        "box_head/box": "box_head/box-predict",
        "mask_head/conv2d_transpose": "mask_head/conv5-mask",
        "mask_head/mask": "mask_head/mask_fcn_logits",
    }
    for level in range(config.min_level, _BACKBONE_LEVEL + 1):
        names[f"fpn/lateral_p{level}"] = f"fpn/l{level}"
        names[f"fpn/output_p{level}"] = f"fpn/post_hoc_d{level}"
    for number in range(config.mask_head.layers):
        names[f"mask_head/conv2d_{number + 1}"] = f"mask_head/mask-conv-l{number}"
    return names


def backbone_names(spec: ResNetSpec) -> dict[str, str]:
    """Returns TPU Mask R-CNN's names of a ResNet's layers, both without the name of the backbone.

    Each convolution precedes its batch norm; in a block, the shortcut's layers come first.

    >>> backbone_names(RESNETS["resnet-50"])["conv2_2/conv2d_1"]
    'conv2d_5'
    """
    names = {}
    for number, layer in enumerate(_convolutions(spec)):
        suffix = f"_{number}" if number else ""
        names[layer] = f"conv2d{suffix}"
        names[layer.replace("conv2d", "batch_normalization")] = f"batch_normalization{suffix}"
    return names


def _convolutions(spec: ResNetSpec) -> Iterator[str]:
    """Yields the names of our convolutions in the original's order of construction."""
    yield "stem/conv2d"
    for level, repeats in enumerate(spec.repeats, start=2):
        for block in range(1, repeats + 1):
            if block == 1:
                yield f"conv{level}_{block}/shortcut_conv2d"
            for number in range(1, 4 if spec.bottleneck else 3):
                yield f"conv{level}_{block}/conv2d_{number}"


class Structure(NamedTuple):
    """Properties that distinguish the variants.

    backbone: name of the ResNet, or a description of an unknown one.
    heads: `boxes and masks`, `boxes`, or `no heads`: only a backbone, as for image classification.
    """

    backbone: str
    heads: str

    def __str__(self) -> str:
        return f"{self.backbone} with {self.heads}"


def _backbone_scope(shapes: Shapes) -> str | None:
    """Returns the prefix of the names of the backbone's layers; None: there is no ResNet."""
    stems = (name for name, shape in shapes.items() if shape[2:] == _STEM_CHANNELS)
    return next((name.removesuffix(_STEM) for name in stems if f"/{name}".endswith(f"/{_STEM}")), None)


def _resnet(shapes: Shapes, scope: str) -> str:
    """Identifies a ResNet by its number of convolutions and the width of the first shortcut."""
    count = sum(bool(re.fullmatch(rf"{re.escape(scope)}conv2d(_\d+)?/kernel", name)) for name in shapes)
    width = shapes.get(f"{scope}conv2d_1/kernel", (0,))[-1]
    for name, spec in RESNETS.items():
        if count == len(list(_convolutions(spec))) and width == (256 if spec.bottleneck else 64):
            return name
    return f"a ResNet of {count} convolutions"


class TpuMaskRcnnFormat(CheckpointFormat):
    """A checkpoint of TPU Mask R-CNN, or of a ResNet alone."""

    title = "TPU Mask R-CNN"
    family = "a Faster R-CNN or Mask R-CNN"
    config_class = FasterRcnnConfig
    presets: ClassVar = {name: preset for name, preset in FASTER_RCNNS.items() if preset.backbone.name in RESNETS}
    # As on TPUs; on GPUs, the original's score threshold is 0, and all pairs of a RoI and a class enter NMS.
    postprocess: ClassVar = {"score_threshold": 0.05, "pre_nms_top_k": 1000}
    class_bias = _CLASS_BIAS

    @classmethod
    def structures(cls, config: FasterRcnnConfig) -> tuple[Structure, ...]:
        """Returns the structures of a configured network, and of only its backbone.

        Raises:
            ConfigError: the original has no such network.
        """
        if config.backbone.name not in RESNETS:
            raise ConfigError(
                f"model.overrides.backbone.name = {config.backbone.name}: of TPU Mask R-CNN's backbones, only ResNets "
                f"can be imported. Choose from {', '.join(RESNETS)}."
            )
        if config.max_level > _BACKBONE_LEVEL + 1:
            raise ConfigError(
                f"model.overrides.max_level = {config.max_level}: TPU Mask R-CNN computes levels above "
                f"{_BACKBONE_LEVEL + 1} without the activation between them, so its weights do not fit ours. "
                f"Keep it at {_BACKBONE_LEVEL + 1}."
            )
        heads = "boxes and masks" if config.include_mask else "boxes"
        complete = (Structure(config.backbone.name, heads),) if config.architecture == "fpn" else ()
        return *complete, Structure(config.backbone.name, "no heads")

    def structure(self) -> Structure:
        """Implements `CheckpointFormat.structure`; unsupported variants are refused, too."""
        mnasnet = next((name for name in self.shapes if name.startswith("mnasnet-")), None)
        if mnasnet is not None:
            raise DataError(
                f"{self.where}: the backbone is {mnasnet.partition('/')[0]}; of TPU Mask R-CNN's backbones, only "
                "ResNets can be imported. Specify a checkpoint with a ResNet."
            )
        scope = _backbone_scope(self.shapes)
        if scope is None:
            raise DataError(
                f"{self.where}: not a checkpoint of TPU Mask R-CNN: the first convolution of its ResNet, {_STEM} below "
                f"the name of the backbone, is missing. Examples of its variables: {some(sorted(self.shapes))}."
            )
        extra = sorted(name for name in self.shapes if re.fullmatch(r"fpn/p\d+/kernel", name))
        if extra:
            raise DataError(
                f"{self.where}: {some(extra)}: it has levels above {_BACKBONE_LEVEL + 1}, which TPU Mask R-CNN "
                "computes without the activation between them, unlike ours. It cannot be imported; specify another "
                "checkpoint."
            )
        masks = any(name.startswith("mask_head/") for name in self.shapes)
        heads = ("boxes and masks" if masks else "boxes") if _CLASS_BIAS in self.shapes else "no heads"
        return Structure(_resnet(self.shapes, scope), heads)

    def class_count(self, config: FasterRcnnConfig) -> int | None:
        """Implements `CheckpointFormat.class_count`."""
        outputs = self.shapes.get(_CLASS_BIAS)
        return None if outputs is None else outputs[0] - 1

    def overrides(self, config: FasterRcnnConfig) -> Mapping[str, Any]:
        """Implements `CheckpointFormat.overrides`."""
        return NETWORK

    def sources(self, ours: Shapes, config: FasterRcnnConfig) -> dict[str, VariableSource]:
        """Implements `CheckpointFormat.sources`."""
        scope, backbone = _backbone_scope(self.shapes), config.backbone.name
        layers = layer_names(config)
        layers |= {f"{backbone}/{ours}": f"{scope}{name}" for ours, name in backbone_names(RESNETS[backbone]).items()}
        sources = {}
        for path, shape in ours.items():
            layer, _, variable = path.rpartition("/")
            sources[path] = self.source(f"{layers.get(layer, layer)}/{variable}", shape)
        return sources
