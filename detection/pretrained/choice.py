"""Choice of the initial weights: `model.weights` and the detailed keys."""

import logging
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from detection.models.backbones.resnet import RESNETS
from detection.models.registry import detector_config
from detection.pretrained.detectors import cache_folder, find_detector
from detection.pretrained.imagenet import RESNET_LAYOUT, find_weights_file
from detection.storage.files import is_file
from detection.web.downloads import UnreachableError
from detection.weights.publications import (
    COCO,
    COCO_DETECTORS,
    IMAGENET,
    IMAGENET_BACKBONES,
    OTHER_DETECTORS,
    names_detector,
    require_licence,
)
from schemas.config.config import Config
from schemas.config.section import Section, value_at
from schemas.errors import CocoflowError, ConfigError
from schemas.quoting import one_line

AUTO, NONE = "auto", "none"
CHOICES = (NONE, IMAGENET, COCO)  # possible results of `auto`
_INDEX = ".index"
_KEY = re.compile(r"^model\.\w+ = '?\w+'?: ")  # key at the start of messages
# Keys and sections of a detector's options that published weights depend on.
_NETWORK_KEYS = (
    *("backbone.name", "backbone.layout", "min_level", "max_level", "neck", "head.layers", "head.separable_conv"),
    *("activation", "anchors.num_scales", "anchors.aspect_ratios", "encoder", "decoder"),
)
_FREE_KEYS = ("decoder.queries",)  # of these sections, without effect on the network

_LOGGER = logging.getLogger("cocoflow.trainer")


class InitialWeights(NamedTuple):
    """Weights that a training starts from, as values of the detailed keys.

    backbone_weights: `imagenet` or a file.
    checkpoint: path of weights.
    """

    backbone_weights: str | None
    checkpoint: str | None


def configured_weights(config: Config) -> InitialWeights:
    """Returns the paths and names in a configuration, except weights that must be downloaded first.

    These are the published detector, and the results of `auto`.
    """
    weights = config.model.weights
    if weights in (AUTO, NONE) or names_detector(weights):
        return InitialWeights(config.model.backbone_weights, config.train.init.checkpoint)
    if weights == IMAGENET or (is_file(weights) and not weights.endswith(_INDEX)):
        return InitialWeights(weights, None)
    return InitialWeights(None, weights)


def initial_weights(config: Config) -> InitialWeights:
    """Returns the weights to start from; downloads the published detector if needed.

    Args:
        config: configuration with a resolved `model.weights`; `auto` stands for the detailed keys only.

    Raises:
        ConfigError: `coco` for a detector that is not published.
        DataError: the published detector is not in the cache and cannot be downloaded.
    """
    if names_detector(config.model.weights):
        return InitialWeights(None, _find_published(config, fetches=config.model.fetch_weights))
    return configured_weights(config)


def choose_weights(config: Config) -> str:
    """Finds the best available published weights; logs them, and why better ones are not available.

    Args:
        config: configuration without detailed keys.

    Returns:
        `coco`, `imagenet` or `none`.
    """
    fetches, reasons = config.model.fetch_weights, []
    for name, find in ((COCO, _find_published), (IMAGENET, _find_imagenet)):
        try:
            found = find(config, fetches=fetches)
        except CocoflowError as error:
            # Without a connection, a second attempt would take the same time again.
            fetches = fetches and not isinstance(error, UnreachableError)
            reasons.append(f"not {name}: {_short(error)}")
        else:
            _log(name, found, reasons)
            return name
    _log(NONE, "random weights", reasons)
    return NONE


def _log(name: str, found: str, reasons: Sequence[str]) -> None:
    _LOGGER.info("model.weights = auto: %s, %s%s", name, found, f" ({'; '.join(reasons)})" if reasons else "")


def _short(error: Exception) -> str:
    """Returns the first sentence of a message, without its key, which the user has not set here."""
    return _KEY.sub("", one_line(str(error))).partition(". ")[0].rstrip(".")


def _find_published(config: Config, *, fetches: bool) -> str:
    """Returns the model folder of the detector that `model.weights` names, by default the one of COCO.

    Raises:
        ConfigError: the detector is not published, the configuration has another network, or does not accept the
            licence.
        DataError: it is not in the cache and cannot be downloaded.
    """
    model = config.model
    publication = OTHER_DETECTORS.get(model.weights) or COCO_DETECTORS.get(model.name)
    if publication is None:
        raise ConfigError(
            f"model.weights = {COCO}: {model.name} has no published weights. Detectors with weights: "
            f"{', '.join(COCO_DETECTORS)}."
        )
    if model.name != publication.preset:
        raise ConfigError(f"model.weights = {model.weights}: weights of {publication.preset}, not of {model.name}.")
    require_licence(publication.as_json(), model.weights_licences)
    ours = detector_config(model.name, overrides=model.overrides)
    theirs = detector_config(model.name, overrides=publication.overrides)
    changed = [key for key in _network_keys(ours) if value_at(ours, key) != value_at(theirs, key)]
    if changed:
        listed = ", ".join(f"{key} = {value_at(theirs, key)}" for key in changed)
        raise ConfigError(
            f"model.weights = {publication.weights}: model.overrides changes {', '.join(changed)}, so the published "
            f"{publication.name} is another network, with {listed}. To load what fits, set train.init.checkpoint to "
            "its folder, and train.init.skip_mismatch."
        )
    return find_detector(publication, cache_folder(model.weights_cache), fetches=fetches)


def _network_keys(config: Section) -> Iterator[str]:
    """Yields the dotted keys that published weights depend on, those of a section one by one."""
    for key in _NETWORK_KEYS:
        section = value_at(config, key)
        keys = (f"{key}.{name}" for name in type(section).model_fields) if isinstance(section, Section) else (key,)
        yield from (one for one in keys if one not in _FREE_KEYS)


def _find_imagenet(config: Config, *, fetches: bool) -> str:
    """Returns the file of the backbone's weights.

    Raises:
        ConfigError: no weights for this backbone or its layout.
        DataError: the weights are not available.
    """
    model = config.model
    preset = detector_config(model.name, overrides=model.overrides)
    name, layout = preset.backbone.name, preset.backbone.layout
    if name in IMAGENET_BACKBONES:
        require_licence(IMAGENET_BACKBONES[name].as_json(), model.weights_licences)
    if name in RESNETS and layout != RESNET_LAYOUT:
        raise ConfigError(f"model.weights = {IMAGENET}: no weights for model.overrides.backbone.layout = {layout}")
    return str(find_weights_file(name, IMAGENET, fetches=fetches))
