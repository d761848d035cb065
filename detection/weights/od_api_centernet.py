"""The TF Object Detection API's checkpoints of CenterNets, of TF2.

Names are paths of objects, as those of layers count the layers of a process.  Sources:
`center_net_resnet_v1_fpn_feature_extractor.py` and `center_net_meta_arch.py` of the original, and its configurations,
such as `centernet_resnet50_v1_fpn_512x512_coco17_tpu-8.config`.
"""

import re
from collections.abc import Callable
from typing import Any

from detection.models.backbones.resnet import RESNETS, application_layer
from detection.models.centernet.config import CENTERNETS, CenterNetConfig
from detection.weights.program import Program, Shapes, Values, VariableSource, require_variables, some, unchanged
from schemas.errors import ConfigError, DataError

_EXTRACTOR, _HEADS = "model/_feature_extractor", "model/_prediction_head_dict"
_BASE, _NECK = (f"{_EXTRACTOR}/{part}/layer_with_weights-" for part in ("_base_model", "_feature_extractor_model"))
_TASKS = {"center": "object_center", "size": "box/scale", "offset": "box/offset"}
_HEAD_LAYERS = {"conv": "layer_with_weights-0", "predict": "layer_with_weights-1"}
_HOURGLASS = "hourglass-104"
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
# A variable that only this network has: a block of the second hourglass, at its least size.
_DEEPEST = f"{_EXTRACTOR}/_network/hourglass_network/1{'/inner_block/0' * 4}/inner_block/3/conv/kernel"
_INNER, _CLASSES = (f"{_HEADS}/object_center/0/{layer}/bias" for layer in _HEAD_LAYERS.values())
# Variables that every such network has, and their numbers of axes.
_SIZED = {_INNER: 1, _CLASSES: 1}
_SIZED_NECK = {f"{_NECK}{number}/kernel": 4 for number in (1, 3, 6, 9)}
_FUNCTION = ("resnet_layout", "batch_norm_epsilon", "pixel_mean", "pixel_std")


def _resnet_layers(name: str) -> list[str]:
    """Returns the layers with weights of a ResNet in Keras' order, by their names of keras.applications.

    >>> _resnet_layers("resnet-50")[:10:3]
    ['conv1_conv', 'conv2_block1_1_bn', 'conv2_block1_0_conv', 'conv2_block1_3_bn']
    """
    layers = ["conv1_conv", "conv1_bn"]
    for stage, blocks in enumerate(RESNETS[name].repeats, start=2):
        for block in range(1, blocks + 1):
            names = ["1_conv", "1_bn", "2_conv", "2_bn", "3_conv", "3_bn"]
            if block == 1:
                names[4:] = ["0_conv", "3_conv", "0_bn", "3_bn"]
            layers += [f"conv{stage}_block{block}_{layer}" for layer in names]
    return layers


_LAYERS = {name: _resnet_layers(name) for name, spec in RESNETS.items() if spec.bottleneck}
_PRESETS = {name: preset for name, preset in CENTERNETS.items() if preset.backbone in (*_LAYERS, _HOURGLASS)}


def overrides(shapes: Shapes, *, config: Any, where: str) -> dict[str, Any]:
    """Returns the fields of `model.overrides` for a network equivalent to the checkpoint's.

    Args:
        shapes: shapes by the names in the checkpoint.
        config: ignored.
        where: the checkpoint, for errors.

    Raises:
        DataError: a part of the network is missing.
    """
    neck = {} if _DEEPEST in shapes else _SIZED_NECK
    require_variables(
        _SIZED | neck,
        {name: name for name in shapes},
        shapes,
        start="not a checkpoint of a CenterNet with a ResNet v1 and an FPN or an Hourglass-104:",
        where=where,
    )
    preset = CENTERNETS["centernet-r50" if neck else "centernet-hourglass-104"]
    return {
        **{name: getattr(preset, name) for name in _FUNCTION},
        "neck_filters": [shapes[name][-1] for name in neck],
        "head_filters": shapes[_INNER][0],
        "padding": "black",
    }


def structures(config: CenterNetConfig) -> tuple[str]:
    """Returns the structure of a configured network: its backbone.

    Raises:
        ConfigError: the original has no such network, or it cannot be imported.
    """
    if config.backbone not in (*_LAYERS, _HOURGLASS):
        raise ConfigError(
            f"model.overrides.backbone = {config.backbone}: of the Object Detection API's CenterNets, those with "
            f"resnet-50, resnet-101 or hourglass-104 can be imported. Pass --model {' or '.join(_PRESETS)}."
        )
    return (config.backbone,)


def structure_of_variables(shapes: Shapes, *, where: str) -> str:
    """Returns the name of a checkpoint's backbone, of a ResNet from the number of its layers, or a description.

    Raises:
        DataError: no layers.
    """
    if _DEEPEST in shapes:
        return _HOURGLASS
    count = sum(name.startswith(_BASE) and name.endswith(("/kernel", "/gamma")) for name in shapes)
    if not count:
        raise DataError(
            f"{where}: not a checkpoint of a CenterNet: variables {_BASE}... are missing. Examples of its variables: "
            f"{some(sorted(shapes))}."
        )
    return next((name for name, layers in _LAYERS.items() if len(layers) == count), f"a backbone of {count} layers")


def sources_of(ours: Shapes, *, config: CenterNetConfig, theirs: Shapes) -> dict[str, VariableSource]:
    """Implements `detection.weights.program.SourcesOf`.

    Convolutions before batch norm have a bias in the original only; here it is subtracted from the moving mean.
    """
    sources = {}
    for path, shape in ours.items():
        layer, _, variable = path.rpartition("/")
        part, _, rest = layer.partition("/")
        name, conv = _layer(part, rest, config)
        names = [f"{name}/{variable}"]
        convert: Callable[..., Values] = unchanged
        if variable == "moving_mean" and conv:
            names.append(f"{conv}/bias")
            convert = _without_bias
        elif rest == "stem/conv2d":
            convert = _from_bgr
        sources[path] = VariableSource(tuple(names), (shape,) * len(names), convert)
    return sources


def _layer(part: str, layer: str, config: CenterNetConfig) -> tuple[str, str]:
    """Returns the names of a layer, and of the convolution with a bias before it if it is a batch norm."""
    if part == _HOURGLASS:
        scope, _, last = layer.rpartition("/")
        scope = _HOURGLASS_STEM.get(scope, scope)
        own = f"{scope}/{_HOURGLASS_LAYERS[last]}"
        return re.sub(r"_(\d+)(?=/)", r"/\1", f"{_EXTRACTOR}/_network/{own}"), ""
    if part == config.backbone:
        names, own = _LAYERS[config.backbone], application_layer(layer)
        conv = own.removesuffix("bn").removesuffix("conv") + "conv"
        return f"{_BASE}{names.index(own)}", f"{_BASE}{names.index(conv)}"
    if part == "neck":
        kind, place, *norm = layer.split("_")
        number = max(3 * int(place) - (kind == "lateral"), 1) + len(norm)
        return f"{_NECK}{number}", f"{_NECK}{number - 1}"
    task, _, place = part.partition("_head")
    return f"{_HEADS}/{_TASKS[task]}/{place.removeprefix('_') or 0}/{_HEAD_LAYERS[layer]}", ""


def _from_bgr(kernel: Values) -> Values:
    return kernel[:, :, ::-1]


def _without_bias(mean: Values, bias: Values) -> Values:
    return mean - bias


OD_API_CENTERNET = Program(
    title="the Object Detection API",
    family="a CenterNet",
    config_class=CenterNetConfig,
    presets=_PRESETS,
    overrides=overrides,
    postprocess={"score_threshold": 0.0},
    class_bias=None,
    structures=structures,
    structure_of_variables=structure_of_variables,
    class_count=lambda shapes, config, where: shapes[_CLASSES][0],
    sources_of=sources_of,
    resize=lambda config: {"half_pixel_centers": False},
    object_paths=True,
)
