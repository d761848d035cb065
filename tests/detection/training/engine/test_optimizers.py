"""Optimizers against their formulas in plain numpy and against TF1's own, over steps with a rate that changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.models.detector import variables_by_path
from detection.training.engine.optimizers import make_optimizer

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
    adapts: bool = False,
    gradients: np.ndarray = GRADIENTS,
    rates: np.ndarray = RATES,
) -> list[np.ndarray]:
    """The weight after each update, as TensorFlow runs it."""
    weight = keras.Variable(START, name="kernel", dtype="float32")
    step = tf.Variable(0, dtype=tf.int64)
    optimizer = make_optimizer(
        name,
        learning_rate=lambda: tf.gather(tf.constant(rates, tf.float32), step),
        variables=[weight],
        hyperparameters=hyperparameters,
        legacy_momentum=legacy_momentum,
        weight_decay=weight_decay,
        decayed=[weight] if decays else [],
        adapted=[weight] if adapts else [],
    )
    weights = []
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient, tf.float32)], [weight])
        step.assign_add(1)
        weights.append(weight.numpy())
    return weights


def _sgd(momentum: float, nesterov: bool) -> list[np.ndarray]:
    weight, velocity, weights = START, np.zeros_like(START), []
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        velocity = momentum * velocity - rate * gradient
        weight = weight + (momentum * velocity - rate * gradient if nesterov else velocity)
        weights.append(weight)
    return weights


def _rmsprop(rho: float, momentum: float, epsilon: float, centered: bool) -> list[np.ndarray]:
    weight, weights = START, []
    square, mean, velocity = (np.zeros_like(START) for _ in range(3))
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        square = rho * square + (1 - rho) * gradient**2
        mean = rho * mean + (1 - rho) * gradient
        variance = square - mean**2 if centered else square
        velocity = momentum * velocity + rate * gradient / np.sqrt(variance + epsilon)
        weight = weight - velocity
        weights.append(weight)
    return weights


def _adam(beta_1: float, beta_2: float, epsilon: float, decay: float = 0.0) -> list[np.ndarray]:
    weight, weights = START, []
    first, second = np.zeros_like(START), np.zeros_like(START)
    for count, (rate, gradient) in enumerate(zip(RATES, GRADIENTS, strict=True), 1):
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        weight = weight - rate * decay * weight
        rate_now = rate * np.sqrt(1 - beta_2**count) / (1 - beta_1**count)
        weight = weight - rate_now * first / (np.sqrt(second) + epsilon)
        weights.append(weight)
    return weights


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


MANY = 60
MANY_RATES = 0.02 * np.linspace(1.0, 0.1, MANY)
MANY_GRADIENTS = RANDOM.normal(size=(MANY, *START.shape)) * np.array([1e-3, 1e-2, 1.0])  # small ones feel the start


def _as_tf1(optimizer: tf.compat.v1.train.Optimizer, rate: tf.Variable) -> list[np.ndarray]:
    """The weight after each update of an optimizer of TF1, slots at its own start."""
    weight = tf.Variable(START, dtype=tf.float32)
    weights = []
    for now, gradient in zip(MANY_RATES, MANY_GRADIENTS, strict=True):
        rate.assign(now)
        optimizer.apply_gradients([(tf.constant(gradient, tf.float32), weight)])
        weights.append(weight.numpy())
    return weights


def _many(name: str, hyperparameters: dict[str, Any], **options: Any) -> list[np.ndarray]:
    return _weights(name, hyperparameters, gradients=MANY_GRADIENTS, rates=MANY_RATES, **options)


@pytest.mark.parametrize(
    ("epsilon", "momentum", "centered"),
    [
        pytest.param(1.0, 0.9, False, id="OD API"),
        pytest.param(1e-10, 0.9, False, id="TPU Mask R-CNN"),
        pytest.param(1e-3, 0.9, True, id="centered"),
        pytest.param(1e-10, 0.0, False, id="without momentum"),
    ],
)
def test_rmsprop_runs_as_tf1s_optimizer(epsilon: float, momentum: float, centered: bool) -> None:
    """Its mean square starts at 1; `rho` is the fraction kept, the OD API's `decay`, which its TF2 code mislaid."""
    rate = tf.Variable(0.0)
    theirs = _as_tf1(
        tf.compat.v1.train.RMSPropOptimizer(
            lambda: rate, decay=0.9, momentum=momentum, epsilon=epsilon, centered=centered
        ),
        rate,
    )
    hyperparameters = {"rho": 0.9, "momentum": momentum, "epsilon": epsilon, "centered": centered}
    ours = _many("rmsprop", {**hyperparameters, "initial_accumulator_value": 1.0})
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)
    assert np.abs(np.subtract(_many("rmsprop", hyperparameters), theirs)).max() > 1e-3, "from 0 it is Keras'"


@pytest.mark.parametrize(
    ("epsilon", "momentum", "steps", "factor"),
    [(1.0, 0.9, 1, 1.378), (1e-3, 0.9, 1, 26.85), (1e-3, 0.9, 30, 9.52), (1e-10, 0.0, 1, 60.0)],
)
def test_the_start_of_the_mean_square_decides_the_first_steps(
    epsilon: float, momentum: float, steps: int, factor: float
) -> None:
    """After one, by hand: sqrt((0.9 + 0.1 * 0.05**2 + epsilon) / (0.1 * 0.05**2 + epsilon)), for a gradient of 0.05."""
    steady: dict[str, Any] = {"gradients": np.full((steps, *START.shape), 0.05), "rates": np.full(steps, 1e-3)}

    def moved(start: float) -> float:
        hyperparameters = {"rho": 0.9, "momentum": momentum, "epsilon": epsilon, "initial_accumulator_value": start}
        return float((START - _weights("rmsprop", hyperparameters, **steady)[-1]).mean())

    np.testing.assert_allclose(moved(0.0) / moved(1.0), factor, rtol=2e-3)


@pytest.mark.parametrize(
    ("name", "hyperparameters", "theirs"),
    [
        ("adadelta", {"rho": 0.95, "epsilon": 1e-8}, tf.compat.v1.train.AdadeltaOptimizer),
        ("adagrad", {"initial_accumulator_value": 0.1, "epsilon": 0.0}, tf.compat.v1.train.AdagradOptimizer),
        ("adam", {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}, tf.compat.v1.train.AdamOptimizer),
    ],
)
def test_others_run_as_tf1s_optimizers_with_their_defaults(
    name: str, hyperparameters: dict[str, Any], theirs: Callable[..., Any]
) -> None:
    rate = tf.Variable(0.0)
    ours = _many(name, hyperparameters)
    np.testing.assert_allclose(ours, _as_tf1(theirs(lambda: rate), rate), rtol=2e-6, atol=1e-6)
    assert np.abs(ours[-1] - START).max() > 1e-5


LARS = {
    "momentum": 0.9,
    "nesterov": False,
    "lars_coefficient": 0.02,
    "lars_weight_decay": 0.1,
    "lars_decays_weights": False,
    "epsilon": 0.0,
}
WITH_A_ZERO = np.where(np.arange(len(RATES))[:, None, None] == 2, 0.0, GRADIENTS)  # where the ratio is 1


def _trust_ratio(weight: np.ndarray, gradient: np.ndarray) -> float:
    """You et al. 2017, equation 6."""
    norm, gradient_norm = np.sqrt((weight**2).sum()), np.sqrt((gradient**2).sum())
    return 0.02 * norm / (gradient_norm + 0.1 * norm) if norm > 0 and gradient_norm > 0 else 1.0


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_runs_as_tf1s_contrib_optimizer(nesterov: bool, decays: bool) -> None:
    """Its source in numpy: momentum gathers scaled steps, of gradients that the decay is added to after the ratio."""
    weight, velocity, expected = START, np.zeros_like(START), []
    for rate, gradient in zip(RATES, WITH_A_ZERO, strict=True):
        step = rate * _trust_ratio(weight, gradient) * (gradient + (0.1 * weight if decays else 0.0))
        velocity = 0.9 * velocity + step
        weight = weight - (step + 0.9 * velocity if nesterov else velocity)
        expected.append(weight)
    keys = LARS | {"nesterov": nesterov, "lars_decays_weights": decays}
    ours = _weights("lars", keys, adapts=True, gradients=WITH_A_ZERO)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_legacy_lars_gathers_gradients() -> None:
    """As the first version of TF1's optimizer, which called the kernel of momentum at the scaled rate."""
    weight, momentum, expected = START, np.zeros_like(START), []
    for rate, gradient in zip(RATES, WITH_A_ZERO, strict=True):
        ratio, momentum = _trust_ratio(weight, gradient), 0.9 * momentum + gradient
        weight = weight - rate * ratio * momentum
        expected.append(weight)
    ours = _weights("lars", LARS, legacy_momentum=True, adapts=True, gradients=WITH_A_ZERO)
    np.testing.assert_allclose(ours, expected, rtol=2e-6, atol=1e-6)
    assert not np.allclose(ours, _weights("lars", LARS, adapts=True, gradients=WITH_A_ZERO), atol=1e-3)


def test_lars_adapts_and_decays_only_what_it_is_told_to() -> None:
    decaying = LARS | {"lars_decays_weights": True}
    np.testing.assert_allclose(_weights("lars", decaying), _sgd(momentum=0.9, nesterov=False), rtol=1e-5, atol=5e-6)


def test_lars_takes_the_plain_rate_for_weights_at_zero() -> None:
    weight = keras.Variable(np.zeros([2]), name="kernel", dtype="float32")
    optimizer = make_optimizer(
        "lars", learning_rate=lambda: tf.constant(0.5), variables=[weight], hyperparameters=LARS, adapted=[weight]
    )
    optimizer.apply([tf.constant([3.0, -4.0])], [weight])
    np.testing.assert_allclose(weight.numpy(), [-1.5, 2.0])


@pytest.mark.parametrize("nesterov", [False, True])
def test_legacy_momentum_runs_as_tf1s_kernel(nesterov: bool) -> None:
    variables = [tf.Variable(start, dtype=tf.float32) for start in (START, 0 * START)]
    theirs = []
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        tf.raw_ops.ResourceApplyMomentum(
            var=variables[0].handle,
            accum=variables[1].handle,
            lr=tf.constant(rate, tf.float32),
            grad=tf.constant(gradient, tf.float32),
            momentum=0.9,
            use_nesterov=nesterov,
        )
        theirs.append(variables[0].numpy())
    hyperparameters: dict[str, Any] = {"momentum": 0.9, "nesterov": nesterov}
    ours = _weights("sgd", hyperparameters, legacy_momentum=True)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)
    assert not np.allclose(ours, _sgd(**hyperparameters), atol=1e-3)


def test_legacy_momentum_of_zero_is_plain_descent() -> None:
    hyperparameters: dict[str, Any] = {"momentum": 0.0, "nesterov": False}
    ours = _weights("sgd", hyperparameters, legacy_momentum=True)
    np.testing.assert_allclose(ours, _sgd(**hyperparameters), rtol=1e-5, atol=5e-6)


OF_EACH: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9},
    "rmsprop": {"momentum": 0.9, "initial_accumulator_value": 1.0},
    "adam": {},
    "adamw": {},
    "adadelta": {},
    "adagrad": {},
    "lars": LARS,
}


def _updater(
    name: str, *, compile_it: bool
) -> tuple[keras.Variable, tf.train.Checkpoint, Callable[[np.ndarray], None]]:
    weight = keras.Variable(START, name="kernel", dtype="float32")
    optimizer = make_optimizer(
        name,
        learning_rate=lambda: tf.constant(0.1),
        variables=[weight],
        hyperparameters=OF_EACH[name],
        adapted=[weight] if name == "lars" else [],
    )
    apply = tf.function(lambda gradient: optimizer.apply([gradient], [weight]), jit_compile=compile_it)
    checkpoint = tf.train.Checkpoint(weight=weight.value, slots=variables_by_path(optimizer.variables))
    return weight, checkpoint, lambda gradient: apply(tf.constant(gradient, tf.float32))


@pytest.mark.parametrize("name", OF_EACH)
def test_a_restored_optimizer_goes_on_with_the_same_bits_and_xla_gives_the_same(name: str, tmp_path: Path) -> None:
    weight, checkpoint, update = _updater(name, compile_it=False)
    update(GRADIENTS[0])
    path = checkpoint.save(str(tmp_path / "ckpt"))
    restored, of_restored, go_on = _updater(name, compile_it=False)
    of_restored.restore(path).assert_consumed()
    compiled, _, update_compiled = _updater(name, compile_it=True)
    update_compiled(GRADIENTS[0])
    for step in (update, go_on, update_compiled):
        step(GRADIENTS[1])
    assert not np.allclose(weight.numpy(), START, atol=1e-5)
    np.testing.assert_array_equal(restored.numpy(), weight.numpy())
    np.testing.assert_allclose(compiled.numpy(), weight.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OF_EACH)
def test_gradients_are_taken_as_summed_over_replicas(name: str, two_replicas: tf.distribute.Strategy) -> None:
    """Each replica hands over the whole batch's gradient; summed once more it would count twice."""

    def updated(strategy: tf.distribute.Strategy) -> np.ndarray:
        with strategy.scope():
            weight = keras.Variable(START, name="kernel", dtype="float32")
            # An epsilon so large that the adaptive ones feel the gradient's size; lars does by its weight decay.
            more = OF_EACH[name] if name in ("sgd", "lars") else OF_EACH[name] | {"epsilon": 1.0}
            optimizer = make_optimizer(
                name,
                learning_rate=lambda: tf.constant(0.1),
                variables=[weight],
                hyperparameters=more,
                adapted=[weight] if name == "lars" else [],
            )

        @tf.function
        def update(gradient: tf.Tensor) -> None:
            strategy.run(lambda value: optimizer.apply([tf.identity(value)], [weight]), args=(gradient,))

        for gradient in GRADIENTS:
            update(tf.constant(gradient, tf.float32))
        (*_, last) = strategy.experimental_local_results(weight.value)
        return np.asarray(last)

    np.testing.assert_allclose(updated(two_replicas), updated(tf.distribute.get_strategy()), rtol=1e-6)
