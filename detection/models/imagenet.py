"""ImageNet weights of keras.applications' EfficientNets, put into ours."""

from pathlib import Path
from typing import Any, NamedTuple

import keras

from detection.models.detector import Detector
from detection.models.efficientnet import EfficientNet
from detection.models.efficientnet_spec import stage_repeats
from schemas.errors import ConfigError, DataError

IMAGENET = "imagenet"

_APPLICATIONS = {f"efficientnet-b{number}": f"EfficientNetB{number}" for number in range(8)}


class ImagenetReport(NamedTuple):
    """What `load_imagenet_weights` did.

    source: where the weights came from.
    loaded: paths of our variables that were set.
    unused: names of layers in the source that we have no place for.
    """

    source: str
    loaded: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        unused = f"; not used: {', '.join(self.unused)}" if self.unused else ""
        return f"backbone weights from {self.source}: {len(self.loaded)} tensors loaded{unused}"


def load_imagenet_weights(detector: Detector, source: str) -> ImagenetReport:
    """Sets the whole backbone from keras.applications weights.

    Args:
        detector: its backbone is one of efficientnet-b0..b7.
        source: `imagenet` (fetched by Keras, once) or a weights file that
            keras.applications' model of the same size wrote or can load.

    Raises:
        ConfigError: no such weights exist for this backbone.
        DataError: a file that is missing or holds something else, or a failed fetch.
    """
    backbone = getattr(detector, "backbone", None)
    if not isinstance(backbone, EfficientNet) or backbone.name not in _APPLICATIONS:
        raise ConfigError(
            f"model.backbone_weights = {source!r}: {detector.name} has no ImageNet weights. "
            f"Backbones that have: {', '.join(_APPLICATIONS)}."
        )
    if source != IMAGENET and not Path(source).is_file():
        raise DataError(f"{source}: no such weights file. Set model.backbone_weights to a file or to {IMAGENET}.")
    theirs = {layer.name: layer for layer in _application(backbone.name, source).layers}
    pairs = _layer_pairs(backbone)
    for name, layer in pairs.items():
        layer.set_weights(theirs[name].get_weights())
    return ImagenetReport(
        source=source,
        loaded=tuple(variable.path for layer in pairs.values() for variable in layer.variables),
        unused=tuple(name for name, layer in theirs.items() if layer.weights and name not in pairs),
    )


def _application(backbone: str, source: str) -> keras.Model:
    make = getattr(keras.applications, _APPLICATIONS[backbone])
    errors = []
    for include_top in (False, True):
        try:
            return make(weights=source, include_top=include_top)
        # Keras tells a wrong file by whatever its reader stumbles over.
        except Exception as error:
            errors.append(" ".join(str(error).split())[:200])
    if source == IMAGENET:
        raise DataError(
            f"model.backbone_weights = {IMAGENET}: Keras could not fetch the weights: {errors[0]} "
            "Set it to a local weights file."
        )
    raise DataError(
        f"{source}: not a weights file of keras.applications.{_APPLICATIONS[backbone]}: {errors[0]} "
        f"Set model.backbone_weights to one, or to {IMAGENET}."
    )


def _layer_pairs(backbone: EfficientNet) -> dict[str, Any]:
    """Our layers by the names that keras.applications gives theirs."""
    pairs = {"stem_conv": backbone.stem.conv, "stem_bn": backbone.stem.norm}
    prefixes = [
        f"block{stage}{chr(ord('a') + repeat)}_"
        for stage, repeats in enumerate(stage_repeats(backbone.spec), start=1)
        for repeat in range(repeats)
    ]
    for prefix, block in zip(prefixes, backbone.blocks, strict=True):
        if block.expand_conv is not None:
            pairs[prefix + "expand_conv"] = block.expand_conv
            pairs[prefix + "expand_bn"] = block.expand_norm
        pairs[prefix + "dwconv"] = block.depthwise_conv
        pairs[prefix + "bn"] = block.depthwise_norm
        if block.squeeze_excite is not None:
            pairs[prefix + "se_reduce"] = block.squeeze_excite.reduce
            pairs[prefix + "se_expand"] = block.squeeze_excite.expand
        pairs[prefix + "project_conv"] = block.project_conv
        pairs[prefix + "project_bn"] = block.project_norm
    return pairs
