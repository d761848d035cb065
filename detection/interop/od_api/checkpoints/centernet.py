"""The TF Object Detection API's checkpoints of CenterNets, of TF2.

Names are paths of objects, as those of layers count the layers of a process.  Sources:
`center_net_resnet_v1_fpn_feature_extractor.py` and `center_net_meta_arch.py` of the original, and its configurations,
such as `centernet_resnet50_v1_fpn_512x512_coco17_tpu-8.config`.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from detection.interop.od_api.checkpoints.backbones import backbone_layer
from detection.models.backbones.hourglass import HOURGLASSES
from detection.models.backbones.resnet import RESNETS
from detection.models.centernet.config import CENTERNETS, PERSON_SPREADS, CenterNetConfig, head_keys
from detection.models.heads.keypoint_options import HEATMAP, OFFSET, REGRESSION
from detection.weights.checkpoint_format import (
    CheckpointFormat,
    Shapes,
    Values,
    VariableSource,
    require_backbone,
    require_variables,
    some,
    unchanged,
)
from schemas.config.section import value_at
from schemas.errors import DataError

_EXTRACTOR, _HEADS = "model/_feature_extractor", "model/_prediction_head_dict"
_BASE, _NECK = (f"{_EXTRACTOR}/{part}/layer_with_weights-" for part in ("_base_model", "_feature_extractor_model"))
_NETWORK = f"{_EXTRACTOR}/_network/"
_SCOPES = {"center": "object_center", "size": "box/scale", "offset": "box/offset"}
_KEYPOINT_HEADS = re.compile(f"{_HEADS}/([^/]+)/keypoint/(heatmap|offset|regression)/0/layer_with_weights-0/bias")
_WITH_KEYPOINTS = " with keypoints"
_HOURGLASS_STEM = {"stem": "downsample_input/conv_block", "stem_block": "downsample_input/residual_block"}
# Layers of a convolution with batch norm, and of a block.
_HOURGLASS_LAYERS = {
    "conv2d": "conv",
    "batch_normalization": "norm",
    "conv2d_1": "conv_block/conv",
    "batch_normalization_1": "conv_block/norm",
    "conv2d_2": "conv",
    "batch_normalization_2": "norm",
    "shortcut_conv2d": "skip/conv",
    "shortcut_batch_normalization": "skip/norm",
}
# Variables that every such network has, and their numbers of axes.
_SIZED = {f"{_HEADS}/{task}/0/layer_with_weights-0/bias": 1 for task in _SCOPES.values()}
_FUNCTION = ("backbone.layout", "batch_norm.epsilon", "pixel_mean", "pixel_std")


def _resnet_layers(name: str) -> list[str]:
    """Returns the layers with weights of a ResNet in Keras' order, by their names of keras.applications.

    >>> _resnet_layers("resnet-50")[:10:3]
    ['conv1_conv', 'conv2_block1_1_bn', 'conv2_block1_0_conv', 'conv2_block1_3_bn']
    >>> _resnet_layers("resnet-18")[:8:3]
    ['conv1_conv', 'conv2_block1_1_bn', 'conv2_block1_0_conv']
    """
    preact = not RESNETS[name].bottleneck
    last = [] if preact else ["3_conv", "3_bn"]
    inner = [*(["preact_bn"] if preact else []), "1_conv", "1_bn", "2_conv", "2_bn"]
    first = ["0_conv"] if preact else ["0_conv", "3_conv", "0_bn", "3_bn"]
    layers = ["conv1_conv"] if preact else ["conv1_conv", "conv1_bn"]
    for stage, blocks in enumerate(RESNETS[name].repeats, start=2):
        for block in range(1, blocks + 1):
            layers += [f"conv{stage}_block{block}_{layer}" for layer in (*inner, *(first if block == 1 else last))]
    return [*layers, *(["post_bn"] if preact else [])]


def _mobilenet_layers() -> list[str]:
    """Returns the layers with weights of a MobileNet V2 in Keras' order.

    >>> _mobilenet_layers()[1:7:2], len(_mobilenet_layers())
    (['bn_Conv1', 'expanded_conv_depthwise_BN', 'expanded_conv_project_BN'], 104)
    """
    blocks = ["expanded_conv", *(f"block_{number}" for number in range(1, 17))]
    roles = [f"{block}_{role}" for block in blocks for role in ("expand", "depthwise", "project")][1:]
    return ["Conv1", "bn_Conv1", *(layer for role in roles for layer in (role, f"{role}_BN")), "Conv_1", "Conv_1_bn"]


_RESNETS, _MOBILENET = ("resnet-18", "resnet-34", "resnet-50", "resnet-101"), "mobilenet-v2"
_LAYERS = {name: _resnet_layers(name) for name in _RESNETS} | {_MOBILENET: _mobilenet_layers()}
# Backbones by the number of their layers with weights.
_COUNTS = {len(layers): name for name, layers in _LAYERS.items()}
_COUNTS |= zip((28, 60, 98, 160, 320), HOURGLASSES, strict=True)
_PREACTIVATED = _RESNETS[:2]  # convolutions before their batch norms have no bias
_PRESETS = {name: preset for name, preset in CENTERNETS.items() if preset.backbone.name in (*_LAYERS, *HOURGLASSES)}


def overrides(shapes: Shapes, *, config: Any, where: str) -> dict[str, Any]:
    """Returns the fields of `model.overrides` for a network equivalent to the checkpoint's.

    Args:
        shapes: shapes by the names in the checkpoint.
        config: configuration of the network, for whether it has keypoints.
        where: the checkpoint, for errors.

    Raises:
        DataError: no known backbone, a missing part, or keypoints of more than one class.
    """
    backbone = _backbone(shapes, where=where)
    neck = {} if backbone in HOURGLASSES else {_kernel(f"{_NECK}{number}", shapes): 4 for number in (1, 3, 6, 9)}
    require_variables(
        _SIZED | neck,
        {name: name for name in shapes},
        shapes,
        start="not a checkpoint of a CenterNet with a ResNet v1 or MobileNet v2 and an FPN or an Hourglass:",
        where=where,
    )
    preset = next(one for one in _PRESETS.values() if one.backbone.name == backbone)
    counts = _keypoint_heads(shapes, where=where) if config.keypoints else {}
    scopes = _scopes(shapes, where=where) if counts else _SCOPES
    return {
        **{name: value_at(preset, name) for name in _FUNCTION},
        **({"backbone.layout": "od-api"} if preset.backbone.name in _PREACTIVATED else {}),
        "neck.filters": [shapes[name][-1] for name in neck],
        **head_keys({task: _head_layers(scope, shapes)[:-1] for task, scope in scopes.items()}),
        "neck.separable_conv": any("pointwise" in name for name in neck),
        "head.separable_conv": any(name.startswith(_HEADS) and name.endswith("/pointwise_kernel") for name in shapes),
        "padding": "black",
        **({"keypoints.per_keypoint_offset": counts[OFFSET] == counts[REGRESSION]} if counts else {}),
    }


def categories_with_keypoints(shapes: Shapes, categories: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """Returns the categories, with names of keypoints if the network finds keypoints.

    Without a label map that names them, they are those of the first class: COCO's if there are 17, else numbers.

    Raises:
        DataError: the label map has another number of keypoints.
    """
    count = _keypoint_heads(shapes, where=where).get(HEATMAP, 0)
    named = sum(len(category.get("keypoints", ())) for category in categories)
    if not count or named == count:
        return categories
    if named:
        raise DataError(
            f"{where}: the checkpoint has {count} keypoints, but the categories of the label map {named}. "
            "Pass the label map of its training."
        )
    names = PERSON_SPREADS if count == len(PERSON_SPREADS) else [str(number) for number in range(1, count + 1)]
    return [categories[0] | {"keypoints": list(names)}, *categories[1:]]


def _keypoint_heads(shapes: Shapes, *, where: str) -> dict[str, int]:
    """Returns the output channels of the heads of keypoints, by our names; {} without keypoints.

    Raises:
        DataError: more than one class with keypoints.
    """
    scopes = _scopes(shapes, where=where).items()
    return {task: _head_layers(scope, shapes)[-1][0] for task, scope in scopes if task not in _SCOPES}


def _scopes(shapes: Shapes, *, where: str) -> dict[str, str]:
    """Returns the original's names of our heads.

    Raises:
        DataError: more than one class with keypoints.
    """
    found = [match for name in shapes if (match := _KEYPOINT_HEADS.fullmatch(name))]
    if len({match[1] for match in found}) > 1:
        raise DataError(f"{where}: has heads of keypoints for more than one class, which cannot be imported.")
    return _SCOPES | {f"keypoint_{match[2]}": f"{match[1]}/keypoint/{match[2]}" for match in found}


def _head_layers(scope: str, shapes: Shapes) -> list[tuple[int, int]]:
    """Returns the channels and the kernel side of each layer of a head, the last of which is its output."""
    layers: list[tuple[int, int]] = []
    while (layer := f"{_HEADS}/{scope}/0/layer_with_weights-{len(layers)}") + "/bias" in shapes:
        kernel = shapes.get(f"{layer}/depthwise_kernel") or shapes[f"{layer}/kernel"]
        layers.append((shapes[f"{layer}/bias"][0], kernel[0]))
    return layers


def _kernel(layer: str, shapes: Shapes) -> str:
    """Returns the name of the kernel with a layer's outputs, of a plain or a separable convolution."""
    separable = f"{layer}/pointwise_kernel"
    return separable if separable in shapes else f"{layer}/kernel"


def structures(config: CenterNetConfig) -> tuple[str, ...]:
    """Returns the structures of a configured network: its backbone, with keypoints if they are needed.

    Raises:
        ConfigError: the original has no such network, or it cannot be imported.
    """
    require_backbone(config, _PRESETS, of="the Object Detection API's CenterNets")
    with_keypoints = config.backbone.name + _WITH_KEYPOINTS
    return (with_keypoints,) if config.keypoints else (config.backbone.name, with_keypoints)


def structure_of_variables(shapes: Shapes, *, where: str) -> str:
    """Returns the name of a checkpoint's backbone, with keypoints if it has them.

    Raises:
        DataError: no known backbone, or keypoints of more than one class.
    """
    return _backbone(shapes, where=where) + (_WITH_KEYPOINTS if _keypoint_heads(shapes, where=where) else "")


def _backbone(shapes: Shapes, *, where: str) -> str:
    """Returns the name of a checkpoint's backbone, from the number of its layers.

    Raises:
        DataError: it has as many layers as no known one.
    """
    kernels = ("/kernel", "/depthwise_kernel", "/gamma")
    count = sum(name.startswith((_BASE, _NETWORK)) and name.endswith(kernels) for name in shapes)
    if count in _COUNTS:
        return _COUNTS[count]
    raise DataError(
        f"{where}: not a checkpoint of a CenterNet with {', '.join(_COUNTS.values())}: {count} layers are named "
        f"{_BASE}... or {_NETWORK}.... Examples of its variables: {some(sorted(shapes))}."
    )


def sources_of(ours: Shapes, *, config: CenterNetConfig, theirs: Shapes) -> dict[str, VariableSource]:
    """Implements `detection.weights.checkpoint_format.SourcesOf`.

    Convolutions before batch norm have a bias in the original only; here it is subtracted from the moving mean.
    """
    sources = {}
    scopes = _scopes(theirs, where="")
    for path, shape in ours.items():
        layer, _, variable = path.rpartition("/")
        part, _, rest = layer.partition("/")
        name, conv = _layer(part, rest, config, scopes)
        names = [f"{name}/{'depthwise_kernel' if 'depthwise' in layer and variable == 'kernel' else variable}"]
        convert: Callable[..., Values] = unchanged
        if variable == "moving_mean" and conv:
            names.append(f"{conv}/bias")
            convert = operator.sub
        elif rest in ("stem", "stem/conv2d") and variable == "kernel" and config.backbone.name != _MOBILENET:
            convert = _from_bgr
        sources[path] = VariableSource(tuple(names), (shape,) * len(names), convert)
    return sources


def _layer(part: str, layer: str, config: CenterNetConfig, scopes: Mapping[str, str]) -> tuple[str, str]:
    """Returns the names of a layer, and of the convolution with a bias before it if it is a batch norm."""
    if part in HOURGLASSES:
        scope, _, last = layer.rpartition("/")
        scope = _HOURGLASS_STEM.get(scope, scope)
        own = f"{scope}/{_HOURGLASS_LAYERS[last]}"
        return re.sub(r"_(\d+)(?=/)", r"/\1", f"{_NETWORK}{own}"), ""
    if part == config.backbone.name:
        names, own = _LAYERS[config.backbone.name], backbone_layer(config.backbone.name, layer)
        if part == _MOBILENET:
            return f"{_BASE}{names.index(own)}", ""
        conv = own.removesuffix("bn").removesuffix("conv") + "conv"
        biased = part not in _PREACTIVATED
        return f"{_BASE}{names.index(own)}", f"{_BASE}{names.index(conv)}" if biased else ""
    if part == "neck":
        kind, place, *norm = layer.split("_")
        number = max(3 * int(place) - (kind == "lateral"), 1) + len(norm)
        return f"{_NECK}{number}", f"{_NECK}{number - 1}"
    task, _, place = part.partition("_head")
    count = len(config.head.layers(task)) if layer == "predict" else layer.removeprefix("conv").removeprefix("_") or 0
    return f"{_HEADS}/{scopes[task]}/{place.removeprefix('_') or 0}/layer_with_weights-{count}", ""


def _from_bgr(kernel: Values) -> Values:
    return kernel[:, :, ::-1]


OD_API_CENTERNET = CheckpointFormat(
    title="the Object Detection API",
    family="a CenterNet",
    config_class=CenterNetConfig,
    presets=_PRESETS,
    overrides=overrides,
    postprocess={"score_threshold": 0.0},
    class_bias=None,
    structures=structures,
    structure_of_variables=structure_of_variables,
    class_count=lambda shapes, config, where: _head_layers(_SCOPES["center"], shapes)[-1][0],
    sources_of=sources_of,
    resize=lambda config: {"half_pixel_centers": False},
    categories=categories_with_keypoints,
    object_paths=True,
)
