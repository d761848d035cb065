"""Schedules, averages, decay: against the oracle's and hand-computed numbers."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.training.ema import ExponentialMovingAverage, dynamic_decay
from detection.training.freezing import trainable_variables
from detection.training.optimizers import is_kernel, l2_loss, make_optimizer
from detection.training.schedules import constant, cosine
from schemas.errors import ConfigError


def test_cosine_is_measured_from_the_end_of_warmup(oracles: dict) -> None:
    oracle = oracles["lr.successor.cosine_short"]
    got = [
        float(cosine(tf.constant(step), peak=0.08, total_steps=1000, warmup_steps=100, warmup_start=0.008))
        for step in oracle["inputs"]["steps"]
    ]
    np.testing.assert_allclose(got, oracle["expected"], atol=oracle["tolerance"])


def test_cosine_never_rises_after_warmup_nor_past_its_end() -> None:
    rates = [
        float(cosine(tf.constant(step), peak=1.0, total_steps=50, warmup_steps=10, warmup_start=0.1))
        for step in range(80)
    ]
    assert np.argmax(rates) == 10
    assert (np.diff(rates[10:]) <= 0).all()
    assert rates[50:] == [0.0] * 30


def test_constant_rises_then_stays() -> None:
    rates = [float(constant(tf.constant(s), peak=0.5, warmup_steps=4, warmup_start=0.1)) for s in range(7)]
    np.testing.assert_allclose(rates, [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5], rtol=1e-6)
    assert float(constant(tf.constant(0), peak=0.5, warmup_steps=0, warmup_start=0.1)) == 0.5


def test_dynamic_decay_equals_the_original(oracles: dict) -> None:
    oracle = oracles["ema.dynamic_decay"]
    got = [float(dynamic_decay(oracle["inputs"]["d"], tf.constant(t))) for t in oracle["inputs"]["t"]]
    np.testing.assert_allclose(got, oracle["expected"], rtol=1e-6)


def test_the_average_follows_as_in_the_original(oracles: dict) -> None:
    oracle = oracles["ema.sequence"]
    weight = tf.Variable(1.0)
    average = ExponentialMovingAverage({"w": weight}, decay=0.9998, dynamic=True)
    got = []
    for step in range(5):
        weight.assign_sub(0.1)
        average.update(tf.constant(step))
        got.append(float(average.shadows["w"]))
    np.testing.assert_allclose(got, oracle["expected"], atol=oracle["tolerance"])


def test_averages_swap_in_and_back_without_loss_even_after_an_error() -> None:
    weight = tf.Variable([0.1, 0.7])
    average = ExponentialMovingAverage({"w": weight}, decay=0.5, dynamic=False)
    weight.assign([3.3, -0.7])
    average.update(tf.constant(0))

    def fail_inside() -> None:
        with average.averaged():
            np.testing.assert_allclose(weight.numpy(), [1.7, 0.0], atol=1e-6)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    np.testing.assert_array_equal(weight.numpy(), np.array([3.3, -0.7], np.float32))


class _Net(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="net")
        self.stem = keras.layers.Dense(2, name="stem")
        self.head = keras.layers.Dense(1, name="head")
        self.build((None, 3))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.stem.build(input_shape)
        self.head.build((None, 2))
        self.built = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.head(self.stem(inputs))


def test_l2_counts_kernels_only(oracles: dict) -> None:
    net = _Net()
    net.stem.kernel.assign(tf.zeros([3, 2]))
    net.head.kernel.assign([[3.0], [4.0]])
    net.head.bias.assign([100.0])
    oracle = oracles["loss.l2"]
    np.testing.assert_allclose(l2_loss(net.variables, oracle["inputs"]["weight_decay"]), oracle["expected"], rtol=1e-6)
    assert [is_kernel(path) for path in ("a/depthwise_kernel", "a/bias", "a/gamma")] == [True, False, False]


def test_freezing_takes_out_what_matches_from_the_start() -> None:
    left = trainable_variables(_Net(), [".*stem"])
    assert {variable.path.split("/")[-2] for variable in left} == {"head"}


@pytest.mark.parametrize(
    ("freeze", "message"),
    [(["backbone"], "matches no variable"), (["("], "no regular expression"), ([".*"], "leaves nothing to train")],
)
def test_a_freeze_that_cannot_be_is_explained(freeze: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainable_variables(_Net(), freeze)


def _one_update(name: str, *, nesterov: bool = False, weight_decay: float = 0.0) -> float:
    """The weight after one step from 1.0 with gradient 1.0, as TensorFlow runs it."""
    weight = keras.Variable([1.0], name="kernel")
    optimizer = make_optimizer(
        name,
        learning_rate=lambda step: tf.constant(0.1),
        momentum=0.9,
        nesterov=nesterov,
        weight_decay=weight_decay,
        variables=[weight],
        loss_scaling=False,
    )
    optimizer.apply([tf.constant([1.0])], [weight])
    return float(weight.numpy()[0])


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("sgd", {}, 0.9),
        ("sgd", {"nesterov": True}, 1.0 - 0.1 * 1.9),
        ("adam", {}, 0.9),
        ("adamw", {"weight_decay": 0.5}, 1.0 - 0.1 * 0.5 - 0.1),
    ],
)
def test_one_update_of_each_optimizer(name: str, changes: dict[str, Any], expected: float) -> None:
    assert _one_update(name, **changes) == pytest.approx(expected, abs=1e-5)
