"""EMA weights: against the oracle's and hand-computed numbers, on one replica and on two."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from detection.models.registry import dtype_policy
from detection.training.engine.state import ExponentialMovingAverage, LossScale, dynamic_decay


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
    ema = ExponentialMovingAverage({"w": weight}, decay=0.9998, dynamic=True)
    got = []
    for step in range(5):
        weight.assign_sub(0.1)
        ema.update(tf.constant(step))
        got.append(float(ema.weights["w"]))
    np.testing.assert_allclose(got, oracle["expected"], atol=oracle["tolerance"])


def test_a_constant_decay_is_the_textbooks() -> None:
    values = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    weight = tf.Variable(values[0])
    ema = ExponentialMovingAverage({"w": weight}, decay=0.75, dynamic=False)
    expected = values[0].astype(np.float64)
    for step, value in enumerate(values):
        weight.assign(value)
        ema.update(tf.constant(step))
        expected = 0.75 * expected + 0.25 * value
    np.testing.assert_allclose(ema.weights["w"], expected, atol=1e-6)


def test_ema_weights_of_lower_precision_are_float32_and_lose_nothing() -> None:
    """In bfloat16 a decay of 0.9998 would be 1, and the EMA weight would never move."""
    weight = tf.Variable(tf.zeros([2], tf.bfloat16))
    ema = ExponentialMovingAverage({"w": weight}, decay=0.9998, dynamic=False)
    weight.assign([1.0, -3.0])
    for step in range(100):
        ema.update(tf.constant(step))
    fraction = 1 - 0.9998**100
    assert ema.weights["w"].dtype == tf.float32
    np.testing.assert_allclose(ema.weights["w"], [fraction, -3 * fraction], rtol=1e-3)


def test_every_replica_keeps_and_saves_the_same_average(two_replicas: tf.distribute.Strategy, tmp_path: Path) -> None:
    with two_replicas.scope():
        weight = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.MEAN)
        ema = ExponentialMovingAverage({"w": weight}, decay=0.5, dynamic=False)

    def step() -> None:
        weight.assign_add([2.0, 4.0])
        ema.update(tf.constant(0))

    tf.function(lambda: two_replicas.run(step), autograph=False)()

    def copies(variable: tf.Variable) -> list[np.ndarray]:
        return [copy.numpy() for copy in two_replicas.experimental_local_results(variable)]

    np.testing.assert_array_equal(copies(ema.weights["w"]), [[2.0, 4.0]] * 2)

    path = tf.train.Checkpoint(**ema.weights).save(str(tmp_path / "ckpt"))
    with two_replicas.scope():
        restored = ExponentialMovingAverage({"w": weight}, decay=0.5, dynamic=False)
    tf.train.Checkpoint(**restored.weights).restore(path).assert_consumed()
    np.testing.assert_array_equal(copies(restored.weights["w"]), [[2.0, 4.0]] * 2)


def test_bfloat16_is_short_for_the_mixed_policy() -> None:
    assert [dtype_policy(name) for name in ("bfloat16", "mixed_bfloat16", "mixed_float16", "float32")] == [
        "mixed_bfloat16",
        "mixed_bfloat16",
        "mixed_float16",
        "float32",
    ]


def _scales(scale: LossScale, finite: list[bool]) -> list[float]:
    scales = []
    for step in finite:
        scale.update(tf.constant(step))
        scales.append(float(scale.scale))
    return scales


def test_a_dynamic_scale_moves_as_keras_does() -> None:
    finite = [bool(bit) for bit in np.random.default_rng(3).random(60) < 0.8]
    weight = keras.Variable([1.0])
    reference = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0), 2.0**15, dynamic_growth_steps=3)
    expected = []
    for step in finite:
        reference.apply([tf.constant([1.0 if step else np.inf])], [weight])
        expected.append(float(reference.dynamic_scale))
    scale = LossScale(2.0**15, growth_steps=3)
    assert _scales(scale, finite) == expected
    assert len(set(expected)) > 5
    assert int(scale.skipped_steps) == finite.count(False)


def test_a_dynamic_scale_excuses_overflows_until_it_is_1() -> None:
    scale = LossScale(4.0, growth_steps=2)
    excused = []
    for _ in range(4):
        excused.append(bool(scale.may_overflow()))
        scale.update(tf.constant(False))
    assert excused == [True, True, False, False]
    assert float(scale.scale) == 1.0
    assert _scales(scale, [True, True, True, True]) == [1.0, 2.0, 2.0, 4.0]
    assert _scales(LossScale(0.5, growth_steps=2), [False]) == [0.5]


def test_a_scale_does_not_grow_to_infinity() -> None:
    scale = LossScale(2.0**126, growth_steps=1)
    assert _scales(scale, [True, True, True]) == [2.0**127] * 3


def test_a_fixed_scale_never_moves_skips_nor_excuses() -> None:
    scale = LossScale(1024.0, growth_steps=None)
    assert not bool(scale.may_overflow())
    assert _scales(scale, [True, False, False]) == [1024.0] * 3
    assert int(scale.skipped_steps) == 0


def test_every_replica_holds_the_same_scale(two_replicas: tf.distribute.Strategy) -> None:
    with two_replicas.scope():
        scale = LossScale(8.0, growth_steps=2)
    run = tf.function(lambda finite: two_replicas.run(scale.update, args=(finite,)), autograph=False)
    for finite in (False, True, True, True):
        run(tf.constant(finite))
    for variable, expected in ((scale.scale, 8.0), (scale.good_steps, 1), (scale.skipped_steps, 1)):
        assert [value.numpy() for value in two_replicas.experimental_local_results(variable)] == [expected] * 2


def test_it_compiles_under_xla() -> None:
    scale = LossScale(8.0, growth_steps=2)
    update = tf.function(scale.update, jit_compile=True, autograph=False)
    for finite in (False, True, True):
        update(tf.constant(finite))
    assert [float(scale.scale), int(scale.skipped_steps)] == [8.0, 1]
