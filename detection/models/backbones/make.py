"""Backbones by name, for all families of detectors."""

from dataclasses import dataclass
from typing import Any

from detection.models.backbones.efficientnet import EfficientNet
from detection.models.backbones.efficientnet_spec import BACKBONES, EfficientNetLayout
from detection.models.backbones.resnet import RESNETS, ResNet, ResNetLayout
from detection.models.layers.batch_norm import batch_norms
from schemas.errors import ConfigError

# A layer that maps images to the feature maps of levels 1..L, level l at stride 2^l; `level_filters` are their
# channels, and `stages` the layers between them.
Backbone = EfficientNet | ResNet


@dataclass(frozen=True)
class BackboneOptions:
    """Options of a backbone.

    batch_norm: arguments of `BatchNormalization`.
    activation: name of the activation; None: the network's own.
    survival: survival of the last block of an EfficientNet in training; None: blocks are not dropped.
    recompute: recompute each block in the backward pass, to save memory.
    resnet_layout, tail, efficientnet_layout, expanded: see `ResNet` and `EfficientNet`.
    """

    batch_norm: dict[str, float]
    activation: str | None = None
    survival: float | None = None
    recompute: bool = False
    resnet_layout: ResNetLayout = "keras"
    tail: bool = False
    efficientnet_layout: EfficientNetLayout = "automl"
    expanded: bool = False


def make_backbone(name: str, options: BackboneOptions, *, levels: range, dtype: Any) -> Backbone:
    """Returns the backbone of a pyramid, without its variables.

    Args:
        name: key of `RESNETS` or `BACKBONES`.
        options: options of the backbone.
        levels: levels of the pyramid, finest first.
        dtype: Keras dtype policy.

    Raises:
        ConfigError: unknown backbone, or levels that do not fit it.
    """
    common: dict[str, Any] = {
        "batch_norm": options.batch_norm,
        "recompute": options.recompute,
        "name": name,
        "dtype": dtype,
    }
    backbone: Backbone
    if name in RESNETS:
        activation: Any = options.activation or "relu"
        common |= {"layout": options.resnet_layout, "tail": options.tail}
        backbone = ResNet(spec=RESNETS[name], activation=activation, **common)
    elif name in BACKBONES:
        spec = BACKBONES[name]
        spec = spec._replace(activation=options.activation or spec.activation)
        common |= {"layout": options.efficientnet_layout, "expanded": options.expanded, "survival": options.survival}
        backbone = EfficientNet(spec=spec, **common)
    else:
        raise ConfigError(
            f"model.overrides.backbone = {name!r}: no such backbone. Choose from {', '.join((*RESNETS, *BACKBONES))}."
        )
    deepest = len(backbone.level_filters)
    if deepest not in levels:
        raise ConfigError(
            f"model.overrides: levels {levels.start} to {levels.stop - 1} do not fit {name}: include its deepest "
            f"level, {deepest}."
        )
    return backbone


def freeze_backbone(backbone: Backbone, *, stages: int, fix_statistics: bool) -> None:
    """Freezes the first stages, and the statistics of all batch norms.

    Raises:
        ConfigError: there are fewer stages.
    """
    if stages > len(backbone.stages):
        raise ConfigError(
            f"model.overrides.frozen_stages = {stages}: {backbone.name} has {len(backbone.stages)} stages."
        )
    for stage in backbone.stages[:stages]:
        for layer in stage:
            layer.trainable = False
    if fix_statistics:
        for layer in batch_norms(backbone):
            layer.fixed_statistics = True
