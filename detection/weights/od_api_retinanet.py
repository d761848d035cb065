"""The TF Object Detection API's checkpoints of RetinaNets, its SSDs with a ResNet v1 and an FPN, of TF2.

Sources: `ssd_resnet_v1_fpn_keras_feature_extractor.py`, `feature_map_generators.py`, `predictors/` and `box_coders/` of
the original, and its configurations `ssd_resnet50_v1_fpn_640x640_coco17_tpu-8.config` to ResNet-152.
"""

import re
from typing import Any

from detection.models.backbones.resnet import RESNET_PIXEL_MEAN, application_layer
from detection.models.retinanet.config import RETINANETS, RetinaNetConfig
from detection.weights.automl import count_of
from detection.weights.od_api_heads import HEAD_ENDS, LOSSES, head_conversion, head_names
from detection.weights.od_api_names import FPN_EPSILON, fpn_levels, names_here, resnet_of_variables
from detection.weights.program import Program, Shapes, VariableSource, some
from schemas.errors import ConfigError, DataError

_RESNETS = ("resnet-50", "resnet-101", "resnet-152")
_CLASSES, _BOXES = "ClassPredictor/bias", "BoxPredictor/bias"
# Variables whose shapes determine sizes of the network, and their numbers of axes.
_SIZED = {"projection_1/kernel": 4, _CLASSES: 1, _BOXES: 1}


def _names(theirs: Shapes) -> dict[str, str]:
    """Returns the names in a checkpoint by names without scope."""
    matches = ((re.fullmatch(f"(?:.*/)?{end}", name), name) for name in theirs for end in HEAD_ENDS)
    return names_here(theirs) | {match[1]: name for match, name in matches if match}


def overrides(shapes: Shapes, *, where: str) -> dict[str, Any]:
    """Returns the fields of `model.overrides` for a network equivalent to the checkpoint's.

    Args:
        shapes: shapes by the names in the checkpoint.
        where: the checkpoint, for errors.

    Raises:
        DataError: no ResNet, or a part of the network is missing.
    """
    resnet_of_variables(shapes, where=where)
    names = _names(shapes)
    lacking = [name for name, axes in _SIZED.items() if len(shapes.get(names.get(name, ""), ())) != axes]
    if lacking:
        raise DataError(
            f"{where}: not a checkpoint of a RetinaNet: {some(lacking)} is missing or has another number of axes. "
            f"Examples of its variables: {some(sorted(shapes))}."
        )
    finest, coarsest = fpn_levels(names)
    return {
        "resnet_layout": "od-api",
        "activation": "relu6",
        "batch_norm_epsilon": FPN_EPSILON,
        "pixel_mean": list(RESNET_PIXEL_MEAN),
        "pixel_std": [1.0, 1.0, 1.0],
        "min_level": finest,
        "max_level": coarsest,
        "fpn_filters": shapes[names["projection_1/kernel"]][-1],
        "fpn_layout": "od-api",
        "head_layers": count_of(r"ClassPredictionTower/conv2d_(\d+)/.*", names),
        "anchor_scale": 4.0,
        "anchor_layout": "od-api",
        "num_scales": 2,
        "background_class": True,
        "focal_gamma": 2.0,
        **LOSSES,
    }


def structures(config: RetinaNetConfig) -> tuple[str]:
    """Returns the structure of a configured network: its ResNet.

    Raises:
        ConfigError: the original has no such network.
    """
    if config.backbone not in _RESNETS or config.fpn_layout != "od-api":
        raise ConfigError(
            f"model.overrides: backbone = {config.backbone} with fpn_layout = {config.fpn_layout}: of the Object "
            f"Detection API's RetinaNets, {', '.join(_RESNETS)} with fpn_layout = od-api can be imported. Pass --model "
            "retinanet-r50, -r101 or -r152."
        )
    return (config.backbone,)


def class_count(shapes: Shapes, config: RetinaNetConfig, *, where: str) -> int:
    """Returns the number of classes of a network, without background.

    Raises:
        DataError: the network and the configuration have different numbers of anchors per cell.
    """
    names = _names(shapes)
    [classes], [boxes] = (shapes[names[name]] for name in (_CLASSES, _BOXES))
    anchors = config.anchors_per_cell
    if boxes != 4 * anchors or classes % anchors:
        raise DataError(
            f"{where}: {boxes} box outputs and {classes} class outputs do not match {anchors} anchors per cell. "
            "Pass scales_per_octave and aspect_ratios of its pipeline.config with --set "
            "model.overrides.num_scales=VALUE and aspect_ratios."
        )
    return classes // anchors - config.background_class


def sources_of(ours: Shapes, *, config: RetinaNetConfig, theirs: Shapes) -> dict[str, VariableSource]:
    """Implements `detection.weights.program.SourcesOf`."""
    names = _names(theirs)
    heads = head_names(config.levels, config.head_layers)
    sources = {}
    for path, shape in ours.items():
        layer, _, variable = path.rpartition("/")
        part, _, rest = layer.partition("/")
        if part == config.backbone:
            name = application_layer(rest)
        else:
            name = _fpn_layer(rest, config) if part == "fpn" else heads[layer]
        name = f"{name}/{variable}"
        sources[path] = VariableSource((names.get(name, name),), (shape,), head_conversion(layer, variable, config))
    return sources


def _fpn_layer(layer: str, config: RetinaNetConfig) -> str:
    """Returns the original's layer; it counts projections from the finest level, extra levels by stage."""
    layer, norm, _ = layer.partition("_bn")
    kind, _, level = layer.rpartition("p")
    number = int(level) - config.min_level + 1
    if kind == "lateral_":
        return f"projection_{number}"
    block = f"smoothing_{number}" if kind == "output_" else f"bottom_up_block{int(level) - 1}"
    return f"{block}_batchnorm" if norm else f"{block}_conv"


OD_API_RETINANET = Program(
    title="the Object Detection API",
    family="a RetinaNet",
    config_class=RetinaNetConfig,
    presets={name: preset for name, preset in RETINANETS.items() if preset.backbone in _RESNETS},
    overrides=overrides,
    postprocess={"score_threshold": 1e-8, "iou_threshold": 0.6},
    class_bias=None,
    structures=structures,
    structure_of_variables=resnet_of_variables,
    class_count=class_count,
    sources_of=sources_of,
    resize=lambda config: {"mode": "stretch", "half_pixel_centers": False},  # fixed_shape_resizer
)
