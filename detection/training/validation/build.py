"""From the configuration to the evaluation inside a training run, and to the model that is exported."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detection.analysis.options import AnalysisOptions
from detection.coco.params import make_settings
from detection.inference.export import ExportedFrom, export_saved_model
from detection.inference.mean_losses import MeanLosses
from detection.models.detector import Detector
from detection.models.registry import detector_from_config
from detection.storage.atomic import new_directory
from detection.training.checkpoints.files import checkpoint_path, step_of
from detection.training.checkpoints.weights import load_weights
from detection.training.monitoring.progress import LOGGER
from detection.training.validation.assessor import Assessor, CheckpointEvaluator
from detection.training.validation.best import BestCheckpoint
from detection.training.validation.split import ValidationSplit
from detection.training.validation.validation import Validation
from schemas.artifacts import BEST, CHECKPOINTS, LOGS, VALIDATION
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.errors import ConfigError


def validation_from_config(
    config: Config,
    *,
    shards: Sequence[str],
    categories: Sequence[Mapping[str, Any]],
    training_records: int,
    output: Path,
    chief: bool,
    agree: Callable[[bool], bool],
) -> Validation:
    """What evaluates while training, if the configuration asks for it.

    Args:
        config: `train.validation`, and of `evaluate` the batch size, `losses` and what of `analysis` is drawn.
        shards: TFRecord files of the split to evaluate on.
        categories: the data set's, in the order of the detector's classes.
        training_records: images of an epoch.
        output: of the run.
        chief: whether this process evaluates; others follow its decisions.
        agree: tells all processes what the chief says.

    Raises:
        ConfigError: there is nothing to evaluate on.
        DataError: the metric cannot be measured on the split, or a record cannot be evaluated.
    """
    settings = config.train.validation
    if settings.enabled and not shards:
        raise ConfigError(
            f"train.validation: no records of the split {config.evaluate.split!r} to evaluate on. "
            "Give the data set this split, or take train.validation away."
        )
    assessor = None
    if settings.enabled and chief:
        assessor = assessor_from_config(
            config, shards=shards, categories=categories, folder=output / VALIDATION, logs=output / LOGS / VALIDATION
        )
    every = settings.every
    if settings.every_epochs is not None:
        every = math.ceil(settings.every_epochs * training_records / config.train.batch_size)
    return Validation(
        assessor,
        checkpoints=output / CHECKPOINTS,
        every=every,
        last_step=config.train.steps,
        metric=settings.metric,
        patience=settings.patience,
        min_delta=settings.min_delta,
        agree=agree,
    )


def assessor_from_config(
    config: Config, *, shards: Sequence[str], categories: Sequence[Mapping[str, Any]], folder: Path, logs: Path
) -> Assessor:
    """What evaluates a run's checkpoints.

    Args:
        config: of the run.
        shards: TFRecord files of the split to evaluate on.
        categories: the run's, in the order of the detector's classes.
        folder: see `Assessor`.
        logs: likewise.

    Raises:
        DataError: see `validation_from_config`.
    """
    settings, batch_size = config.train.validation, config.evaluate.batch_size
    split = ValidationSplit(
        shards,
        categories=categories,
        batch_size=batch_size,
        max_images=settings.max_images,
        settings=make_settings(settings.iou_type),
    )
    split.require_defined(settings.metric)
    detector = _detector(config, len(categories))
    evaluator = CheckpointEvaluator(
        detector,
        split,
        categories=categories,
        batch_size=batch_size,
        weights=config.train.ema.exported_weights,
        losses=MeanLosses(detector, categories, batch_size=batch_size, max_instances=config.model.max_instances)
        if config.evaluate.losses
        else None,
        options=AnalysisOptions(**config.evaluate.analysis.model_dump()),
    )
    return Assessor(evaluator, folder=folder, logs=logs, metric=settings.metric)


def export_checkpoint(
    config: Config, *, step: int, categories: Sequence[Mapping[str, Any]], output: Path, goal: Path
) -> None:
    """Writes the SavedModel of the run's best checkpoint, or of its last, as the configuration says.

    Args:
        config: of the run.
        step: of its last checkpoint.
        categories: the data set's, in the order of the detector's classes.
        output: of the run.
        goal: folder of the SavedModel; is replaced.

    Raises:
        DataError: the checkpoint is not there, or cannot be read.
    """
    best = BestCheckpoint(output / VALIDATION / BEST)
    path = best.path if config.train.validation.exports_best else checkpoint_path(output / CHECKPOINTS, step)
    weights = config.train.ema.exported_weights
    LOGGER.info("exporting the %s weights of %s", "EMA" if weights == "ema" else "raw", path)
    detector = _detector(config, len(categories))
    load_weights(detector, path, weights=weights)
    shutil.rmtree(goal, ignore_errors=True)
    with new_directory(goal) as folder:
        export_saved_model(
            detector,
            folder,
            categories=categories,
            config_yaml=to_yaml(config),
            exported_from=ExportedFrom(step_of(path), weights),
        )


def _detector(config: Config, num_classes: int) -> Detector:
    return detector_from_config(config.model, num_classes=num_classes, precision=config.train.precision)
