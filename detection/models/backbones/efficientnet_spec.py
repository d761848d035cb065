"""Specifications of EfficientNet, MnasNet and MobileNet, which share their blocks: stages, scaling, blocks.

Tan and Le, "EfficientNet", 2019, table 1; the lite variants as in google/automl.  Tan et al.,
"MnasNet", 2019, figure 7 (A1); B1 and small as in tensorflow/tpu.  Howard et al., "MobileNets", 2017,
table 1; Sandler et al., "MobileNetV2", 2018, table 2.
"""

import math
import re
from itertools import accumulate
from typing import Literal, NamedTuple

from schemas.errors import ConfigError

EfficientNetLayout = Literal["standard", "od-api", "strided"]
BLOCK_ROLES = ("expand", "depthwise", "project")  # convolutions of a block, in order


class Stage(NamedTuple):
    """Blocks of the same shape; only the first is strided.

    squeeze_excite: False: no squeeze-and-excitation, even if the network has it.
    adds: False: no block adds its input, even if the shapes match.
    activates: an activation follows the last convolution of each block.
    """

    repeats: int
    kernel: int
    stride: int
    expand: int
    filters: int
    squeeze_excite: bool = True
    adds: bool = True
    activates: bool = False


class EfficientNetSpec(NamedTuple):
    """Specification of one EfficientNet.

    width, depth: multipliers of filters and repeats.
    lite: no squeeze-and-excitation, relu6, and unscaled stem, first and last stage.
    top_filters: unscaled filters of a 1x1 convolution, whose output is the coarsest level; None: no such layer.
    """

    width: float
    depth: float
    lite: bool = False
    activation: str = "swish"
    stem_filters: int = 32
    squeeze_excite: bool = True
    top_filters: int | None = None
    stages: tuple[Stage, ...] = (
        Stage(1, 3, 1, 1, 16),
        Stage(2, 3, 2, 6, 24),
        Stage(2, 5, 2, 6, 40),
        Stage(3, 3, 2, 6, 80),
        Stage(3, 5, 1, 6, 112),
        Stage(4, 5, 2, 6, 192),
        Stage(1, 3, 1, 6, 320),
    )


def _lite(width: float, depth: float) -> EfficientNetSpec:
    return EfficientNetSpec(width, depth, lite=True, activation="relu6", squeeze_excite=False)


def _mnasnet(stem: int, *stages: Stage) -> EfficientNetSpec:
    return EfficientNetSpec(1.0, 1.0, activation="relu", stem_filters=stem, stages=stages)


def _mobilenet(*stages: Stage, top_filters: int | None = None) -> EfficientNetSpec:
    return EfficientNetSpec(1.0, 1.0, activation="relu6", squeeze_excite=False, top_filters=top_filters, stages=stages)


_V1 = {"adds": False, "activates": True}
BACKBONES: dict[str, EfficientNetSpec] = {
    "efficientnet-b0": EfficientNetSpec(1.0, 1.0),
    "efficientnet-b1": EfficientNetSpec(1.0, 1.1),
    "efficientnet-b2": EfficientNetSpec(1.1, 1.2),
    "efficientnet-b3": EfficientNetSpec(1.2, 1.4),
    "efficientnet-b4": EfficientNetSpec(1.4, 1.8),
    "efficientnet-b5": EfficientNetSpec(1.6, 2.2),
    "efficientnet-b6": EfficientNetSpec(1.8, 2.6),
    "efficientnet-b7": EfficientNetSpec(2.0, 3.1),
    "efficientnet-lite0": _lite(1.0, 1.0),
    "efficientnet-lite1": _lite(1.0, 1.1),
    "efficientnet-lite2": _lite(1.1, 1.2),
    "efficientnet-lite3": _lite(1.2, 1.4),
    "efficientnet-lite4": _lite(1.4, 1.8),
    "mnasnet-a1": _mnasnet(
        32,
        Stage(1, 3, 1, 1, 16, squeeze_excite=False),
        Stage(2, 3, 2, 6, 24, squeeze_excite=False),
        Stage(3, 5, 2, 3, 40),
        Stage(4, 3, 2, 6, 80, squeeze_excite=False),
        Stage(2, 3, 1, 6, 112),
        Stage(3, 5, 2, 6, 160),
        Stage(1, 3, 1, 6, 320, squeeze_excite=False),
    ),
    "mnasnet-b1": _mnasnet(
        32,
        Stage(1, 3, 1, 1, 16),
        Stage(3, 3, 2, 3, 24),
        Stage(3, 5, 2, 3, 40),
        Stage(3, 5, 2, 6, 80),
        Stage(2, 3, 1, 6, 96),
        Stage(4, 5, 2, 6, 192),
        Stage(1, 3, 1, 6, 320),
    )._replace(squeeze_excite=False),
    "mnasnet-small": _mnasnet(
        8,
        Stage(1, 3, 1, 1, 8, squeeze_excite=False, adds=False),
        Stage(1, 3, 2, 3, 16, squeeze_excite=False),
        Stage(2, 3, 2, 6, 16, squeeze_excite=False),
        Stage(4, 5, 2, 6, 32),
        Stage(3, 3, 1, 6, 32),
        Stage(3, 5, 2, 6, 88),
        Stage(1, 3, 1, 6, 144, squeeze_excite=False),
    ),
    "mobilenet-v1": _mobilenet(
        Stage(1, 3, 1, 1, 64, **_V1),
        Stage(2, 3, 2, 1, 128, **_V1),
        Stage(2, 3, 2, 1, 256, **_V1),
        Stage(6, 3, 2, 1, 512, **_V1),
        Stage(2, 3, 2, 1, 1024, **_V1),
    ),
    "mobilenet-v2": _mobilenet(
        Stage(1, 3, 1, 1, 16),
        Stage(2, 3, 2, 6, 24),
        Stage(3, 3, 2, 6, 32),
        Stage(4, 3, 2, 6, 64),
        Stage(3, 3, 1, 6, 96),
        Stage(3, 3, 2, 6, 160),
        Stage(1, 3, 1, 6, 320),
        top_filters=1280,
    ),
    "efficientnet-nano": EfficientNetSpec(
        1.0,
        1.0,
        activation="relu",
        stem_filters=16,
        squeeze_excite=False,
        stages=(Stage(1, 3, 2, 1, 24), Stage(2, 3, 2, 3, 40), Stage(2, 3, 2, 3, 80), Stage(1, 3, 2, 3, 128)),
    ),
}


def backbone_spec(name: str) -> EfficientNetSpec:
    """Returns the specification of an EfficientDet's backbone.

    Raises:
        ConfigError: unknown name.
    """
    if name not in BACKBONES:
        raise ConfigError(
            f"model.overrides.backbone.name = {name!r}: no such backbone. Choose from {', '.join(BACKBONES)}."
        )
    return BACKBONES[name]


class BlockSpec(NamedTuple):
    """One block: kernel side, stride, expansion factor, input and output channels, and branches.

    squeeze_excite: the block has a squeeze-and-excite branch.
    adds: the block adds its input if the shapes match.
    activates: an activation follows the last convolution.
    """

    kernel: int
    stride: int
    expand: int
    in_filters: int
    out_filters: int
    squeeze_excite: bool
    adds: bool
    activates: bool

    @property
    def expanded_filters(self) -> int:
        """Channels of the depthwise convolution."""
        return self.in_filters * self.expand


def round_filters(filters: int, width: float) -> int:
    """Scales filters and rounds them to a multiple of 8, at least 90 % of the scaled value."""
    scaled = filters * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


def block_specs(spec: EfficientNetSpec) -> list[BlockSpec]:
    """Returns all blocks of a network, in order."""
    blocks: list[BlockSpec] = []
    filters = stem_filters(spec)
    for stage, repeats in zip(spec.stages, stage_repeats(spec), strict=True):
        out_filters = round_filters(stage.filters, spec.width)
        for repeat in range(repeats):
            stride = stage.stride if repeat == 0 else 1
            squeeze_excite = spec.squeeze_excite and stage.squeeze_excite
            flags = squeeze_excite, stage.adds, stage.activates
            blocks.append(BlockSpec(stage.kernel, stride, stage.expand, filters, out_filters, *flags))
            filters = out_filters
    return blocks


def level_blocks(spec: EfficientNetSpec, layout: EfficientNetLayout) -> list[int]:
    """Returns the indices of the blocks whose outputs are levels, finest first, not counting the stem's level.

    Args:
        spec: the network.
        layout: `standard`: the last block before each stride, and the last block of the network.
            `od-api`, as in the TF Object Detection API: the same index within a stage as without
            depth scaling, so a deeper network's level comes before the last blocks of its stage.
            `strided`, as in its CenterNets: the last block of the stage that strides, and of the network.
    """
    # The stage before each stride, and the last stage.
    lasts = [*(place for place, stage in enumerate(spec.stages[1:]) if stage.stride == 2), len(spec.stages) - 1]
    repeats = stage_repeats(spec)
    ends = list(accumulate(repeats))
    if layout == "strided":
        lasts[1:-1] = [place + 1 for place in lasts[:-2]]
    if layout != "od-api":
        return [ends[place] - 1 for place in lasts]
    return [ends[place] - repeats[place] + spec.stages[place].repeats - 1 for place in lasts]


def stage_repeats(spec: EfficientNetSpec) -> list[int]:
    """Returns the number of blocks of each stage."""
    scaled = [math.ceil(stage.repeats * spec.depth) for stage in spec.stages]
    if spec.lite:
        scaled[0], scaled[-1] = spec.stages[0].repeats, spec.stages[-1].repeats
    return scaled


def stem_filters(spec: EfficientNetSpec) -> int:
    """Returns the filters of the first convolution."""
    return spec.stem_filters if spec.lite else round_filters(spec.stem_filters, spec.width)


def mobilenet_layer(backbone: str, layer: str) -> str:
    """Returns the name in keras.applications of a MobileNet's layer, given its path below our backbone.

    >>> mobilenet_layer("mobilenet-v2", "stem/batch_normalization"), mobilenet_layer("mobilenet-v2", "top/conv2d")
    ('bn_Conv1', 'Conv_1')
    >>> mobilenet_layer("mobilenet-v2", "blocks_0/conv2d"), mobilenet_layer("mobilenet-v2", "blocks_3/conv2d_1")
    ('expanded_conv_project', 'block_3_project')
    >>> mobilenet_layer("mobilenet-v2", "blocks_3/batch_normalization_1")
    'block_3_depthwise_BN'
    >>> mobilenet_layer("mobilenet-v1", "blocks_0/depthwise_conv2d"), mobilenet_layer("mobilenet-v1", "blocks_0/conv2d")
    ('conv_dw_1', 'conv_pw_1')
    """
    part, _, name = layer.partition("/")
    is_norm = name.startswith("batch_normalization")
    is_v2 = backbone == "mobilenet-v2"
    if part in ("stem", "top"):
        kept = {"stem": "Conv1", "top": "Conv_1"}[part] if is_v2 else "conv1"
        return (f"bn_{kept}" if is_v2 and part == "stem" else f"{kept}_bn") if is_norm else kept
    number = int(part.removeprefix("blocks_"))
    roles = BLOCK_ROLES if is_v2 and number else BLOCK_ROLES[1:]  # the first block of V2, and all of V1, do not expand
    numbered = re.fullmatch(r"(?:conv2d|batch_normalization)_(\d+)", name)
    count = int(numbered[1]) if numbered else 0
    role = roles[count] if is_norm else "depthwise"
    if name.startswith("conv2d"):
        role = [one for one in roles if one != "depthwise"][count]
    if is_v2:
        return f"{f'block_{number}' if number else 'expanded_conv'}_{role}" + ("_BN" if is_norm else "")
    return f"conv_{'dw' if role == 'depthwise' else 'pw'}_{number + 1}" + ("_bn" if is_norm else "")
