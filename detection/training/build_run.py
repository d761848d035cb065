"""Builds what surrounds the training step from the config: input, callbacks, validation, the exported model."""

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.coco.params import make_params
from detection.inference.export import ExportedFrom, export_saved_model
from detection.inference.mean_losses import MeanLosses
from detection.input_pipeline.augmentation.autoaugment import POLICIES, autoaugment, randaugment
from detection.input_pipeline.augmentation.colors import random_color_jitter
from detection.input_pipeline.augmentation.combining import mixup, mosaic
from detection.input_pipeline.augmentation.crops import ssd_random_crop
from detection.input_pipeline.augmentation.erasing import random_grid_mask
from detection.input_pipeline.augmentation.flip import keypoint_flips
from detection.input_pipeline.record_decoder import num_keypoints
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import Augmentation, InputOptions, training_batches
from detection.models.detector import Detector
from detection.models.registry import detector_from_config
from detection.storage.atomic import new_directory
from detection.training.build_balance import ClassBalance
from detection.training.checkpoints.files import checkpoint_path, step_of
from detection.training.checkpoints.manager import load_weights
from detection.training.monitoring.callbacks import Callbacks, ProfilerWindow, TrainingPictures
from detection.training.monitoring.nonfinite import NonFiniteSteps
from detection.training.monitoring.progress import LOGGER, Window
from detection.training.monitoring.step_batches import StepBatches
from detection.training.validation.checkpoint_evaluator import CheckpointEvaluator, DetectorEvaluator
from detection.training.validation.history import BestCheckpoint
from detection.training.validation.split import ValidationSplit
from detection.training.validation.validation import Validation
from schemas.artifacts import BEST, CHECKPOINTS, LOGS, VALIDATION
from schemas.config.augmentation import AugmentConfig, ColorConfig, SsdCropConfig
from schemas.config.config import Config
from schemas.config.input_size import height_and_width
from schemas.config.training import TrainConfig
from schemas.errors import ConfigError


class _Seed(IntEnum):
    """Seed numbers of the augmentations; a number keeps its meaning, so that resumed runs draw the same."""

    MOSAIC = 1
    MIXUP = 2
    GRID_MASK = 3
    AUTOAUGMENT = 4
    RANDAUGMENT = 5
    COLOR = 6
    SSD_CROP = 7


def input_options_from_config(
    config: Config,
    model: Detector,
    categories: Sequence[Mapping[str, Any]],
    *,
    class_weights: npt.NDArray[np.float32] | None = None,
) -> InputOptions:
    """Builds the options that turn records into training examples for `model`.

    Args:
        config: its sections `model` and `train`.
        model: tells the input size, and whether masks, keypoints and crowds are needed.
        categories: COCO categories, in the order of the network's classes.
        class_weights: see `InputOptions`.

    Raises:
        ConfigError: the detector needs keypoints that the categories do not have, or that
            cannot be mirrored; or crowds are to be ignored, or classes weighted, which it cannot do.
    """
    train_config = config.train
    keypoints = num_keypoints(categories) if model.takes_keypoints else 0
    if model.takes_keypoints and not keypoints:
        raise ConfigError(
            f"model.name = {config.model.name}: it learns keypoints, but no category has any. "
            "Train on a data set whose categories name their keypoints, or choose another detector."
        )
    if train_config.crowds == "ignore" and not model.takes_crowds:
        raise ConfigError(
            f"train.crowds = ignore: {config.model.name} cannot leave crowds out of its losses. Set it to drop."
        )
    if train_config.class_weights is not None and not model.takes_weights:
        raise ConfigError(
            f"train.class_weights: {config.model.name} cannot weight its losses. Remove it, or balance the classes by "
            "train.sampling.name=repeat_factor."
        )
    augment_config = train_config.augment
    return InputOptions(
        image_size=model.image_size,
        mean=model.pixel_mean,
        std=model.pixel_std,
        category_ids=[category["id"] for category in categories],
        max_instances=config.model.max_instances,
        horizontal_flip=augment_config.horizontal_flip,
        scale_min=augment_config.scale_min,
        scale_max=augment_config.scale_max,
        augmentations=_augmentations(augment_config),
        mask_size=model.mask_size,
        num_keypoints=keypoints,
        keypoint_flips=keypoint_flips(categories) if keypoints and augment_config.horizontal_flip else None,
        with_crowds=train_config.crowds == "ignore",
        resizing=model.resizing,
        class_weights=class_weights,
    )


def _augmentations(augment_config: AugmentConfig) -> list[Augmentation]:
    """Builds the augmentations that are on, in their order."""
    mosaic_config, grid_config = augment_config.mosaic, augment_config.grid_mask
    policy = augment_config.autoaugment
    steps = [
        Augmentation(
            _Seed.MOSAIC,
            partial(mosaic, image_size=height_and_width(mosaic_config.image_size), min_share=mosaic_config.min_share),
            probability=mosaic_config.probability,
            partners=3,
        ),
        Augmentation(
            _Seed.MIXUP,
            partial(mixup, alpha=augment_config.mixup.alpha),
            probability=augment_config.mixup.probability,
            partners=1,
        ),
        Augmentation(
            _Seed.GRID_MASK,
            partial(random_grid_mask, ratio=grid_config.ratio, rotation=grid_config.rotation),
            probability=grid_config.probability,
        ),
        Augmentation(
            _Seed.AUTOAUGMENT,
            partial(autoaugment, policy=POLICIES[policy] if policy else ()),
            probability=float(policy is not None),
        ),
        Augmentation(
            _Seed.RANDAUGMENT,
            partial(randaugment, **augment_config.randaugment.model_dump()),
            probability=float(augment_config.randaugment.layers > 0),
        ),
        _from_section(_Seed.COLOR, random_color_jitter, augment_config.color),
        _from_section(_Seed.SSD_CROP, ssd_random_crop, augment_config.ssd_crop),
    ]
    return [step for step in steps if step.probability > 0.0]


def _from_section(seed: _Seed, function: Callable[..., Any], section: ColorConfig | SsdCropConfig) -> Augmentation:
    """Builds an augmentation whose function's arguments are the section's keys."""
    arguments = section.model_dump(exclude={"probability"})
    return Augmentation(seed, partial(function, **arguments), probability=section.probability)


def batches_from_config(
    config: Config,
    model: Detector,
    reader: RecordReader,
    categories: Sequence[Mapping[str, Any]],
    balance: ClassBalance,
    *,
    strategy: tf.distribute.Strategy,
    start_step: int,
) -> tf.data.Iterator:
    """Builds the training batches from `start_step` on, distributed over the strategy's replicas.

    Raises:
        ConfigError: see `replica_batch_size` and `input_options_from_config`.
    """
    train_config = config.train
    options = input_options_from_config(config, model, categories, class_weights=balance.class_weights)

    def batches_of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return training_batches(
            reader,
            options,
            seed=train_config.seed,
            start_step=start_step,
            # If data could end, the machines would ask each other before every step whether there is more.
            stop_step=None,
            batch_size=train_config.effective_batch_size // context.num_input_pipelines,
            replica_batch_size=replica_batch_size(train_config, strategy),
            micro_batches=train_config.accumulate_steps,
            repeat_factors=balance.repeat_factors,
            pipeline=context.input_pipeline_id,
            num_pipelines=context.num_input_pipelines,
        )

    return iter(strategy.distribute_datasets_from_function(batches_of_worker))


def replica_batch_size(train_config: TrainConfig, strategy: tf.distribute.Strategy) -> int:
    """Returns the number of images per update and replica.

    Raises:
        ConfigError: the global batch does not divide among the replicas.
    """
    replicas = strategy.num_replicas_in_sync
    if train_config.fixed_batch_size % replicas:
        raise ConfigError(
            f"train.batch_size = {train_config.batch_size} does not divide among {replicas} replicas. "
            "It is the global batch: make it a multiple."
        )
    return train_config.effective_batch_size // replicas


def callbacks_from_config(
    config: Config,
    model: Detector,
    reader: RecordReader,
    categories: Sequence[Mapping[str, Any]],
    balance: ClassBalance,
    *,
    output: Path,
    stack: contextlib.ExitStack,
    writes: bool,
) -> Callbacks:
    """Builds the training callbacks; `stack` closes them.

    Args:
        config: its sections `model` and `train`.
        model: the detector that trains.
        reader: reader of the training records.
        categories: COCO categories, in the order of the network's classes.
        balance: repeat factors and class weights.
        output: output folder of the run.
        stack: the run's contexts.
        writes: this process writes pictures and profiles.
    """
    train_config, summaries = config.train, config.train.summaries
    options = input_options_from_config(config, model, categories, class_weights=balance.class_weights)
    batches = StepBatches(
        reader,
        options,
        seed=train_config.seed,
        batch_size=train_config.effective_batch_size,
        repeat_factors=balance.repeat_factors,
    )
    names = [str(category["name"]) for category in categories]
    pictures, profiler = None, None
    if writes and summaries.images_every:
        pictures = TrainingPictures(batches, names, every=summaries.images_every, count=summaries.images)
    if writes and train_config.profile.edges:
        start, stop = train_config.profile.edges
        profiler = stack.enter_context(ProfilerWindow(start_step=start, stop_step=stop, logs=output / LOGS))
    return Callbacks(
        total_steps=train_config.steps,
        log_every=train_config.log_every,
        histograms_every=summaries.gradient_histograms_every,
        window=Window(batch_size=train_config.effective_batch_size),
        nonfinite=NonFiniteSteps(batches, names, output, writes=writes),
        pictures=pictures,
        profiler=profiler,
    )


def validation_from_config(
    config: Config,
    *,
    shards: Sequence[str],
    categories: Sequence[Mapping[str, Any]],
    detector: Callable[[], Detector],
    output: Path,
    chief: bool,
    agree: Callable[[bool], bool],
) -> Validation:
    """Builds the evaluation inside a training run, which does nothing if `train.validation` is off.

    Args:
        config: `train.validation`, and of `evaluate` the batch size, `losses` and what `analysis` says of pictures.
        shards: TFRecord files of the split to evaluate on.
        categories: COCO categories, in the order of the detector's classes.
        detector: returns a detector for the checkpoints' weights; see `inference_detector`.
        output: output folder of the run.
        chief: this process evaluates; others follow its decisions.
        agree: tells all processes the chief's decision.

    Raises:
        ConfigError: there are no records to evaluate on.
        DataError: the metric cannot be measured on the split, or a record cannot be evaluated.
    """
    validation_config = config.train.validation
    if validation_config.enabled and not shards:
        raise ConfigError(
            f"train.validation: no records of the split {config.evaluate.split!r} to evaluate on. "
            "Give the data set this split, or remove train.validation."
        )
    evaluator = None
    if validation_config.enabled and chief:
        folder, logs = output / VALIDATION, output / LOGS / VALIDATION
        evaluator = checkpoint_evaluator_from_config(
            config, shards=shards, categories=categories, detector=detector, folder=folder, logs=logs
        )
    return Validation(
        evaluator,
        checkpoints=output / CHECKPOINTS,
        every=validation_config.every,
        last_step=config.train.steps,
        metric=validation_config.metric,
        patience=validation_config.patience,
        min_delta=validation_config.min_delta,
        agree=agree,
    )


def checkpoint_evaluator_from_config(
    config: Config,
    *,
    shards: Sequence[str],
    categories: Sequence[Mapping[str, Any]],
    detector: Callable[[], Detector],
    folder: Path,
    logs: Path,
) -> CheckpointEvaluator:
    """Builds the evaluator of a run's checkpoints.

    Args:
        config: the run's configuration.
        shards: TFRecord files of the split to evaluate on.
        categories: the run's COCO categories, in the order of the detector's classes.
        detector: see `validation_from_config`.
        folder: see `CheckpointEvaluator`.
        logs: see `CheckpointEvaluator`.

    Raises:
        DataError: see `validation_from_config`.
    """
    validation_config, batch_size = config.train.validation, config.evaluate.batch_size
    max_images = validation_config.max_images
    split = ValidationSplit(
        shards,
        categories=categories,
        batch_size=batch_size,
        max_images=max_images,
        params=make_params(validation_config.iou_type),
    )
    split.require_defined(validation_config.metric)
    losses = None
    if config.evaluate.losses:
        max_instances = config.model.max_instances
        losses = MeanLosses(detector(), categories, batch_size=batch_size, max_instances=max_instances)
    evaluate = DetectorEvaluator(
        detector(),
        split,
        categories=categories,
        batch_size=batch_size,
        weights=config.train.ema.exported_weights,
        losses=losses,
        options=config.evaluate.analysis,
    )
    return CheckpointEvaluator(evaluate, folder=folder, logs=logs, metric=validation_config.metric)


def inference_detector(config: Config, num_classes: int) -> Detector:
    """Builds a detector, outside of any strategy, that a checkpoint's weights are loaded into."""
    return detector_from_config(config.model, num_classes=num_classes, precision=config.train.precision)


def export_checkpoint(
    config: Config,
    *,
    config_yaml: str,
    step: int,
    categories: Sequence[Mapping[str, Any]],
    detector: Detector,
    output: Path,
    destination: Path,
) -> None:
    """Writes the SavedModel of the run's best checkpoint or of its last, depending on `train.validation.export`.

    Args:
        config: the run's configuration.
        config_yaml: the same as YAML, which is saved with the model.
        step: step of the run's last checkpoint.
        categories: COCO categories, in the order of the detector's classes.
        detector: see `inference_detector`; its weights are replaced.
        output: output folder of the run.
        destination: folder of the SavedModel; is replaced.

    Raises:
        DataError: the checkpoint is missing, or cannot be read.
    """
    best = BestCheckpoint(output / VALIDATION / BEST)
    path = best.path if config.train.validation.exports_best else checkpoint_path(output / CHECKPOINTS, step)
    weights = config.train.ema.exported_weights
    LOGGER.info("exporting the %s weights of %s", "EMA" if weights == "ema" else "raw", path)
    load_weights(detector, path, weights=weights)
    shutil.rmtree(destination, ignore_errors=True)
    with new_directory(destination) as folder:
        exported_from = ExportedFrom(step_of(path), weights)
        export_saved_model(
            detector, folder, categories=categories, config_yaml=config_yaml, exported_from=exported_from
        )
