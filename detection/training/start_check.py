"""What can be said of a training run before there is any data."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.models.backbones.imagenet import find_weights_file
from detection.models.registry import detector_config
from detection.training.build import initialize_from_config, replica_batch_size, state_from_config
from detection.training.build_update import l2_from_config
from detection.training.checkpoints.files import checkpoint_steps
from detection.training.checkpoints.manager import Checkpoints
from detection.training.initialization.locate import locate_weights
from detection.training.input_options import input_options_from_config
from schemas.config.config import Config

_UNKNOWN = ({"id": 0, "name": ""},)  # stands for categories that only the records tell


def check_start(
    config: Config,
    *,
    categories: Sequence[Mapping[str, Any]] | None,
    strategy: tf.distribute.Strategy | None = None,
    checkpoints: Path | None = None,
    initializes: bool = True,
) -> None:
    """Builds what a training run starts from, as `train` does, on the CPU and without data, and drops it.

    The cheapest questions come first.

    Args:
        config: `model` and `train` count.
        categories: the data set's; None: not known yet, what depends on them is not checked.
        strategy: to train under; None: not known yet.
        checkpoints: folder of the checkpoints that the run may go on from; None: not known yet.
        initializes: whether the run needs its initial weights, if it has no checkpoint.

    Raises:
        ConfigError, DataError: as `train` would later.
    """
    if strategy is not None:
        replica_batch_size(config.train, strategy)
    goes_on = checkpoints is not None and bool(checkpoint_steps(checkpoints))
    initializes = initializes and not goes_on
    if initializes:
        _require_files(config)
    with without_log(), tf.device("CPU"):
        _build(config, categories, checkpoints=checkpoints if goes_on else None, initializes=initializes)


def _require_files(config: Config) -> None:
    """Sees that the files of the initial weights are there."""
    model, init = config.model, config.train.init
    if init.checkpoint is not None:
        locate_weights(init.checkpoint)
    if model.backbone_weights is not None:
        preset = detector_config(model.name, image_size=model.image_size, overrides=model.overrides)
        find_weights_file(getattr(preset, "backbone", model.name), model.backbone_weights)


def _build(
    config: Config,
    categories: Sequence[Mapping[str, Any]] | None,
    *,
    checkpoints: Path | None,
    initializes: bool,
) -> None:
    strategy = tf.distribute.get_strategy()
    in_order = sorted(_UNKNOWN if categories is None else categories, key=lambda category: category["id"])
    state = state_from_config(config, num_classes=len(in_order), strategy=strategy)
    l2_from_config(config.train, state)
    if categories is not None:
        input_options_from_config(config, state.model, in_order)
    if checkpoints is not None and categories is not None:
        Checkpoints(state, checkpoints, keep=1, writes=False).restore_latest()
    if initializes:
        known = config if categories is not None else _whatever_the_categories(config)
        initialize_from_config(known, state, in_order, strategy=strategy, start_step=0, base_model=None)


def _whatever_the_categories(config: Config) -> Config:
    """The configuration without the demand that the categories are those of the source."""
    init = config.train.init
    if init.fine_tune_type != "full":
        return config
    changed = init.model_copy(update={"fine_tune_type": "detection"})
    return config.model_copy(update={"train": config.train.model_copy(update={"init": changed})})


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Keeps the trainer's messages back: what training says of its start, it says when it starts."""
    logger = logging.getLogger("cocoflow.trainer")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
