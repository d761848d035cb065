"""Checks of a training run before any data is read."""

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.models.detector import Detector, variable_bytes
from detection.models.registry import detector_config
from detection.pretrained.choice import initial_weights
from detection.pretrained.imagenet import find_weights_file
from detection.storage.outputs import require_room
from detection.storage.paths import require_supported
from detection.training.auto.weights_choice import with_weights
from detection.training.build_balance import named_class_weights
from detection.training.build_input import input_options_from_config, replica_batch_size
from detection.training.build_step import initialize_from_config, l2_from_config, state_from_config
from detection.training.checkpoints.files import checkpoint_steps
from detection.training.checkpoints.manager import Checkpoints
from detection.training.engine.state import TrainState
from detection.training.memory import require_measurable, require_memory, saved_variables
from detection.training.resolve import assumed
from detection.weights.locate import locate_weights
from schemas.config.config import Config
from schemas.config.train.training import TrainConfig
from schemas.errors import ConfigError

_UNKNOWN_CATEGORIES = ({"id": 0, "name": "", "keypoints": ("",)},)  # in place of categories that are not known yet


def check_start(
    config: Config,
    *,
    categories: Sequence[Mapping[str, Any]] | None,
    strategy: tf.distribute.Strategy | None = None,
    checkpoints: Path | None = None,
    output: str | Path | None = None,
    initializes: bool = True,
    device: str | None = "CPU",
) -> Detector:
    """Builds the initial state of a training run, as `train` does, without data.

    The cheapest checks come first.

    Args:
        config: configuration of the run; uses the sections `model` and `train`.
        categories: the data set's COCO categories; None: not known yet, skip checks that need them.
        strategy: strategy to train under; None: not known yet.
        checkpoints: folder of the checkpoints that the run may resume from; None: not known yet.
        output: folder of the checkpoints and the model, whose disk needs room for them; None: not known yet.
        initializes: the run needs its initial weights, unless it has a checkpoint.
        device: TensorFlow device to build on; None: the default one.

    Returns:
        The detector; `train` can use it for validation and export if the categories are known.

    Raises:
        CocoflowError: the errors that `train` would raise later.
    """
    if strategy is not None and config.train.batch_size == "auto":
        require_measurable(config.train, strategy)
    config = assumed(config, replicas=1 if strategy is None else strategy.num_replicas_in_sync)
    if strategy is not None:
        replica_batch_size(config.train, strategy)
    resumes = checkpoints is not None and bool(checkpoint_steps(checkpoints))
    initializes = initializes and not resumes
    if initializes:
        _require_weight_files(config)
    with without_log(), tf.device(device):
        if checkpoints is not None and resumes:
            # The machines of a training have not met yet, and the saved choice needs no other machine.
            config = with_weights(
                config, output=checkpoints.parent, base_model=None, strategy=tf.distribute.get_strategy()
            )
        return _build(
            config,
            categories,
            strategy=strategy,
            checkpoints=checkpoints if resumes else None,
            output=output,
            initializes=initializes,
        )


def require_iou_types(key: str, iou_types: Iterable[str], model: Detector) -> None:
    """Requires that the detector supports IoU types.

    Args:
        key: configuration key of the IoU types, for the message.
        iou_types: `bbox`, `segm`, `keypoints`.
        model: detector to evaluate.

    Raises:
        ConfigError: the detector has no masks, or no keypoints.
    """
    for iou_type in iou_types:
        if iou_type not in model.iou_types:
            kind, other = ("masks", "Mask R-CNN") if iou_type == "segm" else (iou_type, "CenterNet with keypoints")
            raise ConfigError(f"{key} requests {iou_type}: {model.name} has no {kind}. Remove it, or choose a {other}.")


def _require_weight_files(config: Config) -> None:
    """Checks that the files of the pretrained weights exist."""
    model_config, source = config.model, initial_weights(config)
    if source.checkpoint is not None:
        require_supported(source.checkpoint, "train.init.checkpoint")
        locate_weights(source.checkpoint)
    if source.backbone_weights is not None:
        preset = detector_config(
            model_config.name,
            image_size=model_config.image_size,
            resize=model_config.resize,
            overrides=model_config.overrides,
        )
        backbone = preset.backbone.name
        find_weights_file(backbone, source.backbone_weights, fetches=model_config.fetch_weights)


def _build(
    config: Config,
    categories: Sequence[Mapping[str, Any]] | None,
    *,
    strategy: tf.distribute.Strategy | None,
    checkpoints: Path | None,
    output: str | Path | None,
    initializes: bool,
) -> Detector:
    default = tf.distribute.get_strategy()
    in_order = sorted(_UNKNOWN_CATEGORIES if categories is None else categories, key=lambda category: category["id"])
    state = state_from_config(config, in_order, strategy=default)
    if strategy is not None:
        require_memory(config, state, strategy)
    if output is not None:
        _require_disk(config.train, state, output, resumes=checkpoints is not None)
    l2_from_config(config.train, state.trainable)
    if config.train.validation.enabled:
        metric_type = config.train.validation.metric.rpartition("/")[0]
        require_iou_types("train.validation.metric", [metric_type] if metric_type else [], state.model)
        require_iou_types("evaluate.iou_types", config.evaluate.iou_types or (), state.model)
    if categories is not None:
        named_class_weights(config.train, in_order)
        input_options_from_config(config, state.model, in_order)
    if checkpoints is not None and categories is not None:
        Checkpoints(state, checkpoints, keep=1, writes=False).restore_latest()
    if initializes:
        checked = config if categories is not None else _for_any_categories(config)
        initialize_from_config(checked, state, in_order, strategy=default, start_step=0, base_model=None)
    return state.model


def _require_disk(train_config: TrainConfig, state: TrainState, output: str | Path, *, resumes: bool) -> None:
    """Requires room for the checkpoints that a run keeps, the one that it writes, and the SavedModel.

    A resumed run has most of its checkpoints already, and needs room for one more.
    """
    saves = math.ceil(train_config.fixed_steps / train_config.checkpoint_every)
    count = 1 if resumes else min(train_config.keep_checkpoints + 1, saves) + bool(train_config.decay_start)
    size = variable_bytes(state.model.variables) + count * variable_bytes(saved_variables(state))
    advice = "Free space, lower train.keep_checkpoints, or choose a folder on another disk."
    require_room(output, size, advice=advice)


def _for_any_categories(config: Config) -> Config:
    """Returns the configuration without the requirement that the source has the same categories."""
    init_config = config.train.init
    if init_config.fine_tune_type != "full":
        return config
    changed = init_config.model_copy(update={"fine_tune_type": "detection"})
    return config.model_copy(update={"train": config.train.model_copy(update={"init": changed})})


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Suppresses the trainer's messages, which training logs again."""
    logger = logging.getLogger("cocoflow.trainer")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
