"""Builds the backbone of a two-stage detector, and freezes parts of it."""

from typing import Any

from detection.models.backbones.efficientnet import EfficientNet
from detection.models.backbones.efficientnet_spec import BACKBONES
from detection.models.backbones.resnet import RESNETS, ResNet
from detection.models.faster_rcnn.config import FasterRcnnConfig
from detection.models.layers.batch_norm import batch_norms
from schemas.errors import ConfigError


def make_backbone(config: FasterRcnnConfig, *, dtype: Any) -> EfficientNet | ResNet:
    """Returns the backbone of a configuration.

    Raises:
        ConfigError: unknown backbone, or pyramid levels or frozen stages that do not fit it.
    """
    common = {
        "momentum": config.momentum,
        "epsilon": config.batch_norm_epsilon,
        "recompute": config.gradient_checkpointing,
        "name": config.backbone,
        "dtype": dtype,
    }
    backbone: EfficientNet | ResNet
    if config.backbone in RESNETS:
        backbone = ResNet(
            spec=RESNETS[config.backbone], layout=config.resnet_layout, activation=config.activation, **common
        )
    elif config.backbone in BACKBONES:
        backbone = EfficientNet(spec=BACKBONES[config.backbone], **common)
    else:
        raise ConfigError(
            f"model.overrides.backbone = {config.backbone!r}: no such backbone. Choose from "
            f"{', '.join((*RESNETS, *BACKBONES))}."
        )
    deepest = len(backbone.level_filters)
    if not config.min_level <= deepest <= config.max_level:
        raise ConfigError(
            f"model.overrides: levels {config.min_level} to {config.max_level} do not fit {config.backbone}: include "
            f"its deepest level, {deepest}."
        )
    if config.frozen_stages > deepest:
        raise ConfigError(
            f"model.overrides.frozen_stages = {config.frozen_stages}: {config.backbone} has {deepest} stages."
        )
    return backbone


def freeze_backbone(backbone: EfficientNet | ResNet, config: FasterRcnnConfig) -> None:
    """Freezes the first `frozen_stages` stages and, unless `train_batch_norm`, the batch norm statistics."""
    for stage in backbone.stages[: config.frozen_stages]:
        for layer in stage:
            layer.trainable = False
    if not config.train_batch_norm:
        for layer in batch_norms(backbone):
            layer.fixed_statistics = True
