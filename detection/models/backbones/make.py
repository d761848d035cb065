"""Backbones by name, for all families of detectors."""

from typing import Any, Literal

from pydantic import Field, NonNegativeInt

from detection.models.backbones.contract import Backbone, BackboneKind
from detection.models.backbones.efficientnet import EfficientNet
from detection.models.backbones.efficientnet_spec import BACKBONES
from detection.models.backbones.hgnet import HGNETS, HGNetV2
from detection.models.backbones.hourglass import HOURGLASSES, Hourglass
from detection.models.backbones.resnet import RESNETS, RESNETS_V2, ResNet
from detection.models.layers.batch_norm import batch_norms
from schemas.config.section import Section
from schemas.errors import ConfigError

_RESNET = BackboneKind(ResNet, RESNETS, ("layout", "tail"), ("standard", "tpu", "od-api"))
_KINDS = (
    _RESNET,
    _RESNET._replace(specs=RESNETS_V2, layouts=("standard", "od-api")),
    BackboneKind(HGNetV2, HGNETS),
    BackboneKind(
        EfficientNet, BACKBONES, ("layout", "expanded", "survival_probability"), ("standard", "od-api", "strided")
    ),
    BackboneKind(Hourglass, HOURGLASSES),
)


class BackboneOptions(Section):
    """The backbone, and how much of it trains."""

    name: str = Field(
        "resnet-50",
        description="resnet-18, -34, -50, -101, -152 or -200, resnet-50-v2, -101-v2 or -152-v2, mnasnet-a1, -b1 or "
        "-small, mobilenet-v1 or -v2, hgnetv2-b0 to -b5, an EfficientNet such as efficientnet-b0 or -lite0, or in a "
        "CenterNet an hourglass-10, -20, -32, -52 or -104",
    )
    layout: Literal["standard", "tpu", "od-api", "strided"] = Field(
        "standard",
        description="strides of a ResNet, which must match the pretrained weights: standard: as in keras.applications; "
        "tpu: as in TPU Mask R-CNN; od-api: as in the TF Object Detection API and TF-Slim, whose ResNet-18 and -34 are "
        "pre-activated, and whose ResNets v2 end without batch norm. Blocks of other networks that are levels: "
        "standard: the last before each stride; od-api: in the API's EfficientDets, the last ones in EfficientNet-B0; "
        "strided: in its CenterNets, the last of the stage that strides",
    )
    frozen_stages: NonNegativeInt | None = Field(
        0,
        description="number of frozen stages, batch norm included; stage l ends at level l, or the l-th hourglass; "
        "2: stem and conv2_x of a ResNet; 0: all stages train; none: 4 in a training that starts from ImageNet weights "
        "by `model.weights`, else 0",
    )
    train_batch_norm: bool = Field(
        True,
        description="batch norm uses batch statistics in training and updates its moving ones; false: the statistics "
        "are fixed, and only scale and offset train, outside of the frozen stages",
    )
    survival_probability: float | None = Field(
        None, gt=0.0, le=1.0, description="survival of the last block of an EfficientNet in training; none: all survive"
    )

    def _check_keys(self) -> None:
        for kind in _KINDS:
            if self.name in kind.specs and self.layout not in kind.layouts:
                raise ValueError(f"{self.name} has no layout = {self.layout}")


def make_backbone(
    options: BackboneOptions,
    *,
    activation: str | None,
    batch_norm: dict[str, float],
    levels: range | None,
    recompute: bool,
    tail: bool = False,
    expanded: bool = False,
    dtype: Any,
) -> Backbone:
    """Returns the backbone, without its variables.

    Args:
        options: the backbone.
        activation: name of the activation; None: the network's own.
        batch_norm: arguments of `BatchNormalization`.
        levels: levels of the detector's pyramid, finest first; None: the backbone is no pyramid.
        recompute: recompute each block in the backward pass, to save memory.
        tail: see `ResNet`.
        expanded: see `EfficientNet`.
        dtype: Keras dtype policy.

    Raises:
        ConfigError: unknown backbone, or levels that do not fit it.
    """
    name = options.name
    kinds = {own: kind for kind in _KINDS for own in kind.specs if kind.make.stacked == (levels is None)}
    kind = kinds.get(name)
    if kind is None:
        reason = "not for this detector" if any(name in other.specs for other in _KINDS) else "no such backbone"
        raise ConfigError(f"model.overrides.backbone.name = {name!r}: {reason}. Choose from {', '.join(kinds)}.")
    own = options.model_dump() | {"tail": tail, "expanded": expanded}
    backbone: Backbone = kind.make(
        spec=kind.specs[name],
        activation=activation,
        batch_norm=batch_norm,
        recompute=recompute,
        name=name,
        dtype=dtype,
        **{key: own[key] for key in kind.arguments},
    )
    deepest = len(backbone.level_filters)
    if levels is not None and deepest not in levels:
        raise ConfigError(
            f"model.overrides: levels {levels.start} to {levels.stop - 1} do not fit {name}: include its deepest "
            f"level, {deepest}."
        )
    return backbone


def freeze_backbone(backbone: Backbone, options: BackboneOptions) -> None:
    """Freezes the first stages of a built backbone, and the statistics of all batch norms if they do not train.

    Raises:
        ConfigError: there are fewer stages.
    """
    stages = options.frozen_stages or 0
    if stages > len(backbone.stages):
        raise ConfigError(
            f"model.overrides.backbone.frozen_stages = {stages}: {backbone.name} has {len(backbone.stages)} stages."
        )
    for stage in backbone.stages[:stages]:
        for layer in stage:
            layer.trainable = False
    if not options.train_batch_norm:
        for layer in batch_norms(backbone):
            layer.fixed_statistics = True
