"""From the configuration to the parts of the update rule."""

import functools
import logging
from collections.abc import Callable
from typing import Any, cast

import keras
import tensorflow as tf

from detection.models.detector import variables_by_path
from detection.training.engine import schedules
from detection.training.engine.ema import ExponentialMovingAverage
from detection.training.engine.freezing import ChangingVariables
from detection.training.engine.gradients import GradientRules
from detection.training.engine.optimizers import make_optimizer
from detection.training.engine.precision import LossScale
from detection.training.engine.state import TrainState
from detection.training.engine.variable_paths import all_kernels, kernels_without, log_matches
from detection.training.engine.weight_decay import EXCLUDE_KEY, decayed_variables, l2_loss
from schemas.config.schedule import ScheduleConfig
from schemas.config.training import TrainConfig

_LOGGER = logging.getLogger("cocoflow.trainer")
_LARS_EXCLUDE_KEY = "train.optimizer.lars_exclude"

Schedule = Callable[[tf.Tensor], tf.Tensor]


def schedule_from_config(settings: TrainConfig) -> Schedule:
    """From the step to the learning rate; see `detection.training.engine.schedules`."""
    schedule = settings.schedule
    factor = settings.batch_size / schedule.reference_batch_size if schedule.reference_batch_size else 1.0
    start = schedule.warmup_learning_rate * (factor if schedule.scale_warmup else 1.0)
    warmup = schedules.Warmup(settings.warmup_steps, start, rises=schedule.warmup == "linear")
    build = _SCHEDULES[schedule.name]
    return build(
        schedule, factor, peak=schedule.learning_rate * factor, warmup=warmup, total_steps=settings.schedule_steps
    )


def _constant(schedule: ScheduleConfig, factor: float, *, total_steps: int, **common: Any) -> Schedule:
    return functools.partial(schedules.constant, **common)


def _stepwise(schedule: ScheduleConfig, factor: float, *, total_steps: int, **common: Any) -> Schedule:
    rates = [rate * factor for rate in schedule.rates] or [share * common["peak"] for share in schedule.factors]
    return functools.partial(schedules.stepwise, boundaries=schedule.boundaries, rates=rates, **common)


def _cosine(schedule: ScheduleConfig, factor: float, **common: Any) -> Schedule:
    return functools.partial(schedules.cosine, **_decay(schedule, factor), **_phase(schedule), **common)


def _polynomial(schedule: ScheduleConfig, factor: float, **common: Any) -> Schedule:
    options = _decay(schedule, factor) | _phase(schedule)
    return functools.partial(schedules.polynomial, power=schedule.power, **options, **common)


def _exponential(schedule: ScheduleConfig, factor: float, *, total_steps: int, **common: Any) -> Schedule:
    return functools.partial(
        schedules.exponential,
        decay_steps=cast(int, schedule.decay_steps),
        factor=schedule.decay_factor,
        staircase=schedule.staircase,
        **_decay(schedule, factor),
        **common,
    )


def _decay(schedule: ScheduleConfig, factor: float) -> dict[str, Any]:
    return {"end": schedule.end_learning_rate * factor, "hold_steps": schedule.hold_steps}


def _phase(schedule: ScheduleConfig) -> dict[str, Any]:
    return {"from_start": schedule.phase == "from_start"}


_SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": _constant,
    "step": _stepwise,
    "cosine": _cosine,
    "polynomial": _polynomial,
    "exponential": _exponential,
}


def optimizer_from_config(
    settings: TrainConfig, changing: ChangingVariables, step: tf.Variable
) -> keras.optimizers.Optimizer:
    """The optimizer of what trains; logs what its expressions match.

    Args:
        settings: say which.
        changing: of the model.
        step: whose learning rate it takes.  It is the run's, not the optimizer's own,
            which stands still in skipped steps.

    Raises:
        ConfigError: see `kernels_without`.
    """
    optimizer, schedule, match = settings.optimizer, schedule_from_config(settings), settings.pattern_match
    adapted = kernels_without(changing.trainable, optimizer.lars_exclude, key=_LARS_EXCLUDE_KEY, match=match)
    decayed = decayed_variables(changing.trainable, optimizer.weight_decay_exclude, match=match)
    for key, expressions in (
        (_LARS_EXCLUDE_KEY, optimizer.lars_exclude),
        (EXCLUDE_KEY, optimizer.weight_decay_exclude),
    ):
        log_matches(all_kernels(changing.trainable), expressions, key=key, match=match)
    _warn_of_steps_at_zero(settings)
    return make_optimizer(
        optimizer.name,
        learning_rate=lambda: schedule(step),
        variables=changing.trainable,
        hyperparameters=optimizer.hyperparameters,
        legacy_momentum=optimizer.legacy_momentum,
        weight_decay=optimizer.weight_decay,
        decayed=decayed,
        adapted=adapted,
    )


def _warn_of_steps_at_zero(settings: TrainConfig) -> None:
    schedule = settings.schedule
    ends = schedule.name in ("cosine", "polynomial") and not schedule.end_learning_rate
    if ends and settings.schedule_steps < settings.steps:
        _LOGGER.warning(
            "train.schedule.total_steps = %d ends before train.steps = %d: the learning rate is 0 from there on and no "
            "weight changes; set train.schedule.end_learning_rate, or as many steps as total_steps",
            settings.schedule_steps,
            settings.steps,
        )


def l2_from_config(settings: TrainConfig, state: TrainState) -> Callable[[], tf.Tensor] | None:
    """Weight decay as a part of the loss, if it is one."""
    optimizer = settings.optimizer
    if optimizer.name == "adamw" or not optimizer.weight_decay:
        return None
    decayed = decayed_variables(state.trainable, optimizer.weight_decay_exclude, match=settings.pattern_match)
    return functools.partial(l2_loss, decayed, optimizer.weight_decay)


def gradient_rules_from_config(settings: TrainConfig) -> GradientRules:
    """What happens to gradients."""
    return GradientRules(**settings.clip.model_dump())


def average_from_config(settings: TrainConfig, changing: ChangingVariables) -> ExponentialMovingAverage | None:
    """The moving average, if there is to be one, of what changes."""
    if not settings.ema.enabled:
        return None
    followed = changing.trainable + (changing.statistics if settings.ema.include_batch_norm else ())
    return ExponentialMovingAverage(variables_by_path(followed), decay=settings.ema.decay, dynamic=settings.ema.dynamic)


def loss_scale_from_config(settings: TrainConfig) -> LossScale | None:
    """The loss scale of float16; other precisions have none."""
    if settings.precision != "mixed_float16":
        return None
    if isinstance(settings.loss_scale, float):
        return LossScale(settings.loss_scale, growth_steps=None)
    return LossScale(settings.loss_scale_initial, growth_steps=settings.loss_scale_growth_steps)
