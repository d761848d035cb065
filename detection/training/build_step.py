"""Builds the train state and the training step from the config; their classes do not depend on it."""

import functools
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import keras
import tensorflow as tf

from detection.inference.restore import is_described, read_model_config
from detection.models.detector import Detector, variables_by_path
from detection.models.layers.batch_norm import synchronize_batch_norm
from detection.models.layers.initializers import seeded_initializers
from detection.models.registry import detector_config, detector_from_config
from detection.pretrained.choice import configured_weights, initial_weights
from detection.training.distributed.strategy import is_op_deterministic, on_cpu, worker_count
from detection.training.engine import schedules
from detection.training.engine.accumulation import AccumulatedStep
from detection.training.engine.gradients import (
    GradientSummaries,
    Regularization,
    regularization_loss,
    transform_gradients,
)
from detection.training.engine.loop import TrainLoop
from detection.training.engine.optimizers import make_optimizer
from detection.training.engine.state import ExponentialMovingAverage, LossScale, TrainState
from detection.training.engine.step import NanGuard, TrainStep
from detection.training.engine.variable_selection import (
    WEIGHT_DECAY_EXCLUDE_KEY,
    ChangingVariables,
    all_kernels,
    decayed_variables,
    freeze_variables,
    kernels_without,
    log_matches,
    matching_paths,
)
from detection.training.initialization.initialize import InitReport, initialize
from detection.weights.publications import names_detector
from schemas.artifacts import CONFIG_YAML
from schemas.config.config import Config
from schemas.config.section import value_at
from schemas.config.train.training import TrainConfig
from schemas.errors import CocoflowError, find_user_error

_LOGGER = logging.getLogger("cocoflow.trainer")
# Fields that a backbone alone keeps in every network.
_OF_BACKBONE = ("backbone.layout", "pixel_mean", "pixel_std")
_REGULARIZERS_KEY = "train.optimizer.regularizers"
_FACTORS_KEY = "train.optimizer.learning_rate_factors"
# In messages of failed compilations, such as `libdevice not found` and `No PTX compilation provider is available`.
_XLA_FAILURE = re.compile(r"XLA|tf2xla|PTX|ptxas|libdevice|nvlink|LLVM")
_LARS_EXCLUDE_KEY = "train.optimizer.lars_exclude"

Schedule = Callable[[tf.Tensor], tf.Tensor]


def state_from_config(
    config: Config, categories: Sequence[Mapping[str, Any]], *, strategy: tf.distribute.Strategy
) -> TrainState:
    """Builds a new train state, with its variables under `strategy` and initial weights from the seed.

    Args:
        config: configuration of the run.
        categories: those of the classes.
        strategy: distribution of the training.

    Raises:
        ConfigError: unknown detector or override, or expressions that match no variable.
    """
    train_config = config.train
    with seeded_initializers(train_config.seed), strategy.scope():
        model = detector_from_config(config.model, categories, precision=config.train.precision)
        synchronize_batch_norm(model, train_config.sync_batch_norm)
        changing = changing_variables(train_config, model)
        step = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        return TrainState(
            step,
            model,
            changing.trainable,
            optimizer_from_config(train_config, changing, step),
            ema_from_config(train_config, changing),
            loss_scale_from_config(train_config),
        )


def initialize_from_config(
    config: Config,
    state: TrainState,
    categories: Sequence[Mapping[str, Any]],
    *,
    strategy: tf.distribute.Strategy,
    start_step: int,
    base_model: str | Path | None,
) -> InitReport | None:
    """Sets a new run's initial weights from `model.weights` and `train.init`; does nothing in a resumed run.

    Returns:
        The loaded variables; None: none were loaded.

    Raises:
        ConfigError: the weights do not fit the detector, or a key has no effect.
        DataError: the weights cannot be read.
    """
    init_config = config.train.init
    if start_step:
        if init_config.from_previous_model or any(configured_weights(config)) or names_detector(config.model.weights):
            _LOGGER.info("resumed run: ignoring model.weights and train.init; the weights come from its checkpoint")
        return None
    # A previous model replaces the published detector, so do not download that.
    source = initial_weights(config) if base_model is None else configured_weights(config)
    if init_config.from_previous_model and base_model is None:
        instead = source.checkpoint or source.backbone_weights or "random weights"
        _LOGGER.info("train.init.from_previous_model: no blessed model yet; starting from %s", instead)
    with strategy.scope():
        report = initialize(
            state,
            config=config,
            categories=categories,
            base_model=base_model,
            match=config.train.pattern_match,
            fetches=config.model.fetch_weights,
            **source._asdict(),
            **init_config.model_dump(exclude={"from_previous_model", "checkpoint"}),
        )
    _warn_of_frozen_random_weights(state, report)
    if report is not None and report.warm_start is not None:
        _warn_of_other_settings(config, report.warm_start.source, report)
    return report


def _warn_of_frozen_random_weights(state: TrainState, report: InitReport | None) -> None:
    """Logs a warning if random weights of the backbone are frozen; some detectors freeze stages by default."""
    trainable = {variable.path for variable in state.trainable}
    random_paths = {variable.path for variable in state.model.variables} if report is None else set(report.fresh)
    backbone = [variable.path for variable in all_kernels(state.model.backbone_variables)]
    frozen = [path for path in backbone if path in random_paths - trainable]
    if frozen:
        _LOGGER.warning(
            "%d of the backbone's %d kernels, such as %s, are frozen with random weights: set model.weights "
            "or train.init, or freeze less (train.freeze, model.overrides.backbone.frozen_stages)",
            len(frozen),
            len(backbone),
            frozen[0],
        )


def _warn_of_other_settings(config: Config, source: str, report: InitReport) -> None:
    """Logs a warning if the loaded weights were trained with other values of the detector's `FUNCTION_FIELDS`.

    Args:
        config: configuration of this run.
        source: the loaded checkpoint.
        report: report of its weights.
    """
    imported = report.imported
    try:
        if imported is None and not is_described(source):
            return
        trained = read_model_config(source) if imported is None else imported.config
        ours, theirs = (
            detector_config(model.name, overrides=model.overrides) for model in (config.model, trained.model)
        )
    except CocoflowError:
        return  # only the weights are required
    fields = ours.FUNCTION_FIELDS
    if imported is not None and imported.only_backbone:  # the original, too, changes its activation and batch norm
        fields = tuple(name for name in fields if name in _OF_BACKBONE)
    others = {name: value_at(theirs, name) for name in fields}
    others = {name: value for name, value in others.items() if value not in (None, value_at(ours, name))}
    if others:
        _LOGGER.warning(
            "the loaded weights were trained with different %s, so the network behaves differently: set "
            "model.overrides to %s, or start from their %s with --config",
            " and ".join(others),
            json.dumps(others),
            CONFIG_YAML,
        )


def train_loop_from_config(
    train_config: TrainConfig, state: TrainState, *, strategy: tf.distribute.Strategy
) -> TrainLoop:
    """Builds the compiled training loop, which updates `state`."""
    nonfinite, summaries = train_config.nonfinite, train_config.summaries
    with strategy.scope():
        guard = NanGuard(skips=nonfinite.max_in_a_row if nonfinite.policy == "skip" else 0)
    step = TrainStep(
        state,
        guard,
        seed=train_config.seed,
        l2=l2_from_config(train_config, state.trainable),
        transform_gradients=functools.partial(transform_gradients, **train_config.clip.model_dump()),
        gradient_summaries=GradientSummaries(
            norms=summaries.gradient_norms, histograms_every=summaries.gradient_histograms_every
        ),
    )
    count = train_config.accumulate_steps
    return TrainLoop(
        strategy,
        step if count == 1 else AccumulatedStep(step, state, strategy=strategy, micro_batches=count),
        jit_compile=compiles(train_config, strategy),
        deterministic=is_op_deterministic(),
        eager=train_config.run_eagerly,
        single=train_config.steps_per_loop == 1,
    )


def compiles(train_config: TrainConfig, strategy: tf.distribute.Strategy) -> bool:
    """Returns whether steps compile under XLA; on CPUs, XLA's convolutions are several times slower."""
    if train_config.jit_compile != "auto":
        return train_config.jit_compile
    return not (train_config.run_eagerly or on_cpu(strategy))


def without_xla(config: Config, strategy: tf.distribute.Strategy, error: tf.errors.OpError) -> Config | None:
    """Returns the configuration of a training that XLA has failed, without XLA, and logs the reason.

    Args:
        config: configuration of the training.
        strategy: its strategy.
        error: error of a compiled function.

    Returns:
        None: another error, or a training that cannot do without XLA or start again by itself.
    """
    can_repeat = not isinstance(strategy, tf.distribute.TPUStrategy) and worker_count(strategy) == 1
    if not (can_repeat and compiles(config.train, strategy) and _XLA_FAILURE.search(error.message)):
        return None
    if find_user_error(error) is not None:
        return None
    reason = next(line for line in error.message.splitlines() if _XLA_FAILURE.search(line))
    _LOGGER.warning(
        "XLA cannot compile the training step here (%s): training without it, from the newest checkpoint on. It takes "
        "longer; train.jit_compile=false saves the attempt",
        reason.strip()[:200],
    )
    return config.model_copy(update={"train": config.train.model_copy(update={"jit_compile": False})})


def is_deterministic(train_config: TrainConfig, strategy: tf.distribute.Strategy) -> bool:
    """Returns whether TensorFlow may only use ops with reproducible results."""
    if train_config.deterministic != "auto":
        return train_config.deterministic
    return on_cpu(strategy) and strategy.num_replicas_in_sync == 1 and not compiles(train_config, strategy)


def optimizer_from_config(
    train_config: TrainConfig, changing: ChangingVariables, step: tf.Variable
) -> keras.optimizers.Optimizer:
    """Builds the optimizer of the trainable variables; logs the matches of its regular expressions.

    Args:
        train_config: the section `train`.
        changing: the model's variables that training changes.
        step: the run's step, which determines the learning rate.  The optimizer's own step does
            not advance in skipped steps.

    Raises:
        ConfigError: an expression matches no variable.
    """
    optimizer_config, match = train_config.optimizer, train_config.pattern_match
    schedule = schedule_from_config(train_config)
    excludes = {
        _LARS_EXCLUDE_KEY: optimizer_config.lars_exclude,
        WEIGHT_DECAY_EXCLUDE_KEY: optimizer_config.weight_decay_exclude,
    }
    adapted = kernels_without(changing.trainable, excludes[_LARS_EXCLUDE_KEY], key=_LARS_EXCLUDE_KEY, match=match)
    decayed = regularization(train_config, changing.trainable)[-1].variables
    for key, expressions in excludes.items():
        log_matches(all_kernels(changing.trainable), expressions, key=key, match=match)
    _warn_of_zero_learning_rate(train_config)
    factors = learning_rate_factors(train_config, changing.trainable)
    return make_optimizer(
        optimizer_config.name,
        learning_rate=lambda: schedule(step),
        variables=changing.trainable,
        hyperparameters=optimizer_config.hyperparameters,
        legacy_momentum=optimizer_config.legacy_momentum,
        weight_decay=optimizer_config.weight_decay,
        decayed=decayed,
        adapted=adapted,
        rate_factor=lambda variable: factors.get(variable.path, 1.0),
    )


def _warn_of_zero_learning_rate(train_config: TrainConfig) -> None:
    schedule_config = train_config.schedule
    ends = schedule_config.name in ("cosine", "polynomial") and not schedule_config.end_learning_rate
    if ends and train_config.schedule_steps < train_config.fixed_steps:
        _LOGGER.warning(
            "train.schedule.total_steps = %d is less than train.steps = %d: the learning rate is then 0 and no weight "
            "changes; set train.schedule.end_learning_rate, or equal numbers of steps",
            train_config.schedule_steps,
            train_config.steps,
        )


def changing_variables(train_config: TrainConfig, model: Detector) -> ChangingVariables:
    """Freezes the variables of a built model as configured; returns the others."""
    return freeze_variables(
        model,
        trainable=train_config.trainable,
        freeze=train_config.freeze,
        batch_norm=train_config.freeze_batch_norm,
        match=train_config.pattern_match,
    )


def l2_from_config(train_config: TrainConfig, trainable: Sequence[keras.Variable]) -> Callable[[], tf.Tensor] | None:
    """Builds the loss of the regularisation; None if there is none, or only the optimizer decays the weights."""
    *parts, decayed = regularization(train_config, trainable)
    if train_config.optimizer.name != "adamw":
        parts.append(decayed)
    parts = [part for part in parts if part.variables and (part.l1 or part.l2)]
    return functools.partial(regularization_loss, parts) if parts else None


def regularization(train_config: TrainConfig, trainable: Sequence[keras.Variable]) -> list[Regularization]:
    """Returns the kernels of each entry of `train.optimizer.regularizers`, then those with weight decay.

    Raises:
        ConfigError: an expression matches no kernel.
    """
    config, match = train_config.optimizer, train_config.pattern_match
    left = decayed_variables(trainable, config.weight_decay_exclude, match=match)
    parts = []
    for entry in config.regularizers:
        paths = matching_paths(left, [entry.match], key=_REGULARIZERS_KEY, match=match)
        parts.append(Regularization([one for one in left if one.path in paths], entry.l1, entry.l2))
        left = tuple(one for one in left if one.path not in paths)
    return [*parts, Regularization(left, 0.0, config.weight_decay)]


def learning_rate_factors(train_config: TrainConfig, trainable: Sequence[keras.Variable]) -> dict[str, float]:
    """Returns the factors of the learning rate of the variables in `train.optimizer.learning_rate_factors`, by path.

    Raises:
        ConfigError: an expression matches no variable.
    """
    factors: dict[str, float] = {}
    for entry in train_config.optimizer.learning_rate_factors:
        left = [variable for variable in trainable if variable.path not in factors]
        paths = matching_paths(left, [entry.match], key=_FACTORS_KEY, match=train_config.pattern_match)
        factors |= dict.fromkeys(paths, entry.factor)
    return factors


def ema_from_config(train_config: TrainConfig, changing: ChangingVariables) -> ExponentialMovingAverage | None:
    """Builds the EMA weights of the variables that training changes; None if EMA is off."""
    ema_config = train_config.ema
    if not ema_config.enabled:
        return None
    averaged = changing.trainable + (changing.statistics if ema_config.include_batch_norm else ())
    return ExponentialMovingAverage(variables_by_path(averaged), decay=ema_config.decay, dynamic=ema_config.dynamic)


def loss_scale_from_config(train_config: TrainConfig) -> LossScale | None:
    """Builds the loss scale of float16; None for other precisions."""
    if train_config.precision != "mixed_float16":
        return None
    if isinstance(train_config.loss_scale, float):
        return LossScale(train_config.loss_scale, growth_steps=None)
    return LossScale(train_config.loss_scale_initial, growth_steps=train_config.loss_scale_growth_steps)


def schedule_from_config(train_config: TrainConfig) -> Schedule:
    """Builds the learning rate as a function of the step, with one of `detection.training.engine.schedules`."""
    config = train_config.schedule
    factor = train_config.effective_batch_size / config.reference_batch_size if config.reference_batch_size else 1.0
    peak = config.peak * factor
    start = config.warmup_learning_rate * (factor if config.scale_warmup else 1.0)
    warmup = schedules.Warmup(train_config.warmup_steps, start, rises=config.warmup == "linear")
    options: dict[str, Any] = {"peak": peak, "warmup": warmup}
    if config.name == "constant":
        return functools.partial(schedules.constant, **options)
    if config.name == "step":
        rates = [rate * factor for rate in config.rates] or [fraction * peak for fraction in config.factors]
        return functools.partial(schedules.stepwise, boundaries=config.boundaries, rates=rates, **options)
    options |= {"end": config.end_learning_rate * factor, "hold_steps": config.fixed_hold_steps}
    if config.name == "exponential":
        return functools.partial(
            schedules.exponential,
            decay_steps=cast(int, config.decay_steps),
            factor=config.decay_factor,
            staircase=config.staircase,
            **options,
        )
    options |= {"total_steps": train_config.schedule_steps, "from_start": config.phase == "from_start"}
    if config.name == "cosine":
        return functools.partial(schedules.cosine, **options)
    return functools.partial(schedules.polynomial, power=config.power, **options)
