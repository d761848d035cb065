"""The TF Object Detection API's checkpoints of EfficientDet D0 to D7, of TF2.

Sources: `ssd_efficientnet_bifpn_feature_extractor.py`, `bidirectional_feature_pyramid_generators.py`,
`bifpn_utils.py`, `predictors/` and `box_coders/` of the original, `efficientnet_model.py` of its
official models, and its configurations `ssd_efficientdet_d0_512x512_coco17_tpu-8.config` to D7.

The outputs of the heads differ as `heads` says.  Depending on the configuration, a convolution after the
backbone may have no bias and a batch norm no scale; ours then get neutral values.
"""

import functools
import operator
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, cast

import numpy as np

from detection.interop.efficientdet import Structure, structure_of_config
from detection.interop.od_api.checkpoints.backbones import OdApiFormat
from detection.interop.od_api.checkpoints.heads import (
    BOXES,
    CLASSES,
    LOSSES,
    class_outputs,
    head_conversion,
    head_names,
)
from detection.interop.od_api.checkpoints.layers import efficientnet_scopes
from detection.interop.od_api.checkpoints.names import HEAD_ENDS
from detection.models.backbones.efficientnet_spec import (
    EfficientNetLayout,
    EfficientNetSpec,
    backbone_spec,
    block_specs,
    level_blocks,
)
from detection.models.efficientdet.config import EFFICIENTDETS, EfficientDetConfig
from detection.models.necks.fpn_graphs import fpn_nodes, output_ids
from detection.weights.checkpoint_format import Shapes, VariableSource, count_of
from schemas.errors import ConfigError, DataError

_STEM = "stem_conv2d/kernel"
_BOX_KERNEL = "BoxPredictor/pointwise_kernel"
# Variables whose shapes identify a network, and their numbers of axes.
_SIZED = {_STEM: 4, CLASSES: 1, BOXES: 1, _BOX_KERNEL: 4}
# Suffixes of the names of the network's variables, after an optional scope.
_ENDS = (r"(stem_(?:conv2d|bn)/\w+)", r"(stack_\d+/block_\d+/\w+/\w+)", r"(\d+_(?:dn|up)_lvl_\d+/.+)", *HEAD_ENDS)
_NEUTRAL = {"bias": 0.0, "gamma": 1.0}  # values of variables that may be missing after the backbone
_WEIGHT = "WSM"  # prefix of our names of the weights of a node's inputs
_RESAMPLE = {"conv2d": "conv", "bn": "batchnorm"}  # our layers of a resampled input, and the original's


def _advice(shapes: Shapes) -> str:
    """Returns advice for a checkpoint with paths of objects instead of names."""
    if not any("_feature_extractor/" in name for name in shapes):
        return ""
    return (
        " These are paths of objects: the checkpoint has no variable names. Export the model with the original's "
        "exporter_main_v2.py, and import the exported checkpoint."
    )


def _variable_name(layer: str, variable: str) -> str:
    if variable.startswith(_WEIGHT):
        return "bifpn_combine_weights"
    return "depthwise_kernel" if layer.endswith("/depthwise_conv2d") else variable


def layer_names(config: EfficientDetConfig) -> dict[str, str]:
    """Returns the original's layers, without scope, by the paths of ours.

    >>> names = layer_names(EFFICIENTDETS["efficientdet-d1"])
    >>> names["efficientnet-b1/blocks_2/batch_normalization_1"]
    'stack_1/block_0/depthwise_bn'
    """
    name = config.backbone.name
    backbone = {f"{name}/{ours}": theirs for ours, theirs in _backbone_layers(backbone_spec(name))}
    levels = config.levels
    extra = {
        f"resample_p{level}/{ours}": f"0_up_lvl_{level}/input_0_up_lvl_{level - 1}/1x1_pre_sample/{theirs}"
        for level in levels
        for ours, theirs in _RESAMPLE.items()
    }
    return backbone | extra | dict(_fpn_layers(config)) | head_names(levels, config.head.layers)


def _backbone_layers(spec: EfficientNetSpec) -> Iterator[tuple[str, str]]:
    """Yields our layers and the original's; ours number the convolutions and batch norms of a block."""
    yield "stem/conv2d", "stem_conv2d"
    yield "stem/batch_normalization", "stem_bn"
    for number, (scope, block) in enumerate(zip(efficientnet_scopes(spec), block_specs(spec), strict=True)):
        expansion = ["expand"] if block.expand != 1 else []
        for index, role in enumerate([*expansion, "project"]):
            yield _numbered(f"blocks_{number}/conv2d", index), f"{scope}/{role}_conv2d"
        for index, role in enumerate([*expansion, "depthwise", "project"]):
            yield _numbered(f"blocks_{number}/batch_normalization", index), f"{scope}/{role}_bn"
        yield f"blocks_{number}/depthwise_conv2d", f"{scope}/depthwise_conv2d"
        yield f"blocks_{number}/se/conv2d", f"{scope}/se_reduce_conv2d"
        yield f"blocks_{number}/se/conv2d_1", f"{scope}/se_expand_conv2d"


def _numbered(name: str, index: int) -> str:
    return f"{name}_{index}" if index else name


def _fpn_layers(config: EfficientDetConfig) -> Iterator[tuple[str, str]]:
    """Yields our layers of the BiFPN and the original's.

    The original counts cells from 1 and calls the pyramid's levels cell 0; it names a node by its cell,
    direction (down or up) and level, and an input by its source node.
    """
    nodes = fpn_nodes("bifpn", config.min_level, config.max_level)
    levels = config.levels
    ids = [f"0_up_lvl_{level}" for level in levels]
    for cell in range(config.neck.cells):
        for number, node in enumerate(nodes):
            way = "dn" if number < len(levels) - 1 else "up"
            name, own_id = f"{cell + 1}_{way}_lvl_{node.level}", len(levels) + number
            ours = f"fpn_cells/cell_{cell}/fnode{number}"
            yield ours, f"{name}/combine"
            yield f"{ours}/op_after_combine{own_id}/conv", f"{name}/post_combine/separable_conv"
            yield f"{ours}/op_after_combine{own_id}/bn", f"{name}/post_combine/batchnorm"
            for index, given in enumerate(node.inputs):
                for layer, theirs in _RESAMPLE.items():
                    resample = f"{ours}/resample_{index}_{given}_{own_id}/{layer}"
                    yield resample, f"{name}/input_{ids[given]}/1x1_pre_sample/{theirs}"
            ids.append(name)
        ids = [ids[number] for number in output_ids(nodes, config.min_level, config.max_level)]


class EfficientDetFormat(OdApiFormat):
    """A checkpoint of the Object Detection API's EfficientDet."""

    family = "an EfficientDet"
    config_class = EfficientDetConfig
    presets: ClassVar = {f"efficientdet-d{number}": EFFICIENTDETS[f"efficientdet-d{number}"] for number in range(8)}
    postprocess: ClassVar = {"score_threshold": 1e-8}

    @classmethod
    def unscoped(cls, names: Collection[str]) -> Mapping[str, str]:
        """Implements `OdApiFormat.unscoped`.

        >>> EfficientDetFormat.unscoped(["Box/WeightSharedConvolutionalBoxHead/BoxPredictor/bias", "top_bn/beta"])
        {'BoxPredictor/bias': 'Box/WeightSharedConvolutionalBoxHead/BoxPredictor/bias'}
        """
        matches = ((re.fullmatch(f"(?:.*/)?{end}", name), name) for name in names for end in _ENDS)
        return {match[1]: name for match, name in matches if match}

    @classmethod
    def structures(cls, config: EfficientDetConfig) -> tuple[Structure]:
        """Implements `CheckpointFormat.structures`."""
        if config.neck.graph != "bifpn" or config.neck.fusion.startswith("channel_"):
            raise ConfigError(
                f"model.overrides.neck: graph = {config.neck.graph} with fusion = {config.neck.fusion}: the Object "
                "Detection API only has bifpn, with one weight per input. Remove them."
            )
        spec = backbone_spec(config.backbone.name)
        levels = level_blocks(spec, cast(EfficientNetLayout, config.backbone.layout))[config.min_level - 1 :]
        if config.neck.filters in {block_specs(spec)[number].out_filters for number in levels}:
            raise ConfigError(
                f"model.overrides.neck.filters = {config.neck.filters}: equal to the filters of a level of "
                f"{config.backbone.name}. The Object Detection API then "
                "applies a 1x1 convolution that ours does not have. It cannot be imported."
            )
        return (structure_of_config(config),)

    def structure(self) -> Structure:
        """Implements `CheckpointFormat.structure`."""
        start = "not a checkpoint of the Object Detection API's EfficientDet:"
        self.require_variables(_SIZED, start, _advice(self.shapes))
        names = self.names
        return Structure(
            stem_filters=self.shape(_STEM)[-1],
            blocks=len({match[0] for name in names if (match := re.match(r"stack_\d+/block_\d+/", name))}),
            squeeze_excite=any("/se_reduce_conv2d/" in name for name in names),
            fpn_filters=self.shape(_BOX_KERNEL)[-2],
            fpn_cells=count_of(r"(\d+)_dn_lvl_.*", names) - 1,
            fpn_weights=any(name.endswith("/bifpn_combine_weights") for name in names),
            head_layers=count_of(r"ClassPredictionTower/conv2d_(\d+)/.*", names),
            max_level=count_of(r"1_up_lvl_(\d+)/.*", names) - 1,
        )

    def classes(self, config: EfficientDetConfig) -> int:
        """Returns the number of classes, from the length of the class outputs.

        Raises:
            DataError: the network and the configuration have different finest levels, or different numbers of
                anchors per cell.
        """
        finest = min(int(match[1]) for name in self.names if (match := re.match(r"\d+_dn_lvl_(\d+)/", name)))
        if finest != config.min_level:
            raise DataError(
                f"{self.where}: the pyramid starts at level {finest}, that of the configuration at {config.min_level}. "
                f"Pass --set model.overrides.min_level={finest}."
            )
        return class_outputs(self, config)

    def network(self, config: EfficientDetConfig) -> dict[str, Any]:
        """Implements `OdApiFormat.network`."""
        return {"dialect": "od-api", "backbone.layout": "od-api", "anchors.scale": 4.0} | LOSSES

    @classmethod
    def resize(cls, config: EfficientDetConfig) -> dict[str, Any]:
        """Implements `CheckpointFormat.resize`, for a keep_aspect_ratio_resizer, which pads to a square."""
        side = min(config.image_size)
        return {"mode": "short_side", "short_side": side, "long_side": side, "half_pixel_centers": False}

    def differences(self, config: EfficientDetConfig) -> tuple[str, ...]:
        """Implements `CheckpointFormat.differences`."""
        multiple = 2**config.max_level
        if all(side % multiple == 0 for side in config.image_size):
            return ()
        height, width = config.image_size
        return (
            f"images of {height} x {width}: the original has other anchors for, or refuses, sides that are not "
            f"multiples of {multiple}. Pass --set model.image_size=VALUE with the size of its image_resizer",
        )

    def sources(self, ours: Shapes, config: EfficientDetConfig) -> dict[str, VariableSource]:
        """Implements `CheckpointFormat.sources`."""
        layers = layer_names(config)
        sources = {}
        for path, shape in ours.items():
            layer, _, variable = path.rpartition("/")
            name = f"{layers[layer]}/{_variable_name(layer, variable)}"
            is_after_backbone = not path.startswith(f"{config.backbone.name}/")
            if name not in self.names and variable in _NEUTRAL and is_after_backbone:
                neutral = functools.partial(np.full, shape, _NEUTRAL[variable], np.float32)
                sources[path] = VariableSource((), (), neutral)
            elif variable.startswith(_WEIGHT):
                inputs = sum(one.startswith(f"{layer}/{_WEIGHT}") for one in ours)
                number = int(variable.partition("_")[2] or 0)
                sources[path] = self.source(name, (inputs, 1), operator.itemgetter((number, 0)))
            else:
                sources[path] = self.source(name, shape, head_conversion(layer, variable, config))
        return sources
