"""Mistakes that are found before data is read: minutes later, the same functions would refuse them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detection.coco.engine.bounds import require_analysis, require_arrays
from detection.datasets.layouts import SplitFiles
from detection.coco.params import make_settings
from detection.training.distributed.cluster import cluster_from_environment
from pipelines.dataset_files import categories_of
from pipelines.folders import RunLayout
from schemas.artifacts import CHECKPOINTS
from schemas.config.config import Config
from schemas.config.training import TrainConfig

if TYPE_CHECKING:
    import tensorflow as tf


def check_run(config: Config, splits: Mapping[str, SplitFiles], layout: RunLayout) -> None:
    """Checks a pipeline run.

    Args:
        config: the whole configuration.
        splits: files of the data set.
        layout: of the run.

    Raises:
        ConfigError, DataError: see `categories_of` and `check_start`.
    """
    categories = categories_of(splits, config.data)
    _require_evaluable(config, categories)
    from detection.models.backbones.imagenet import IMAGENET
    from detection.training.start_check import check_start, without_log

    settings = config.train
    # A later run may find its training done, or start from a model that was blessed, and needs no other weights.
    optional = settings.init.from_previous_model or config.model.backbone_weights == IMAGENET
    with without_log():
        strategy = _strategy_of(settings)
    check_start(
        config,
        categories=categories,
        strategy=strategy,
        initializes=not (optional and layout.metadata.exists()),
    )


def _require_evaluable(config: Config, categories: Sequence[Mapping[str, Any]] | None) -> None:
    """Sees that there is memory to evaluate so many categories, as far as COCO's own settings tell.

    Raises:
        DataError: there is not.
    """
    if categories is None or config.evaluate.eval_config is not None:
        return
    settings = make_settings("bbox")
    require_arrays(len(categories), settings, where="evaluation")
    # The pipeline compares two models as soon as one is blessed.
    require_analysis(len(categories), settings, models=2, replicates=config.evaluate.analysis.replicates)


def _strategy_of(settings: TrainConfig) -> "tf.distribute.Strategy | None":
    """The strategy, if it can be made more than once: a process joins a TPU or other machines only when it trains.

    Raises:
        ConfigError: there is no such strategy here.
    """
    from detection.training.distributed.strategy import has_tpu, make_strategy

    kind = settings.strategy
    if kind == "tpu" or (kind == "auto" and has_tpu(settings.tpu)):
        return None
    if kind == "multi_worker" and cluster_from_environment(os.environ) is not None:
        return None
    return make_strategy(kind, tpu=settings.tpu)


def check_train(
    config: Config, splits: Mapping[str, SplitFiles], output: Path, strategy: "tf.distribute.Strategy"
) -> None:
    """Checks a training without a pipeline.

    Args:
        config: `data`, `model` and `train` count.
        splits: files of the splits that are read.
        output: of the training; its checkpoints are gone on from.
        strategy: to train under.

    Raises:
        ConfigError, DataError: see `categories_of` and `check_start`.
    """
    from detection.training.start_check import check_start

    categories = categories_of(splits, config.data)
    if config.train.validation.enabled:
        _require_evaluable(config, categories)
    check_start(
        config,
        categories=categories,
        strategy=strategy,
        checkpoints=output / CHECKPOINTS,
    )
