"""From the configuration to how records become training examples."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from detection.input_pipeline.augmentation.autoaugment import POLICIES, autoaugment, randaugment
from detection.input_pipeline.augmentation.colors import random_color_jitter
from detection.input_pipeline.augmentation.combining import mixup, mosaic
from detection.input_pipeline.augmentation.crops import ssd_random_crop
from detection.input_pipeline.augmentation.erasing import random_grid_mask
from detection.input_pipeline.augmentation.flip import keypoint_flips
from detection.input_pipeline.record_decoder import num_keypoints
from detection.input_pipeline.sample import Sample
from detection.input_pipeline.training_batches import Augmentation, InputOptions
from detection.models.detector import Detector
from schemas.config.augmentation import AugmentConfig, ColorConfig, SsdCropConfig
from schemas.config.config import Config
from schemas.errors import ConfigError


class _Seed(IntEnum):
    """Numbers of the augmentations' seeds; one that is given away stays so, for runs that go on."""

    MOSAIC = 1
    MIXUP = 2
    GRID_MASK = 3
    AUTOAUGMENT = 4
    RANDAUGMENT = 5
    COLOR = 6
    SSD_CROP = 7


def input_options_from_config(config: Config, model: Detector, categories: Sequence[Mapping[str, Any]]) -> InputOptions:
    """How records become examples for `model`.

    Args:
        config: `model` and `train` count.
        model: whose input it is; says whether there are masks, keypoints and crowds in it.
        categories: COCO's entries, in the order of the network's classes.

    Raises:
        ConfigError: the detector wants keypoints that the categories do not have, or
            that cannot be mirrored; or crowds are to be ignored, which it cannot.
    """
    settings = config.train
    keypoints = num_keypoints(categories) if model.takes_keypoints else 0
    if model.takes_keypoints and not keypoints:
        raise ConfigError(
            f"model.name = {config.model.name}: it learns keypoints, but no category has any. "
            "Train on a data set whose categories name their keypoints, or choose another detector."
        )
    if settings.crowds == "ignore" and not model.takes_crowds:
        raise ConfigError(
            f"train.crowds = ignore: {config.model.name} cannot leave crowds out of its losses. Set it to drop."
        )
    mirrors = keypoints and settings.augment.horizontal_flip
    return InputOptions(
        image_size=model.image_size,
        mean=model.pixel_mean,
        std=model.pixel_std,
        category_ids=[category["id"] for category in categories],
        max_instances=config.model.max_instances,
        horizontal_flip=settings.augment.horizontal_flip,
        scale_min=settings.augment.scale_min,
        scale_max=settings.augment.scale_max,
        augmentations=_augmentations(settings.augment),
        mask_size=model.mask_size,
        num_keypoints=keypoints,
        keypoint_flips=keypoint_flips(categories) if mirrors else None,
        with_crowds=settings.crowds == "ignore",
    )


def _augmentations(settings: AugmentConfig) -> list[Augmentation]:
    """The steps that are on, in their order."""
    side, grid, policy = settings.mosaic.image_size, settings.grid_mask, settings.autoaugment
    steps = [
        Augmentation(
            _Seed.MOSAIC,
            partial(mosaic, image_size=(side, side), min_share=settings.mosaic.min_share),
            probability=settings.mosaic.probability,
            partners=3,
        ),
        Augmentation(
            _Seed.MIXUP,
            partial(mixup, alpha=settings.mixup.alpha),
            probability=settings.mixup.probability,
            partners=1,
        ),
        Augmentation(
            _Seed.GRID_MASK,
            partial(random_grid_mask, ratio=grid.ratio, rotation=grid.rotation),
            probability=grid.probability,
        ),
        Augmentation(
            _Seed.AUTOAUGMENT,
            partial(autoaugment, policy=POLICIES[policy] if policy else ()),
            probability=float(policy is not None),
        ),
        Augmentation(
            _Seed.RANDAUGMENT,
            partial(randaugment, **settings.randaugment.model_dump()),
            probability=float(settings.randaugment.layers > 0),
        ),
        _from_section(_Seed.COLOR, random_color_jitter, settings.color),
        _from_section(_Seed.SSD_CROP, ssd_random_crop, settings.ssd_crop),
    ]
    return [step for step in steps if step.probability > 0.0]


def _from_section(seed: _Seed, function: Callable[..., Sample], settings: ColorConfig | SsdCropConfig) -> Augmentation:
    """A step whose function's arguments are the section's keys."""
    arguments = settings.model_dump(exclude={"probability"})
    return Augmentation(seed, partial(function, **arguments), probability=settings.probability)
