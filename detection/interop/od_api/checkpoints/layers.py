"""Keras' names and order of the layers of the original's backbones, and the names in a checkpoint of a backbone alone.

`fine_tune_checkpoint_type: classification` starts from such a checkpoint: of the zoo's configurations,
`resnet50.ckpt-1`, `mobilenet_v2.ckpt-1`, EfficientNets' `ckpt-0` and so on.  Its variables are below the root
`feature_extractor`, named by Keras' layers, or by the paths of objects, which count the layers that have weights:
`feature_extractor/layer_with_weights-12/kernel`.
"""

import functools
import re
from collections.abc import Collection, Mapping

from detection.models.backbones.efficientnet_spec import (
    BLOCK_ROLES,
    EfficientNetSpec,
    backbone_spec,
    block_specs,
    stage_repeats,
)
from detection.models.backbones.resnet import RESNETS, RESNETS_V2

ROOT = "feature_extractor"
_RESNETS = RESNETS | RESNETS_V2
_COUNTED = re.compile(rf"{ROOT}/layer_with_weights-(\d+)/(\w+)")


def resnet_layers(name: str) -> list[str]:
    """Returns the layers of a ResNet, by their names of keras.applications.

    >>> resnet_layers("resnet-50")[:10:3]
    ['conv1_conv', 'conv2_block1_1_bn', 'conv2_block1_0_conv', 'conv2_block1_3_bn']
    >>> resnet_layers("resnet-18")[:8:3]
    ['conv1_conv', 'conv2_block1_1_bn', 'conv2_block1_0_conv']
    >>> resnet_layers("resnet-50-v2")[5:8], len(resnet_layers("resnet-50-v2"))
    (['conv2_block1_2_bn', 'conv2_block1_0_conv', 'conv2_block1_3_conv'], 102)
    """
    spec = _RESNETS[name]
    preact = spec.v2 or not spec.bottleneck
    last = ["3_conv", *([] if preact else ["3_bn"])] if spec.bottleneck else []
    inner = [*(["preact_bn"] if preact else []), "1_conv", "1_bn", "2_conv", "2_bn"]
    first = ["0_conv", *last[:1], *([] if preact else ["0_bn", "3_bn"])]
    layers = ["conv1_conv"] if preact else ["conv1_conv", "conv1_bn"]
    for stage, blocks in enumerate(spec.repeats, start=2):
        for block in range(1, blocks + 1):
            layers += [f"conv{stage}_block{block}_{layer}" for layer in (*inner, *(first if block == 1 else last))]
    return [*layers, *(["post_bn"] if preact else [])]


def mobilenet_layers(name: str) -> list[str]:
    """Returns the layers of a MobileNet.

    >>> mobilenet_layers("mobilenet-v2")[1:7:2], len(mobilenet_layers("mobilenet-v2"))
    (['bn_Conv1', 'expanded_conv_depthwise_BN', 'expanded_conv_project_BN'], 104)
    >>> mobilenet_layers("mobilenet-v1")[:5:2], len(mobilenet_layers("mobilenet-v1"))
    (['conv1', 'conv_dw_1', 'conv_pw_1'], 54)
    """
    if name == "mobilenet-v1":
        convs = ["conv1", *(f"conv_{kind}_{number}" for number in range(1, 14) for kind in ("dw", "pw"))]
        return [layer for conv in convs for layer in (conv, f"{conv}_bn")]
    blocks = ["expanded_conv", *(f"block_{number}" for number in range(1, 17))]
    roles = [f"{block}_{role}" for block in blocks for role in BLOCK_ROLES][1:]
    return ["Conv1", "bn_Conv1", *(layer for role in roles for layer in (role, f"{role}_BN")), "Conv_1", "Conv_1_bn"]


def efficientnet_scopes(spec: EfficientNetSpec) -> list[str]:
    """Returns the scope of each block of an EfficientNet."""
    return [f"stack_{stack}/block_{block}" for stack, count in enumerate(stage_repeats(spec)) for block in range(count)]


def efficientnet_layers(name: str) -> list[str]:
    """Returns the layers of an EfficientNet, without its top.

    >>> efficientnet_layers("efficientnet-b0")[:5:2], len(efficientnet_layers("efficientnet-b0"))
    (['stem_conv2d', 'stack_0/block_0/depthwise_conv2d', 'stack_0/block_0/se_reduce_conv2d'], 128)
    """
    spec = backbone_spec(name)
    layers = ["stem_conv2d", "stem_bn"]
    for scope, block in zip(efficientnet_scopes(spec), block_specs(spec), strict=True):
        for role in BLOCK_ROLES[block.expand == 1 :]:
            squeeze = ("se_reduce_conv2d", "se_expand_conv2d") if role == "depthwise" else ()
            layers += [f"{scope}/{layer}" for layer in (f"{role}_conv2d", f"{role}_bn", *squeeze)]
    return layers


@functools.cache
def keras_layers(backbone: str) -> tuple[str, ...]:
    """Returns the layers with weights of a backbone in Keras' order; () for a network that the original lacks."""
    if backbone in _RESNETS:
        return tuple(resnet_layers(backbone))
    if backbone.startswith("mobilenet-"):
        return tuple(mobilenet_layers(backbone))
    return tuple(efficientnet_layers(backbone)) if backbone.startswith("efficientnet-b") else ()


_BACKBONES = (*_RESNETS, "mobilenet-v1", "mobilenet-v2", *(f"efficientnet-b{number}" for number in range(8)))


def is_alone(theirs: Collection[str]) -> bool:
    """Returns whether a checkpoint has no heads of a detector of the original."""
    return not any("Predictor" in name or "_prediction_head" in name for name in theirs)


def backbone_of(layers: Collection[str]) -> str | None:
    """Returns the largest backbone whose layers are all among `layers`, Keras' names; None: there is none.

    Of EfficientNets with the same layers, it is the first.
    """
    found = set(layers)
    known = sorted(_BACKBONES, key=lambda name: len(keras_layers(name)), reverse=True)
    return next((name for name in known if found.issuperset(keras_layers(name))), None)


def alike(backbone: str) -> list[str]:
    """Returns the backbones with the same layers, which EfficientNets of two widths may have."""
    layers = keras_layers(backbone)
    return [name for name in _BACKBONES if keras_layers(name) == layers] if layers else [backbone]


def with_layer_names(theirs: Collection[str]) -> Mapping[str, str]:
    """Returns the names in a checkpoint, with Keras' layers for the paths of objects of a backbone alone.

    Layers after the backbone's, those of a classifier, keep their paths.
    """
    counted = {name: match for name in theirs if (match := _COUNTED.fullmatch(name))}
    if not counted:
        return {name: name for name in theirs}
    count = 1 + max(int(match[1]) for match in counted.values())
    separable = any(match[2] == "depthwise_kernel" for match in counted.values())
    fitting = [
        layers
        for layers in map(keras_layers, _BACKBONES)
        if len(layers) <= count and separable == (layers[0] != "conv1_conv")  # else a ResNet
    ]
    layers = max(fitting, key=len, default=())
    return {
        f"{layers[number]}/{match[2]}" if (number := int(match[1])) < len(layers) else name: name
        for name, match in counted.items()
    }
