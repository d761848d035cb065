"""Builds the class balance of a training run from the config: repeat factors and class weights."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detection.input_pipeline.record_classes import inverse_frequency_weights, read_classes
from detection.input_pipeline.record_order import RecordOrder, repeat_factors
from detection.input_pipeline.record_reader import RecordReader
from schemas.config.train.training import TrainConfig
from schemas.errors import ConfigError

_LOGGER = logging.getLogger("cocoflow.trainer")
_EXPONENTS = {"inverse_frequency": 1.0, "inverse_sqrt_frequency": 0.5}


class ClassBalance(NamedTuple):
    """Repeat factors and class weights of a run.

    repeat_factors: float64 [N], expected repeats of each record per epoch, >= 1; None: each record once.
    class_weights: float32 [C], loss weights of the objects of each class; None: no weights.
    epoch_size: number of images per epoch.
    """

    repeat_factors: npt.NDArray[np.float64] | None
    class_weights: npt.NDArray[np.float32] | None
    epoch_size: int


def balance_from_config(
    train_config: TrainConfig, reader: RecordReader, categories: Sequence[Mapping[str, Any]]
) -> ClassBalance:
    """Builds the class balance; reads all records only if the balance depends on their classes.

    Args:
        train_config: the section `train`.
        reader: reader of the training records.
        categories: COCO categories, in the order of the network's classes.

    Raises:
        ConfigError: `train.class_weights` names an unknown category.
        DataError: a record cannot be read.
    """
    sampling, kind = train_config.sampling, train_config.class_weights
    weights, factors = named_class_weights(train_config, categories), None
    if sampling.name == "repeat_factor" or isinstance(kind, str):
        classes = read_classes(reader, [category["id"] for category in categories])
        if sampling.name == "repeat_factor":
            factors = repeat_factors(classes, num_records=len(reader), threshold=sampling.threshold)
        if isinstance(kind, str):
            weights = inverse_frequency_weights(classes, num_classes=len(categories), exponent=_EXPONENTS[kind])
    balance = ClassBalance(factors, weights, RecordOrder(train_config.seed, len(reader), factors).epoch_size)
    _log(balance, categories)
    return balance


def named_class_weights(
    train_config: TrainConfig, categories: Sequence[Mapping[str, Any]]
) -> npt.NDArray[np.float32] | None:
    """Returns the class weights that the config specifies by name, float32 [C]; None: no weights by name.

    Raises:
        ConfigError: unknown category name.
    """
    by_name = train_config.class_weights
    if not isinstance(by_name, dict):
        return None
    names = [str(category["name"]) for category in categories]
    for name in by_name:
        if name not in names:
            raise ConfigError(
                f"train.class_weights.{name}: the data set has no category of this name. "
                f"The nearest is {difflib.get_close_matches(name, names, 1, 0.0)[0]}."
            )
    return np.array([by_name.get(name, 1.0) for name in names], np.float32)


def _log(balance: ClassBalance, categories: Sequence[Mapping[str, Any]]) -> None:
    factors, weights = balance.repeat_factors, balance.class_weights
    if factors is not None:
        _LOGGER.info(
            "train.sampling: %s of %s images are repeated, up to %.1f times; an epoch has %s images",
            f"{(factors > 1.0).sum():,}",
            f"{len(factors):,}",
            factors.max(),
            f"{balance.epoch_size:,}",
        )
    if weights is not None:
        low, high = int(weights.argmin()), int(weights.argmax())
        _LOGGER.info(
            "train.class_weights: from %.3g (%s) to %.3g (%s)",
            weights[low],
            categories[low]["name"],
            weights[high],
            categories[high]["name"],
        )
