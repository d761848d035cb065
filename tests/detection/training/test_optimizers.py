"""Optimizers against their formulas in plain numpy, over several steps with a rate that changes."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.training.optimizers import make_optimizer

RATES = np.array([0.1, 0.1, 0.05, 0.02, 0.3, 0.001])
RANDOM = np.random.default_rng(0)
START = RANDOM.normal(size=(2, 3))
GRADIENTS = RANDOM.normal(size=(len(RATES), 2, 3))


def _weights(
    name: str,
    hyperparameters: dict[str, Any],
    *,
    legacy_momentum: bool = False,
    weight_decay: float = 0.0,
    decays: bool = False,
) -> list[np.ndarray]:
    """The weight after each update, as TensorFlow runs it."""
    weight = keras.Variable(START, name="kernel", dtype="float32")
    step = tf.Variable(0, dtype=tf.int64)
    optimizer = make_optimizer(
        name,
        learning_rate=lambda: tf.gather(tf.constant(RATES, tf.float32), step),
        variables=[weight],
        hyperparameters=hyperparameters,
        legacy_momentum=legacy_momentum,
        weight_decay=weight_decay,
        decayed=[weight] if decays else [],
    )
    found = []
    for gradient in GRADIENTS:
        optimizer.apply([tf.constant(gradient, tf.float32)], [weight])
        step.assign_add(1)
        found.append(weight.numpy())
    return found


def _sgd(momentum: float, nesterov: bool) -> list[np.ndarray]:
    weight, velocity, found = START, np.zeros_like(START), []
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        velocity = momentum * velocity - rate * gradient
        weight = weight + (momentum * velocity - rate * gradient if nesterov else velocity)
        found.append(weight)
    return found


def _rmsprop(rho: float, momentum: float, epsilon: float, centered: bool) -> list[np.ndarray]:
    weight, found = START, []
    square, mean, velocity = (np.zeros_like(START) for _ in range(3))
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        square = rho * square + (1 - rho) * gradient**2
        mean = rho * mean + (1 - rho) * gradient
        variance = square - mean**2 if centered else square
        velocity = momentum * velocity + rate * gradient / np.sqrt(variance + epsilon)
        weight = weight - velocity
        found.append(weight)
    return found


def _adam(beta_1: float, beta_2: float, epsilon: float, decay: float = 0.0) -> list[np.ndarray]:
    weight, found = START, []
    first, second = np.zeros_like(START), np.zeros_like(START)
    for count, (rate, gradient) in enumerate(zip(RATES, GRADIENTS, strict=True), 1):
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        weight = weight - rate * decay * weight
        rate_now = rate * np.sqrt(1 - beta_2**count) / (1 - beta_1**count)
        weight = weight - rate_now * first / (np.sqrt(second) + epsilon)
        found.append(weight)
    return found


@pytest.mark.parametrize(
    ("name", "reference", "hyperparameters"),
    [
        ("sgd", _sgd, {"momentum": 0.0, "nesterov": False}),
        ("sgd", _sgd, {"momentum": 0.9, "nesterov": False}),
        ("sgd", _sgd, {"momentum": 0.8, "nesterov": True}),
        ("rmsprop", _rmsprop, {"rho": 0.9, "momentum": 0.9, "epsilon": 1.0, "centered": False}),
        ("rmsprop", _rmsprop, {"rho": 0.7, "momentum": 0.0, "epsilon": 0.001, "centered": False}),
        ("rmsprop", _rmsprop, {"rho": 0.6, "momentum": 0.5, "epsilon": 0.1, "centered": True}),
        ("adam", _adam, {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}),
        ("adam", _adam, {"beta_1": 0.5, "beta_2": 0.8, "epsilon": 0.1}),
    ],
)
def test_several_updates_equal_the_formula(
    name: str, reference: Callable[..., list[np.ndarray]], hyperparameters: dict[str, Any]
) -> None:
    np.testing.assert_allclose(_weights(name, hyperparameters), reference(**hyperparameters), rtol=1e-5, atol=5e-6)


def test_adamw_shrinks_only_what_decays() -> None:
    hyperparameters = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
    decayed = _weights("adamw", hyperparameters, weight_decay=0.5, decays=True)
    np.testing.assert_allclose(decayed, _adam(**hyperparameters, decay=0.5), rtol=1e-5, atol=5e-6)
    spared = _weights("adamw", hyperparameters, weight_decay=0.5)
    np.testing.assert_allclose(spared, _adam(**hyperparameters), rtol=1e-5, atol=5e-6)


def test_rmsprop_runs_as_the_kernel_that_the_old_systems_called() -> None:
    """There, `rho` is the share of the mean square that stays: the OD API's `decay`, which its TF2 code mislaid."""
    variables = [tf.Variable(start, dtype=tf.float32) for start in (START, 0 * START, 0 * START)]
    found = []
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        tf.raw_ops.ResourceApplyRMSProp(
            var=variables[0].handle,
            ms=variables[1].handle,
            mom=variables[2].handle,
            lr=tf.constant(rate, tf.float32),
            rho=0.9,
            momentum=0.9,
            epsilon=1.0,
            grad=tf.constant(gradient, tf.float32),
        )
        found.append(variables[0].numpy())
    ours = _weights("rmsprop", {"rho": 0.9, "momentum": 0.9, "epsilon": 1.0, "centered": False})
    np.testing.assert_allclose(ours, found, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("nesterov", [False, True])
def test_legacy_momentum_runs_as_tf1s_kernel(nesterov: bool) -> None:
    variables = [tf.Variable(start, dtype=tf.float32) for start in (START, 0 * START)]
    found = []
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        tf.raw_ops.ResourceApplyMomentum(
            var=variables[0].handle,
            accum=variables[1].handle,
            lr=tf.constant(rate, tf.float32),
            grad=tf.constant(gradient, tf.float32),
            momentum=0.9,
            use_nesterov=nesterov,
        )
        found.append(variables[0].numpy())
    hyperparameters: dict[str, Any] = {"momentum": 0.9, "nesterov": nesterov}
    ours = _weights("sgd", hyperparameters, legacy_momentum=True)
    np.testing.assert_allclose(ours, found, rtol=1e-6, atol=1e-7)
    assert not np.allclose(ours, _sgd(**hyperparameters), atol=1e-3)


def test_legacy_momentum_of_zero_is_plain_descent() -> None:
    hyperparameters: dict[str, Any] = {"momentum": 0.0, "nesterov": False}
    ours = _weights("sgd", hyperparameters, legacy_momentum=True)
    np.testing.assert_allclose(ours, _sgd(**hyperparameters), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("name", ["sgd", "rmsprop", "adam", "adamw"])
def test_gradients_are_taken_as_summed_over_replicas(name: str, two_replicas: tf.distribute.Strategy) -> None:
    """Each replica hands over the whole batch's gradient; summed once more it would count twice."""

    def updated(strategy: tf.distribute.Strategy) -> np.ndarray:
        with strategy.scope():
            weight = keras.Variable(START, name="kernel", dtype="float32")
            # An epsilon so large that Adam and RMSProp feel the gradient's size.
            more = {"momentum": 0.9} if name == "sgd" else {"epsilon": 1.0}
            optimizer = make_optimizer(
                name, learning_rate=lambda: tf.constant(0.1), variables=[weight], hyperparameters=more
            )

        @tf.function
        def update(gradient: tf.Tensor) -> None:
            strategy.run(lambda value: optimizer.apply([tf.identity(value)], [weight]), args=(gradient,))

        for gradient in GRADIENTS:
            update(tf.constant(gradient, tf.float32))
        (*_, last) = strategy.experimental_local_results(weight.value)
        return np.asarray(last)

    np.testing.assert_allclose(updated(two_replicas), updated(tf.distribute.get_strategy()), rtol=1e-6)
