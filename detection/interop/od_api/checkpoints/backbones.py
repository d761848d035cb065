"""The common parts of the TF Object Detection API's formats, and Keras' names of their backbones' layers."""

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from detection.interop.od_api.checkpoints.names import resnet_of_variables, unscoped_names
from detection.models.backbones.resnet import RESNETS, application_layer
from detection.weights.checkpoint_format import CheckpointFormat

_ROLES = ("expand", "depthwise", "project")
# A variable that only one MobileNet has.
_MOBILENETS = {"mobilenet-v1": "conv_pw_13/kernel", "mobilenet-v2": "block_16_project/kernel"}


class OdApiFormat(CheckpointFormat):
    """A checkpoint of the Object Detection API."""

    title = "the Object Detection API"

    @staticmethod
    def names_of(theirs: Collection[str]) -> Mapping[str, str]:
        """Implements `CheckpointFormat.names_of`."""
        return unscoped_names(theirs)

    @classmethod
    def resize(cls, config: Any) -> Mapping[str, Any]:
        """Implements `CheckpointFormat.resize`."""
        return {"half_pixel_centers": False}


class SsdBackboneFormat(OdApiFormat):
    """A checkpoint of an SSD with a MobileNet or a ResNet, with or without an FPN."""

    postprocess: ClassVar = {"score_threshold": 1e-8, "iou_threshold": 0.6}
    networks: ClassVar[str]  # title of the networks that can be imported

    @classmethod
    def resize(cls, config: Any) -> Mapping[str, Any]:
        """Implements `CheckpointFormat.resize`, for a fixed_shape_resizer."""
        return {"mode": "stretch", "half_pixel_centers": False}

    @classmethod
    def structures(cls, config: Any) -> tuple[str]:
        """Returns the structure of a configured network: its backbone.

        Raises:
            ConfigError: the original has no such network.
        """
        cls.require_backbone(config, cls.networks)
        return (config.backbone.name,)

    def structure(self) -> str:
        """Returns the name of the backbone, or a description of an unknown ResNet.

        Raises:
            DataError: no MobileNet and no ResNet.
        """
        for backbone, variable in _MOBILENETS.items():
            if variable in self.names:
                return backbone
        return resnet_of_variables(self.shapes, where=self.where)


def backbone_layer(backbone: str, layer: str) -> str:
    """Returns the name of a backbone's layer, given its path below our backbone.

    >>> backbone_layer("mobilenet-v2", "stem/batch_normalization"), backbone_layer("mobilenet-v2", "top/conv2d")
    ('bn_Conv1', 'Conv_1')
    >>> backbone_layer("mobilenet-v2", "blocks_0/conv2d"), backbone_layer("mobilenet-v2", "blocks_3/conv2d_1")
    ('expanded_conv_project', 'block_3_project')
    >>> backbone_layer("mobilenet-v2", "blocks_3/batch_normalization_1")
    'block_3_depthwise_BN'
    >>> backbone_layer("mobilenet-v1", "blocks_0/depthwise_conv2d"), backbone_layer("mobilenet-v1", "blocks_0/conv2d")
    ('conv_dw_1', 'conv_pw_1')
    """
    if backbone in RESNETS:
        return application_layer(layer)
    part, _, name = layer.partition("/")
    is_norm = name.startswith("batch_normalization")
    is_v2 = backbone == "mobilenet-v2"
    if part in ("stem", "top"):
        kept = {"stem": "Conv1", "top": "Conv_1"}[part] if is_v2 else "conv1"
        return (f"bn_{kept}" if is_v2 and part == "stem" else f"{kept}_bn") if is_norm else kept
    number = int(part.removeprefix("blocks_"))
    roles = _ROLES if is_v2 and number else _ROLES[1:]  # the first block of V2, and all of V1, do not expand
    numbered = re.fullmatch(r"(?:conv2d|batch_normalization)_(\d+)", name)
    count = int(numbered[1]) if numbered else 0
    role = roles[count] if is_norm else "depthwise"
    if name.startswith("conv2d"):
        role = [one for one in roles if one != "depthwise"][count]
    if is_v2:
        return f"{f'block_{number}' if number else 'expanded_conv'}_{role}" + ("_BN" if is_norm else "")
    return f"conv_{'dw' if role == 'depthwise' else 'pw'}_{number + 1}" + ("_bn" if is_norm else "")
