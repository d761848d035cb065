from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization, synchronize_batch_norm

SHAPE = (4, 3, 5, 2)


@pytest.fixture
def inputs() -> np.ndarray:
    # A mean far from 0 shows cancellation.
    return np.random.default_rng(0).normal(30.0, 2.0, SHAPE).astype(np.float32)


def _layer(**options: Any) -> BatchNormalization:
    layer = BatchNormalization(momentum=0.9, epsilon=1e-3, **options)
    layer.build(SHAPE)
    layer.gamma.assign([1.5, 0.5])
    layer.beta.assign([0.1, -0.2])
    return layer


def test_training_normalises_with_batch_statistics_and_updates_the_moving_ones(inputs: np.ndarray) -> None:
    layer = _layer()
    outputs = layer(inputs, training=True).numpy()
    mean, variance = inputs.mean((0, 1, 2)), inputs.var((0, 1, 2))
    count = inputs.size // SHAPE[-1]
    expected = (inputs - mean) / np.sqrt(variance + 1e-3) * [1.5, 0.5] + [0.1, -0.2]
    np.testing.assert_allclose(outputs, expected, atol=2e-5)
    np.testing.assert_allclose(layer.moving_mean.numpy(), 0.1 * mean, rtol=1e-5)
    corrected = variance * count / (count - 1)
    np.testing.assert_allclose(layer.moving_variance.numpy(), 0.9 + 0.1 * corrected, rtol=1e-4)


def test_inference_equals_the_formula_and_keras(inputs: np.ndarray) -> None:
    layer, theirs = _layer(), keras.layers.BatchNormalization(epsilon=1e-3)
    layer.moving_mean.assign([29.0, 31.0])
    layer.moving_variance.assign([4.0, 3.0])
    theirs.build(SHAPE)
    theirs.set_weights(layer.get_weights())
    np.testing.assert_allclose(layer(inputs), theirs(inputs, training=False), atol=1e-5)
    np.testing.assert_array_equal(layer.moving_mean.numpy(), [29.0, 31.0])


def test_a_frozen_layer_uses_and_keeps_the_moving_statistics(inputs: np.ndarray) -> None:
    layer = _layer()
    layer.trainable = False
    np.testing.assert_array_equal(layer(inputs, training=True), layer(inputs, training=False))
    np.testing.assert_array_equal(layer.moving_mean.numpy(), [0.0, 0.0])


def test_two_replicas_equal_one_on_the_whole_batch(inputs: np.ndarray, two_replicas: tf.distribute.Strategy) -> None:
    weights = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)

    def step(layer: BatchNormalization, batch: tf.Tensor, factors: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(batch)
            outputs = layer(batch, training=True)
            loss = tf.reduce_sum(outputs * factors)
        gradients = tape.gradient(loss, [batch, layer.gamma.value, layer.beta.value])
        return outputs, *gradients

    one = _layer()
    expected = step(one, tf.constant(inputs), tf.constant(weights))

    with two_replicas.scope():
        two = _layer()

    def distribute(values: np.ndarray) -> Any:
        return two_replicas.experimental_distribute_values_from_function(
            lambda context: tf.constant(np.split(values, 2)[context.replica_id_in_sync_group])
        )

    run = tf.function(lambda *args: two_replicas.run(lambda a, b: step(two, a, b), args=args))
    results = [two_replicas.experimental_local_results(value) for value in run(distribute(inputs), distribute(weights))]
    np.testing.assert_allclose(np.concatenate(results[0]), expected[0], atol=1e-4)
    np.testing.assert_allclose(np.concatenate(results[1]), expected[1], atol=2e-4)
    np.testing.assert_allclose(sum(results[2]), expected[2], rtol=1e-4)
    np.testing.assert_allclose(sum(results[3]), expected[3], rtol=1e-4)
    for ours, theirs in ((two.moving_mean, one.moving_mean), (two.moving_variance, one.moving_variance)):
        for copy in two_replicas.experimental_local_results(ours.value):
            np.testing.assert_allclose(copy, theirs.numpy(), rtol=1e-5)


def test_switched_off_each_replica_normalises_its_own_examples(
    inputs: np.ndarray, two_replicas: tf.distribute.Strategy
) -> None:
    with two_replicas.scope():
        layer = _layer()
        synchronize_batch_norm(keras.Sequential([layer]), False)
    halves = np.split(inputs, 2)
    values = two_replicas.experimental_distribute_values_from_function(
        lambda context: tf.constant(halves[context.replica_id_in_sync_group])
    )
    run = tf.function(lambda batch: two_replicas.run(lambda part: layer(part, training=True), args=(batch,)))
    outputs = two_replicas.experimental_local_results(run(values))
    alone = [_layer(), _layer()]
    for own, half, reference in zip(outputs, halves, alone, strict=True):
        np.testing.assert_allclose(own, reference(half, training=True), atol=1e-4)
    for name in ("moving_mean", "moving_variance"):
        expected = np.mean([getattr(reference, name).numpy() for reference in alone], axis=0)
        for copy in two_replicas.experimental_local_results(getattr(layer, name).value):
            np.testing.assert_allclose(copy, expected, rtol=1e-5)


def test_the_switch_goes_both_ways_and_leaves_keras_layers_alone() -> None:
    ours, theirs = _layer(), keras.layers.BatchNormalization(synchronized=True)
    model = keras.Sequential([keras.Sequential([ours]), theirs])
    for synchronized in (False, True):
        synchronize_batch_norm(model, synchronized)
        assert ours.synchronized is synchronized
        assert theirs.synchronized is True


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("training", [False, True])
def test_statistics_stay_float32_under_mixed_precision(inputs: np.ndarray, policy: str, training: bool) -> None:
    layer, reference = _layer(dtype=policy), _layer()
    batch = tf.cast(tf.cast(inputs, layer.compute_dtype), tf.float32)
    outputs = layer(batch, training=training)
    assert outputs.dtype == layer.compute_dtype
    assert {variable.dtype for variable in layer.variables} == {"float32"}
    np.testing.assert_allclose(tf.cast(outputs, tf.float32), reference(batch, training=training), rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(layer.moving_mean.numpy(), reference.moving_mean.numpy(), rtol=1e-5)
