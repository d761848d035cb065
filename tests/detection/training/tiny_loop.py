"""Training loops of the tiny detector, which tests of a configuration share: most of their time is that of a graph."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.training.build_step import state_from_config, train_loop_from_config
from detection.training.engine.loop import TrainLoop
from detection.training.engine.state import TrainState
from schemas.config.config import Config
from schemas.config.config_io import load_config
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import AUTOML

Values = dict[str, npt.NDArray[Any]]


class TinyLoop(NamedTuple):
    """A training loop and its state; `initial` holds every variable with its first value."""

    config: Config
    state: TrainState
    loop: TrainLoop
    strategy: tf.distribute.Strategy
    initial: list[tuple[tf.Variable, npt.NDArray[Any]]]

    def values(self) -> Values:
        """Everything that a checkpoint holds, but the step and the loss scale."""
        return values(self.state)


def values(state: TrainState) -> Values:
    """Everything that a checkpoint holds, but the step and the loss scale, by path."""
    variables = [*state.model.variables, *state.model.loss_statistics, *state.optimizer.variables]
    by_name = {variable.path: variable.numpy() for variable in variables}
    if state.ema is not None:
        by_name |= {f"ema/{name}": weight.numpy() for name, weight in state.ema.weights.items()}
    return by_name


def assert_equal(left: Values, right: Values) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


def new_loop(*assignments: str, strategy: tf.distribute.Strategy | None = None) -> TinyLoop:
    """A loop of its own, for tests that replace a part of it."""
    tiny_detector.register()
    strategy = strategy or _one_device()
    config = load_config(None, [AUTOML, "model.name=tiny", *assignments])
    created = []

    def record(create: Callable[..., tf.Variable], **keywords: Any) -> tf.Variable:
        created.append(create(**keywords))
        return created[-1]

    with tf.variable_creator_scope(record):
        state = state_from_config(config, [{}] * 3, strategy=strategy)
        loop = train_loop_from_config(config.train, state, strategy=strategy)
    return TinyLoop(config, state, loop, strategy, [(variable, variable.numpy()) for variable in created])


_one_device = functools.cache(lambda: tf.distribute.OneDeviceStrategy("/cpu:0"))
_shared_loop = functools.cache(new_loop)


def restarted_loop(*assignments: str, strategy: tf.distribute.Strategy | None = None) -> TinyLoop:
    """The loop of this configuration, at its first step; the results of an earlier call are gone."""
    loop = _shared_loop(*assignments, strategy=strategy)
    for variable, value in loop.initial:
        variable.assign(value)
    return loop
