"""Names of the backbones' layers in the TF Object Detection API's checkpoints of TF2, which are those of Keras."""

import re
from typing import Any

from detection.interop.od_api.checkpoints.names import names_here, resnet_of_variables
from detection.models.backbones.resnet import RESNETS, application_layer
from detection.weights.checkpoint_format import CheckpointFormat, Shapes

_ROLES = ("expand", "depthwise", "project")
# A variable that only one MobileNet has.
_MOBILENETS = {"mobilenet-v1": "conv_pw_13/kernel", "mobilenet-v2": "block_16_project/kernel"}


def ssd_program(**family: Any) -> CheckpointFormat:
    """Returns the description of a family of SSDs; `family`: the other arguments of `CheckpointFormat`."""
    return CheckpointFormat(
        title="the Object Detection API",
        postprocess={"score_threshold": 1e-8, "iou_threshold": 0.6},
        class_bias=None,
        structure_of_variables=backbone_of_variables,
        resize=lambda config: {"mode": "stretch", "half_pixel_centers": False},  # fixed_shape_resizer
        **family,
    )


def backbone_of_variables(shapes: Shapes, *, where: str) -> str:
    """Returns the name of a checkpoint's backbone, or a description of an unknown ResNet.

    Raises:
        DataError: no MobileNet and no ResNet.
    """
    names = names_here(shapes)
    for backbone, variable in _MOBILENETS.items():
        if variable in names:
            return backbone
    return resnet_of_variables(shapes, where=where)


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
