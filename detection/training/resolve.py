"""Resolves the numbers of a configuration that depend on the detector, the records and the memory.

The resolved configuration, which training uses and saves, has numbers for `train.batch_size`, the peak learning
rate and the momentum of batch norm, and steps instead of epochs.
"""

import logging
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from detection.datasets.statistics import SplitSummary
from detection.models.registry import detector_config
from detection.storage.files import is_file, read_text
from detection.training.auto.input_size import with_image_size
from detection.training.checkpoints.files import checkpoint_steps
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, TRAIN_SPLIT
from schemas.config.config import Config
from schemas.config.config_io import from_yaml, parse_config
from schemas.config.input_size import AUTO_SIZE
from schemas.config.section import merged, value_at
from schemas.config.train.schedule import ADAM_LEARNING_RATE, AUTO_HOLD_END
from schemas.config.train.training import (
    AUTO_EPOCHS,
    AUTO_MIN_STEPS,
    AUTO_MINUTES,
    JITTER_EPOCHS,
    MAX_JITTER,
    MINUTE_PIXELS,
    STEP_PIXELS,
    STEPS_OF_EPOCHS,
)
from schemas.errors import DataError

_LOGGER = logging.getLogger("cocoflow.trainer")
_ANY_RECORDS = 10**9  # in place of an unknown number of records
_MOMENTUM = "batch_norm.momentum"
_EVALUATIONS = 4  # evaluations per run with `train.validation.every: auto`


def steps_of_epochs(epochs: float, *, records: int, batch_size: int) -> int:
    """Returns the first step after which `epochs` epochs of images were seen.

    Batches continue across epochs: no epoch has a smaller last batch, and no images are
    dropped.  google/automl rounds the steps per epoch down instead.

    Args:
        epochs: number of epochs, such as 0.5; interpreted as an exact decimal.
        records: images per epoch.
        batch_size: images per step.

    >>> steps_of_epochs(3, records=10, batch_size=4)
    8
    >>> steps_of_epochs(1.1, records=100, batch_size=10)
    11
    """
    return math.ceil(Fraction(str(epochs)) * records / batch_size)


def steps_of_budget(minutes: float, config: Config) -> int:
    """Returns the steps of a training of so many processor minutes.

    Args:
        minutes: `train.budget`.
        config: configuration with numbers for `model.image_size` and `train.batch_size`.

    Raises:
        ConfigError: unknown detector or override.
    """
    model = config.model
    preset: Any = detector_config(
        model.name, image_size=model.image_size, resize=model.resize, overrides=model.overrides
    )
    pixels = math.prod(preset.image_size) * config.train.effective_batch_size + STEP_PIXELS
    return math.ceil(minutes * MINUTE_PIXELS / pixels)


def with_steps(config: Config, *, records: int) -> Config:
    """Returns the configuration with steps instead of epochs.

    Args:
        config: configuration with a number for `train.batch_size`.
        records: number of training images per epoch.

    Raises:
        ConfigError: the lengths contradict each other, such as a warm-up as long as the run.
    """
    tree = config.model_dump(mode="json")
    batch_size = config.train.effective_batch_size

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(item) for item in value]
        return steps_of_epochs(value, records=records, batch_size=batch_size)

    changed = False
    for epochs_key, steps_key in STEPS_OF_EPOCHS.items():
        section, name = _place(tree, epochs_key)
        value = section[name]
        if value is None or value == []:
            continue
        target, target_name = _place(tree, steps_key)
        target[target_name] = convert(value)
        section[name] = [] if isinstance(value, list) else None
        changed = True
    if tree["train"]["steps"] == "auto":
        budget = config.train.budget
        at_least = 1 if budget else max(AUTO_MIN_STEPS, convert(float(AUTO_EPOCHS)))
        steps = max(steps_of_budget(budget or AUTO_MINUTES, config), at_least)
        tree["train"] |= {"steps": steps, "budget": None}
        changed = True
    augment = tree["train"]["augment"]
    scales = scale_jitter(tree["train"]["steps"] * batch_size / records)
    for key, scale in zip(("scale_min", "scale_max"), scales, strict=True):
        if augment[key] == "auto":
            augment[key] = scale
            changed = True
    if tree["train"]["validation"]["every"] == "auto":
        tree["train"]["validation"]["every"] = -(-tree["train"]["steps"] // _EVALUATIONS)
        changed = True
    return parse_config(tree, where=f"with {records} images per epoch and {batch_size} per step") if changed else config


def scale_jitter(epochs: float) -> tuple[float, float]:
    """Returns the min and max of scale jitter for a training of so many epochs.

    A few views of each image are learned best as they are; many would be learned by heart.

    >>> scale_jitter(33), scale_jitter(1000)
    ((0.901, 1.11), (0.667, 1.5))
    """
    largest = 1.0 + min(epochs / JITTER_EPOCHS, MAX_JITTER)
    return round(1.0 / largest, 3), round(largest, 3)


def batch_norm_momentum(steps: int) -> float:
    """Returns a momentum with which the moving statistics of batch norm converge in a run of `steps` steps.

    With 0.99, statistics of the first of 300 steps still affect the exported model: EfficientDet-Lite0
    reaches AP 0.198 on 160 photographs with 0.99, and 0.488 with 0.9.

    >>> [batch_norm_momentum(steps) for steps in (100, 300, 1200, 20_000)]
    [0.9, 0.9, 0.975, 0.99]
    """
    return min(max(1 - 30 / steps, 0.9), 0.99)


def with_recipe(config: Config, *, before: Config | None = None) -> Config:
    """Returns the configuration with the numbers that depend on the detector and the steps of the run.

    Args:
        config: configuration with a number for `train.steps`.
        before: resolved configuration of the run that goes on, which keeps its warm-up and its momentum of batch norm,
            even with another number of steps; None: the run begins.

    Raises:
        ConfigError: unknown detector or override.
    """
    preset: Any = detector_config(config.model.name, overrides=config.model.overrides)
    tree = config.model_dump(mode="json")
    schedule = tree["train"]["schedule"]
    if schedule["warmup_steps"] is None:
        schedule["warmup_steps"] = (before or config).train.warmup_steps
    if schedule["hold_steps"] == "auto" and config.train.schedule.holds:
        schedule["hold_steps"] = max(int(AUTO_HOLD_END * config.train.schedule_steps) - schedule["warmup_steps"], 0)
    if schedule["learning_rate"] is None:
        schedule["learning_rate"] = getattr(preset, "learning_rate", ADAM_LEARNING_RATE)
    if preset.batch_norm.momentum is None:
        kept = None if before is None else value_at(before.model.overrides, _MOMENTUM)
        momentum = batch_norm_momentum(config.train.fixed_steps) if kept is None else kept
        tree["model"]["overrides"] = merged(config.model.overrides, {"batch_norm": {"momentum": momentum}})
    return parse_config(tree)


def _place(tree: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Returns the section of a key of `train`, and the key's name in it."""
    *parents, name = key.split(".")
    section = tree["train"]
    for parent in parents:
        section = section[parent]
    return section, name


def with_batch_size(config: Config, batch_size: int) -> Config:
    """Returns the configuration with a number for `train.batch_size`."""
    tree = config.model_dump(mode="json")
    tree["train"] |= {"batch_size": batch_size, "memory_limit": None}
    return parse_config(tree)


def fixed_image_size(config: Config, splits: Mapping[str, SplitSummary], *, output: Path) -> Config:
    """Returns the configuration with a size in place of `model.image_size: auto`; a resumed run keeps its size.

    Args:
        config: the run's configuration.
        splits: summaries of the data by split name; without `train`, the detector's own size remains.
        output: output folder of the run.

    Raises:
        ConfigError: unknown detector, or invalid overrides.
    """
    if config.model.image_size != AUTO_SIZE:
        return config
    before = config_to_resume(output)
    if before is None:
        return with_image_size(config, splits.get(TRAIN_SPLIT, SplitSummary()))
    size = before.model.image_size
    _LOGGER.info("model.image_size = auto: %s, as at the start of this run", size or "that of the detector")
    return config.model_copy(update={"model": config.model.model_copy(update={"image_size": size})})


def resolved(config: Config, *, records: int, output: Path, find_batch_size: Callable[[], int]) -> Config:
    """Returns the configuration with all numbers; a resumed run keeps its batch size.

    Args:
        config: the run's configuration.
        records: number of training images per epoch.
        output: output folder of the run.
        find_batch_size: measures the batch size for `auto`.

    Raises:
        ConfigError: the lengths contradict each other, or no batch size can be measured.
        DataError: `train.batch_size` is `auto`, and the saved configuration of the resumed run is missing.
    """
    before = config_to_resume(output)
    if config.train.batch_size == "auto":
        _require_described(before, output)
        if before is None:
            config = with_batch_size(config, find_batch_size())
        else:
            config = with_batch_size(config, before.train.fixed_batch_size)
            _LOGGER.info("train.batch_size = auto: %d, as at the start of this run", before.train.fixed_batch_size)
    now = with_recipe(with_steps(config, records=records), before=before)
    _log_steps(config, now, records)
    if _has_open_length(config) and before is not None and now.train.steps != before.train.steps:
        _LOGGER.warning(
            "the run now has %s steps instead of %s, because its budget, epochs, records or batch size have changed",
            f"{now.train.fixed_steps:,}",
            f"{before.train.fixed_steps:,}",
        )
    return now


def _has_open_length(config: Config) -> bool:
    return config.train.epochs is not None or config.train.steps == "auto"


def _log_steps(config: Config, now: Config, records: int) -> None:
    if config.train.steps == "auto" and config.train.epochs is None:
        _LOGGER.info("train.steps = auto: %d, with %s images per epoch", now.train.fixed_steps, f"{records:,}")
    if "auto" in (config.train.augment.scale_min, config.train.augment.scale_max):
        epochs = now.train.fixed_steps * now.train.effective_batch_size / records
        _LOGGER.info(
            "train.augment.scale_max = auto: images are scaled by %s to %s, as there are %.0f epochs",
            *now.train.augment.scales,
            epochs,
        )
    before, after = (tree.model_dump(mode="json") for tree in (config, now))
    for epochs_key, steps_key in STEPS_OF_EPOCHS.items():
        (section, name), (target, target_name) = _place(before, epochs_key), _place(after, steps_key)
        if section[name] is None or section[name] == []:
            continue
        _LOGGER.info(
            "train.%s = %s: train.%s = %s, with %s images per epoch and %d per step",
            epochs_key,
            section[name],
            steps_key,
            target[target_name],
            f"{records:,}",
            now.train.effective_batch_size,
        )


def config_to_resume(output: Path) -> Config | None:
    """Reads the resolved configuration of the run that an output folder has checkpoints of; None: there is none."""
    return saved_config(output) if checkpoint_steps(output / CHECKPOINTS) else None


def saved_config(output: Path) -> Config | None:
    """Reads the resolved configuration from a run's output folder; None: no saved configuration."""
    path = output / CONFIG_YAML
    return from_yaml(read_text(path), where=str(path)) if is_file(path) else None


def _require_described(before: Config | None, output: Path) -> None:
    if before is None and checkpoint_steps(output / CHECKPOINTS):
        raise DataError(
            f"{output / CONFIG_YAML}: missing, so the batch size of this run is unknown. Set train.batch_size to it "
            "instead of auto, or train into an empty folder."
        )


def assumed(config: Config, *, replicas: int) -> Config:
    """Returns the configuration with placeholders for the numbers that require records and trial steps.

    A training state can be built from it, to check everything else.
    """
    if config.train.batch_size == "auto":
        config = with_batch_size(config, replicas)
    return with_recipe(with_steps(config, records=_ANY_RECORDS))
