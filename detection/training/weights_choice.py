"""Resolves `model.weights = auto` when a training run starts."""

from pathlib import Path

import tensorflow as tf

from detection.pretrained.choice import AUTO, CHOICES, choose_weights, configured_weights
from detection.training.checkpoints.files import checkpoint_steps
from detection.training.distributed.strategy import is_chief
from detection.training.distributed.workers import chief_value
from detection.training.resolve import saved_config
from schemas.artifacts import CHECKPOINTS
from schemas.config.config import Config


def with_weights(
    config: Config, *, output: Path, base_model: str | Path | None, strategy: tf.distribute.Strategy
) -> Config:
    """Returns the configuration with a concrete `model.weights`; a resumed run keeps its choice.

    On several machines the chief decides.  `auto` stays if it has no effect: with detailed keys, and in a
    run that starts from a previous model or was started by an earlier version.

    Args:
        config: the run's configuration.
        output: output folder of the run.
        base_model: model to start from; None: no model.
        strategy: strategy that connects the machines.
    """
    if config.model.weights != AUTO or any(configured_weights(config)) or base_model is not None:
        return config
    choices = (AUTO, *CHOICES)
    own = _choice(config, output) if is_chief(strategy) else AUTO
    weights = choices[chief_value(strategy, choices.index(own))]
    return config.model_copy(update={"model": config.model.model_copy(update={"weights": weights})})


def _choice(config: Config, output: Path) -> str:
    if not checkpoint_steps(output / CHECKPOINTS):
        return choose_weights(config)
    before = saved_config(output)
    return before.model.weights if before is not None and before.model.weights in CHOICES else AUTO
