"""Builds the training input from the config: augmentations, options and batches."""

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.input_pipeline.augmentation.autoaugment import POLICIES, autoaugment, randaugment
from detection.input_pipeline.augmentation.combining import mixup, mosaic
from detection.input_pipeline.augmentation.erasing import random_grid_mask
from detection.input_pipeline.augmentation.flip import keypoint_flips, mirrors
from detection.input_pipeline.record_decoder import num_keypoints
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import Augmentation, InputOptions, training_batches
from detection.models.detector import Detector
from detection.training.build_augmentation_steps import augmentation_steps
from schemas.config.config import Config
from schemas.config.input_size import height_and_width
from schemas.config.train.augmentation import AugmentConfig
from schemas.config.train.training import TrainConfig
from schemas.errors import ConfigError


class _Seed(IntEnum):
    """Seeds of the sections; the numbers never change, so that resumed runs draw the same values."""

    MOSAIC = 1
    MIXUP = 2
    GRID_MASK = 3
    AUTOAUGMENT = 4
    RANDAUGMENT = 5


def input_options_from_config(
    config: Config,
    model: Detector,
    categories: Sequence[Mapping[str, Any]],
    *,
    class_weights: npt.NDArray[np.float32] | None = None,
) -> InputOptions:
    """Builds the options that turn records into training examples for `model`.

    Args:
        config: configuration of the run; uses the sections `model` and `train`.
        model: detector to train; determines the input size and the use of masks, keypoints and crowds.
        categories: COCO categories, in the order of the network's classes.
        class_weights: float32 [C], loss weights of the objects of each class; None: no weights.

    Raises:
        ConfigError: keypoints cannot be mirrored; or the detector does not support ignored crowds or weights.
    """
    train_config = config.train
    keypoints = num_keypoints(categories) if model.capabilities.keypoints else 0
    if train_config.crowds == "ignore" and not model.capabilities.crowds:
        raise ConfigError(
            f"train.crowds = ignore: {config.model.name} does not support ignored crowds. Set train.crowds=drop."
        )
    if train_config.object_weights and not model.capabilities.weights:
        raise ConfigError(
            f"train.object_weights: {config.model.name} does not support weighted losses. Remove the key."
        )
    if train_config.class_weights is not None and not model.capabilities.weights:
        raise ConfigError(
            f"train.class_weights: {config.model.name} does not support weighted losses. Remove the key, or balance "
            "the classes with train.sampling.name=repeat_factor."
        )
    augment_config = train_config.augment
    mirrored = mirrors(augment_config.horizontal_flip, categories)
    return InputOptions(
        image_size=model.image_size,
        mean=model.pixel_mean,
        std=model.pixel_std,
        category_ids=[category["id"] for category in categories],
        max_instances=config.model.max_instances,
        horizontal_flip=mirrored,
        scale_min=augment_config.scales[0],
        scale_max=augment_config.scales[1],
        augmentations=_phased(
            _augmentations(augment_config)
            + augmentation_steps(augment_config.steps, categories, with_keypoints=keypoints > 0),
            train_config,
        ),
        mask_size=model.capabilities.mask_size,
        num_keypoints=keypoints,
        keypoint_flips=keypoint_flips(categories) if keypoints and mirrored else None,
        with_crowds=train_config.crowds == "ignore",
        resizing=model.resizing,
        class_weights=class_weights,
        with_weights=train_config.object_weights,
        jitter_stop=_image_at(augment_config.end, train_config),
    )


def _image_at(part: float, train_config: TrainConfig) -> int | None:
    """Returns the first image after a part of the run's steps; None: it has none, or the length is not known yet."""
    steps = train_config.steps
    if part >= 1.0 or steps == "auto" or train_config.batch_size == "auto":
        return None
    return math.ceil(part * steps) * train_config.effective_batch_size


def _phased(augmentations: Sequence[Augmentation], train_config: TrainConfig) -> list[Augmentation]:
    """Sets the images of the run that the augmentations change."""
    augment_config = train_config.augment
    sections = {_Seed.MOSAIC: augment_config.mosaic, _Seed.MIXUP: augment_config.mixup}
    phases = {int(number): (section.start, section.end) for number, section in sections.items() if section.probability}
    phased = []
    for one in augmentations:
        start, end = phases.get(one.number, (0.0, 1.0))
        stop = _image_at(min(end, augment_config.end), train_config)
        phased.append(one._replace(start=_image_at(start, train_config) or 0, stop=stop))
    return phased


def _augmentations(augment_config: AugmentConfig) -> list[Augmentation]:
    """Builds the enabled augmentations, in order."""
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
    ]
    return [step for step in steps if step.probability > 0.0]


def batches_from_config(
    train_config: TrainConfig,
    reader: RecordReader,
    options: InputOptions,
    *,
    repeat_factors: npt.NDArray[np.float64] | None,
    strategy: tf.distribute.Strategy,
    start_step: int,
) -> tf.data.Iterator:
    """Builds the training batches from `start_step` on, distributed over the strategy's replicas.

    Args:
        train_config: the run's configuration.
        reader: reader of the training records.
        options: result of `input_options_from_config`.
        repeat_factors: float64 [N], expected repeats of each record per epoch; None: each record once.
        strategy: the run's strategy.
        start_step: number of completed steps.

    Raises:
        ConfigError: the global batch does not divide evenly among the replicas.
    """

    def batches_of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return training_batches(
            reader,
            options,
            seed=train_config.seed,
            start_step=start_step,
            # With finite data, the machines would synchronize before every step to check for the end.
            stop_step=None,
            batch_size=train_config.effective_batch_size // context.num_input_pipelines,
            replica_batch_size=replica_batch_size(train_config, strategy),
            micro_batches=train_config.accumulate_steps,
            repeat_factors=repeat_factors,
            pipeline=context.input_pipeline_id,
            num_pipelines=context.num_input_pipelines,
        )

    return iter(strategy.distribute_datasets_from_function(batches_of_worker))


def replica_batch_size(train_config: TrainConfig, strategy: tf.distribute.Strategy) -> int:
    """Returns the number of images per update and replica.

    Raises:
        ConfigError: the global batch does not divide evenly among the replicas.
    """
    replicas = strategy.num_replicas_in_sync
    if train_config.fixed_batch_size % replicas:
        raise ConfigError(
            f"train.batch_size = {train_config.batch_size} does not divide evenly among {replicas} replicas. "
            f"It is the global batch: set it to a multiple of {replicas}."
        )
    return train_config.effective_batch_size // replicas
