"""Finds mistakes in the configuration before data is read, with the functions that would refuse them later."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.coco_example_gen.spans.dataset_files import categories_of
from components.history.queries import History
from detection.coco.engine.streaming import require_analysis, require_arrays
from detection.coco.params import make_params
from detection.datasets.examples import require_same_ids
from detection.datasets.splits import SplitFiles
from detection.storage.paths import join
from detection.training.distributed.cluster import cluster_from_environment
from pipelines.folders import RunLayout
from schemas.artifacts import CHECKPOINTS, SERVING_DIR
from schemas.config.config import Config
from schemas.config.train.training import TrainConfig

if TYPE_CHECKING:
    import tensorflow as tf

    from detection.models.detector import Detector


def check_run(config: Config, splits: Mapping[str, SplitFiles], *, is_first: bool) -> None:
    """Checks a pipeline run before it starts.

    Args:
        config: whole configuration.
        splits: files of the data set.
        is_first: no run of this `run.root` came before it.

    Raises:
        CocoflowError: see `categories_of` and `check_start`.
    """
    categories = categories_of(splits, config.data)
    _require_evaluable(config, categories)
    if categories and not is_first and not config.evaluate.accept_renumbered_categories:
        _require_ids_of_blessed(RunLayout(config).root, categories, data=next(iter(splits.values())).annotations)
    from detection.training.start_check import check_start, require_iou_types, without_log
    from detection.weights.publications import IMAGENET, names_detector

    train = config.train
    # A later run may reuse its training, or start from a blessed model, and needs no other weights.
    weights = config.model.weights
    published = IMAGENET in (config.model.backbone_weights, weights) or names_detector(weights)
    optional = train.init.from_previous_model or published
    with without_log():
        strategy = _strategy_of(train)
    detector = check_start(
        config,
        categories=categories,
        strategy=strategy,
        output=RunLayout(config).training if is_first else None,
        initializes=is_first or not optional,
    )
    require_iou_types("evaluate.iou_types", config.evaluate.iou_types or (), detector)
    if config.push.mediapipe is not None:
        from detection.export.mediapipe_model import require_mediapipe

        require_mediapipe(detector, "cpu", what="push.mediapipe")


def _require_ids_of_blessed(root: str, categories: Sequence[Mapping[str, Any]], *, data: str) -> None:
    """Requires what the evaluator does after the training; see `require_same_ids`."""
    from detection.inference.formats.model_files import read_model_categories

    blessed = History(root).newest_blessed()
    if blessed is not None:
        require_same_ids(read_model_categories(join(blessed.uri, SERVING_DIR)) or (), categories, data=data)


def _require_evaluable(config: Config, categories: Sequence[Mapping[str, Any]] | None) -> None:
    """Requires enough memory to evaluate the categories with COCO's own params.

    Raises:
        DataError: too many categories.
    """
    if categories is None or config.evaluate.eval_config is not None:
        return
    for iou_type in config.evaluate.iou_types or ("bbox",):
        params = make_params(iou_type)
        require_arrays(len(categories), params, where="evaluation")
        # The pipeline compares two models once one is blessed.
        require_analysis(len(categories), params, models=2, replicates=config.evaluate.analysis.replicates)


def _strategy_of(train: TrainConfig) -> "tf.distribute.Strategy | None":
    """Creates the strategy; None for TPUs and several machines, which a process joins only once, to train.

    Raises:
        ConfigError: the strategy is not available here.
    """
    from detection.training.distributed.strategy import has_tpu, make_strategy

    kind = train.strategy
    if kind == "tpu" or (kind == "auto" and has_tpu(train.tpu)):
        return None
    if kind == "multi_worker" and cluster_from_environment(os.environ) is not None:
        return None
    return make_strategy(kind, tpu=train.tpu)


def check_train(
    config: Config, splits: Mapping[str, SplitFiles], working: Path, output: str, strategy: "tf.distribute.Strategy"
) -> "Detector | None":
    """Checks a training without a pipeline before it starts; returns the detector if the categories are known.

    Args:
        config: configuration with the sections `data`, `model` and `train`.
        splits: files of the splits to read.
        working: local folder of the training, which resumes from checkpoints in it.
        output: output folder, remote or the same.
        strategy: distribution strategy of the training.

    Raises:
        CocoflowError: see `categories_of` and `check_start`.
    """
    from detection.training.start_check import check_start

    categories = categories_of(splits, config.data)
    if config.train.validation.enabled:
        _require_evaluable(config, categories)
    detector = check_start(
        config, categories=categories, strategy=strategy, checkpoints=working / CHECKPOINTS, output=output, device=None
    )
    return None if categories is None else detector
