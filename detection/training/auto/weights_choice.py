"""Resolves `model.weights = auto` when a training run starts, and what random weights change."""

import json
import logging
from pathlib import Path

import tensorflow as tf

from detection.models.registry import detector_config
from detection.pretrained.choice import AUTO, CHOICES, NONE, choose_weights, configured_weights
from detection.training.checkpoints.files import checkpoint_steps
from detection.training.distributed.strategy import is_chief
from detection.training.distributed.workers import chief_value
from detection.training.resolve import config_to_resume, saved_config
from detection.weights.publications import IMAGENET, IMAGENET_BACKBONES
from schemas.artifacts import CHECKPOINTS
from schemas.config.config import Config
from schemas.config.section import value_at
from schemas.program import PROGRAM

# An EfficientNet's backward pass takes most of a step, and its first stages find edges and textures in any image.
_FROZEN = 4

_LOGGER = logging.getLogger("cocoflow.trainer")


def with_weights(
    config: Config, *, output: Path, base_model: str | Path | None, strategy: tf.distribute.Strategy
) -> Config:
    """Returns the configuration with a concrete `model.weights`; a resumed run keeps its choice.

    From random weights, the backbone is not frozen as the detector's preset has it, but as `FROM_SCRATCH` has it,
    except for fields that the user has set: random weights that never change would spoil the detector.

    On several machines the chief decides.  `auto` stays if it has no effect: with detailed keys, and in a
    run that starts from a previous model.

    Args:
        config: the run's configuration.
        output: output folder of the run.
        base_model: model to start from; None: no model.
        strategy: strategy that connects the machines.
    """
    if config.model.weights == AUTO and not any(configured_weights(config)) and base_model is None:
        choices = (AUTO, *CHOICES)
        own = _choice(config, output) if is_chief(strategy) else AUTO
        weights = choices[chief_value(strategy, choices.index(own))]
        config = config.model_copy(update={"model": config.model.model_copy(update={"weights": weights})})
    if base_model is not None:
        return config
    if config.model.weights == IMAGENET:
        return _with_frozen_stages(config, output)
    if config.model.weights != NONE:
        return config
    return _from_scratch(config, resumes=bool(checkpoint_steps(output / CHECKPOINTS)))


def _with_frozen_stages(config: Config, output: Path) -> Config:
    """Freezes the first stages of a backbone with ImageNet weights where the detector leaves it open.

    A resumed run keeps the number that it started with.
    """
    model = config.model
    preset = detector_config(model.name, overrides=model.overrides)
    if preset.backbone.frozen_stages is not None:
        return config
    before = config_to_resume(output)
    stages = _FROZEN if before is None else value_at(before.model.overrides, "backbone.frozen_stages") or 0
    return config.model_copy(update={"model": model.with_overrides({"backbone": {"frozen_stages": stages}})})


def _choice(config: Config, output: Path) -> str:
    if not checkpoint_steps(output / CHECKPOINTS):
        return choose_weights(config)
    before = saved_config(output)
    return before.model.weights if before is not None and before.model.weights in CHOICES else AUTO


def _from_scratch(config: Config, *, resumes: bool) -> Config:
    """Returns the configuration of a training from random weights; says at its start what differs from the preset."""
    model = config.model
    preset = detector_config(model.name, overrides=model.overrides)
    changes = {
        section: {
            field: value
            for field, value in fields.items()
            if field not in model.overrides.get(section, {}) and value_at(preset, f"{section}.{field}") != value
        }
        for section, fields in preset.FROM_SCRATCH.items()
    }
    if not any(changes.values()):
        return config
    backbone = preset.backbone.name
    fetch = f"fetch pretrained ones where there is a network (`{PROGRAM} weights fetch {backbone}`)"
    _LOGGER.log(
        logging.INFO if resumes else logging.ERROR,
        "%s starts from random weights, so its backbone is not frozen: model.overrides = %s. It will need many more "
        "images and steps than from pretrained weights: %s, or set train.init.checkpoint",
        model.name,
        json.dumps(changes),
        fetch if backbone in IMAGENET_BACKBONES else f"choose a detector that has some (`{PROGRAM} weights list`)",
    )
    return config.model_copy(update={"model": model.with_overrides(changes)})
