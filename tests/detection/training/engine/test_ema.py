"""Moving averages: against the oracle's and hand-computed numbers, on one replica and on two."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.training.engine.ema import ExponentialMovingAverage, dynamic_decay


def test_dynamic_decay_equals_the_original(oracles: dict) -> None:
    oracle = oracles["ema.dynamic_decay"]
    got = [float(dynamic_decay(oracle["inputs"]["d"], tf.constant(t))) for t in oracle["inputs"]["t"]]
    np.testing.assert_allclose(got, oracle["expected"], rtol=1e-6)


def test_dynamic_decay_comes_to_rest_where_the_originals_did() -> None:
    """(1 + t) / (10 + t) passes 0.9998 at step 44,990, and the OD API's 0.9999 at 89,990."""
    for decay, last in ((0.9998, 44_990), (0.9999, 89_990)):
        before, after = (float(dynamic_decay(decay, tf.constant(last + change))) for change in (-1000, 1000))
        assert before < after == np.float32(decay)


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


def test_a_constant_decay_is_the_textbooks() -> None:
    values = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    weight = tf.Variable(values[0])
    average = ExponentialMovingAverage({"w": weight}, decay=0.75, dynamic=False)
    expected = values[0].astype(np.float64)
    for step, value in enumerate(values):
        weight.assign(value)
        average.update(tf.constant(step))
        expected = 0.75 * expected + 0.25 * value
    np.testing.assert_allclose(average.shadows["w"], expected, atol=1e-6)


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
    np.testing.assert_allclose(average.shadows["w"], [1.7, 0.0], atol=1e-6)


def test_shadows_of_lower_precision_are_float32_and_lose_nothing() -> None:
    """In bfloat16 a decay of 0.9998 would be 1, and the shadow would never move."""
    weight = tf.Variable(tf.zeros([2], tf.bfloat16))
    average = ExponentialMovingAverage({"w": weight}, decay=0.9998, dynamic=False)
    weight.assign([1.0, -3.0])
    for step in range(100):
        average.update(tf.constant(step))
    share = 1 - 0.9998**100
    assert average.shadows["w"].dtype == tf.float32
    np.testing.assert_allclose(average.shadows["w"], [share, -3 * share], rtol=1e-3)
    with average.averaged():
        assert weight.dtype == tf.bfloat16
        np.testing.assert_allclose(tf.cast(weight, tf.float32), [share, -3 * share], rtol=1e-2)
    np.testing.assert_array_equal(tf.cast(weight, tf.float32), [1.0, -3.0])


def test_every_replica_keeps_swaps_and_saves_the_same_average(
    two_replicas: tf.distribute.Strategy, tmp_path: Path
) -> None:
    with two_replicas.scope():
        weight = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.MEAN)
        average = ExponentialMovingAverage({"w": weight}, decay=0.5, dynamic=False)

    def step() -> None:
        weight.assign_add([2.0, 4.0])
        average.update(tf.constant(0))

    tf.function(lambda: two_replicas.run(step), autograph=False)()

    def copies(variable: tf.Variable) -> list[np.ndarray]:
        return [copy.numpy() for copy in two_replicas.experimental_local_results(variable)]

    np.testing.assert_array_equal(copies(average.shadows["w"]), [[2.0, 4.0]] * 2)
    with average.averaged():
        np.testing.assert_array_equal(copies(weight), [[2.0, 4.0]] * 2)
    np.testing.assert_array_equal(copies(weight), [[3.0, 6.0]] * 2)

    path = tf.train.Checkpoint(**average.shadows).save(str(tmp_path / "ckpt"))
    with two_replicas.scope():
        restored = ExponentialMovingAverage({"w": weight}, decay=0.5, dynamic=False)
    tf.train.Checkpoint(**restored.shadows).restore(path).assert_consumed()
    np.testing.assert_array_equal(copies(restored.shadows["w"]), [[2.0, 4.0]] * 2)
