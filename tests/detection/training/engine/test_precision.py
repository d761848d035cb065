"""The loss scale: against Keras' own, on two replicas, and where it departs from Keras."""

import keras
import numpy as np
import tensorflow as tf

from detection.models.registry import dtype_policy
from detection.training.engine.precision import LossScale


def test_bfloat16_is_short_for_the_mixed_policy() -> None:
    assert [dtype_policy(name) for name in ("bfloat16", "mixed_bfloat16", "mixed_float16", "float32")] == [
        "mixed_bfloat16",
        "mixed_bfloat16",
        "mixed_float16",
        "float32",
    ]


def _scales(scale: LossScale, finite: list[bool]) -> list[float]:
    found = []
    for step in finite:
        scale.update(tf.constant(step))
        found.append(float(scale.scale))
    return found


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
        excused.append(bool(scale.excuses()))
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
    assert not bool(scale.excuses())
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
