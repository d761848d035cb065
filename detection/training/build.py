"""From the configuration to the parts of a training run; nothing else in the engine sees it."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import training_batches
from detection.models.detector import Detector
from detection.models.layers.batch_norm import synchronize_batch_norm
from detection.models.registry import detector_from_config
from detection.training.build_update import (
    average_from_config,
    gradient_rules_from_config,
    l2_from_config,
    loss_scale_from_config,
    optimizer_from_config,
)
from detection.training.distributed.determinism import is_op_deterministic
from detection.training.distributed.strategy import on_cpu
from detection.training.engine.freezing import freeze_variables
from detection.training.engine.gradient_summaries import GradientSummaries
from detection.training.engine.guard import NonFiniteGuard
from detection.training.engine.loop import TrainLoop
from detection.training.engine.state import TrainState
from detection.training.engine.step import TrainStep
from detection.training.initialization.initialize import initialize
from detection.training.initialization.report import InitReport
from detection.training.input_options import input_options_from_config
from schemas.config.config import Config
from schemas.config.training import TrainConfig
from schemas.errors import ConfigError

_LOGGER = logging.getLogger("cocoflow.trainer")


def state_from_config(config: Config, *, num_classes: int, strategy: tf.distribute.Strategy) -> TrainState:
    """A fresh training state, its variables under `strategy`, its initial weights a function of the seed.

    Raises:
        ConfigError: unknown detector or override, or expressions that match no variable.
    """
    settings = config.train
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = detector_from_config(config.model, num_classes=num_classes, precision=settings.precision)
        synchronize_batch_norm(model, settings.sync_batch_norm)
        changing = freeze_variables(
            model,
            trainable=settings.trainable,
            freeze=settings.freeze,
            batch_norm=settings.freeze_batch_norm,
            match=settings.pattern_match,
        )
        step = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        return TrainState(
            step,
            model,
            changing.trainable,
            optimizer_from_config(settings, changing, step),
            average_from_config(settings, changing),
            loss_scale_from_config(settings),
        )


def initialize_from_config(
    config: Config,
    state: TrainState,
    categories: Sequence[Mapping[str, Any]],
    *,
    strategy: tf.distribute.Strategy,
    start_step: int,
    base_model: Path | None,
) -> InitReport | None:
    """Sets a new run's weights as `model.backbone_weights` and `train.init` say; a run that goes on keeps its own.

    Returns:
        What was done; None: nothing.

    Raises:
        ConfigError, DataError: see `detection.training.initialization.initialize`.
    """
    init, backbone_weights = config.train.init, config.model.backbone_weights
    if start_step:
        if init.has_source or backbone_weights is not None:
            _LOGGER.info("the weights were initialised when this run began, and are not again")
        return None
    if init.from_previous_model and base_model is None:
        instead = init.checkpoint or backbone_weights or "fresh weights"
        _LOGGER.info("train.init.from_previous_model: no model was blessed before; starting from %s", instead)
    with strategy.scope():
        return initialize(
            state,
            categories=categories,
            backbone_weights=backbone_weights,
            base_model=base_model,
            match=config.train.pattern_match,
            **init.model_dump(exclude={"from_previous_model"}),
        )


def batches_from_config(
    config: Config,
    model: Detector,
    reader: RecordReader,
    categories: Sequence[Mapping[str, Any]],
    *,
    strategy: tf.distribute.Strategy,
    start_step: int,
) -> tf.data.Iterator:
    """Training batches from `start_step` on, spread over the strategy's replicas.

    Raises:
        ConfigError: the global batch does not divide among the replicas, or see
            `detection.training.input_options`.
    """
    settings = config.train
    options = input_options_from_config(config, model, categories)

    def batches_of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return training_batches(
            reader,
            options,
            seed=settings.seed,
            start_step=start_step,
            # Where data may end, the machines ask each other before every step whether there is more.
            stop_step=None,
            batch_size=settings.batch_size // context.num_input_pipelines,
            replica_batch_size=replica_batch_size(settings, strategy),
            pipeline=context.input_pipeline_id,
            num_pipelines=context.num_input_pipelines,
        )

    return iter(strategy.distribute_datasets_from_function(batches_of_worker))


def replica_batch_size(settings: TrainConfig, strategy: tf.distribute.Strategy) -> int:
    """Images per step and replica.

    Raises:
        ConfigError: the global batch does not divide among the replicas.
    """
    replicas = strategy.num_replicas_in_sync
    if settings.batch_size % replicas:
        raise ConfigError(
            f"train.batch_size = {settings.batch_size} does not divide among {replicas} replicas. "
            "It is the global batch: make it a multiple."
        )
    return settings.batch_size // replicas


def train_loop_from_config(settings: TrainConfig, state: TrainState, *, strategy: tf.distribute.Strategy) -> TrainLoop:
    """The steps, compiled."""
    with strategy.scope():
        guard = NonFiniteGuard(skips=settings.nonfinite.max_in_a_row if settings.nonfinite.policy == "skip" else 0)
    step = TrainStep(
        state,
        guard,
        seed=settings.seed,
        l2=l2_from_config(settings, state),
        gradient_rules=gradient_rules_from_config(settings),
        gradient_summaries=GradientSummaries(
            norms=settings.summaries.gradient_norms, histograms_every=settings.summaries.gradient_histograms_every
        ),
    )
    return TrainLoop(
        strategy,
        step,
        jit_compile=compiles(settings, strategy),
        deterministic=is_op_deterministic(),
        eager=settings.run_eagerly,
    )


def compiles(settings: TrainConfig, strategy: tf.distribute.Strategy) -> bool:
    """Whether steps compile under XLA; on CPUs its convolutions are several times slower than TensorFlow's."""
    return not (settings.run_eagerly or on_cpu(strategy)) if settings.jit_compile == "auto" else settings.jit_compile


def is_deterministic(settings: TrainConfig, strategy: tf.distribute.Strategy) -> bool:
    """Whether only ops that give the same bits every time are allowed."""
    if settings.deterministic != "auto":
        return settings.deterministic
    return on_cpu(strategy) and strategy.num_replicas_in_sync == 1 and not compiles(settings, strategy)
