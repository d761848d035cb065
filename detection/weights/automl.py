"""google/automl's checkpoints of EfficientDet: names of variables, structure of the network, class outputs."""

import re
from collections.abc import Collection
from typing import NamedTuple

from detection.models.backbones.efficientnet_spec import backbone_spec, block_specs, stem_filters
from detection.models.efficientdet.config import EFFICIENTDETS, EfficientDetConfig
from detection.weights.program import Program, Shapes, copied, some
from schemas.errors import DataError

_CLASS_BIAS = "class_net/class-predict/bias"


def automl_name(path: str) -> str:
    """Returns google/automl's name of a variable; only two parts of the names differ.

    >>> automl_name("efficientnet-b0/blocks_1/depthwise_conv2d/kernel")
    'efficientnet-b0/blocks_1/depthwise_conv2d/depthwise_kernel'
    >>> automl_name("efficientnet-b0/stem/batch_normalization/gamma")
    'efficientnet-b0/stem/tpu_batch_normalization/gamma'
    """
    return path.replace("/batch_normalization", "/tpu_batch_normalization").replace(
        "/depthwise_conv2d/kernel", "/depthwise_conv2d/depthwise_kernel"
    )


class Structure(NamedTuple):
    """Numbers that distinguish the variants of EfficientDet, except D6 and D7, whose variables are equal.

    stem_filters: filters of the backbone's first convolution.
    blocks: number of the backbone's blocks.
    squeeze_excite: the blocks have squeeze-and-excitation; False for the lite variants.
    fpn_filters, fpn_cells: filters and cells of the BiFPN.
    fpn_weights: the BiFPN's inputs have weights.
    head_layers: number of inner layers of a head.
    max_level: coarsest pyramid level.
    """

    stem_filters: int
    blocks: int
    squeeze_excite: bool
    fpn_filters: int
    fpn_cells: int
    fpn_weights: bool
    head_layers: int
    max_level: int

    def __str__(self) -> str:
        return (
            f"{self.blocks} backbone blocks with{'' if self.squeeze_excite else 'out'} squeeze-and-excitation after "
            f"{self.stem_filters} stem filters, {self.fpn_cells} BiFPN cells of {self.fpn_filters} filters "
            f"with{'' if self.fpn_weights else 'out'} input weights, {self.head_layers} head layers, levels up to "
            f"{self.max_level}"
        )


def structure_of_config(config: EfficientDetConfig) -> Structure:
    """Returns the structure of a configured network, without building it.

    Raises:
        ConfigError: unknown backbone.
    """
    spec = backbone_spec(config.backbone)
    return Structure(
        stem_filters=stem_filters(spec),
        blocks=len(block_specs(spec)),
        squeeze_excite=spec.squeeze_excite,
        fpn_filters=config.fpn_filters,
        fpn_cells=config.fpn_cells,
        fpn_weights=config.fpn_fusion != "sum",
        head_layers=config.head_layers,
        max_level=config.max_level,
    )


def structure_of_variables(shapes: Shapes, *, where: str) -> Structure:
    """Determines the structure of a network from its variables.

    Args:
        shapes: shapes by google/automl's names.
        where: the checkpoint, for errors.

    Raises:
        DataError: the variables are not those of google/automl's EfficientDet.
    """
    stem = next((shape for name, shape in shapes.items() if name.endswith("/stem/conv2d/kernel")), None)
    box = shapes.get("box_net/box-predict/pointwise_kernel")
    if stem is None or box is None or _CLASS_BIAS not in shapes:
        raise DataError(
            f"{where}: not a checkpoint of google/automl's EfficientDet: a variable stem/conv2d/kernel, {_CLASS_BIAS} "
            f"or box_net/box-predict/pointwise_kernel is missing. Examples of its variables: {some(sorted(shapes))}."
        )
    return Structure(
        stem_filters=stem[-1],
        blocks=count_of(r".*/blocks_(\d+)/.*", shapes),
        squeeze_excite=any("/se/conv2d/" in name for name in shapes),
        fpn_filters=box[-2],
        fpn_cells=count_of(r"fpn_cells/cell_(\d+)/.*", shapes),
        fpn_weights=any(name.endswith("/WSM") for name in shapes),
        head_layers=count_of(r"class_net/class-(\d+)/.*", shapes),
        max_level=count_of(r"class_net/class-0-bn-(\d+)/.*", shapes) - 1,
    )


def count_of(expression: str, names: Collection[str]) -> int:
    """Returns 1 + the largest number at a place in the names; 0 if no name matches."""
    matches = (re.fullmatch(expression, name) for name in names)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def class_count(shapes: Shapes, config: EfficientDetConfig, *, where: str) -> int:
    """Returns the number of classes of a network, from the length of its class outputs.

    Raises:
        DataError: the class outputs do not divide evenly among the anchors of a cell.
    """
    [outputs] = shapes[_CLASS_BIAS]
    anchors = config.anchors_per_cell
    if outputs % anchors:
        raise DataError(
            f"{where}: {outputs} class outputs do not divide evenly among {anchors} anchors per cell. Pass num_scales "
            "and aspect_ratios of its hparams with --set model.overrides.FIELD=VALUE."
        )
    return outputs // anchors


AUTOML = Program(
    title="google/automl",
    family="an EfficientDet",
    config_class=EfficientDetConfig,
    presets=EFFICIENTDETS,
    overrides=lambda shapes, *, config, where: {},
    postprocess={"nms": "gaussian"},  # its published metrics use Gaussian soft NMS
    class_bias=_CLASS_BIAS,
    structures=lambda config: (structure_of_config(config),),
    structure_of_variables=structure_of_variables,
    class_count=class_count,
    sources_of=lambda ours, *, config, theirs: {path: copied(automl_name(path), ours[path]) for path in ours},
)
