import keras
import numpy as np
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization
from detection.models.layers.drop_connect import drop_connect
from detection.models.layers.recompute import recomputed
from detection.ops.replicas import own_slice, sum_over_replicas


class _Blocks(keras.layers.Layer):
    """Residual blocks with batch norm and drop-connect."""

    def __init__(self, recompute: bool, count: int = 2, filters: int = 4) -> None:
        super().__init__(name="blocks")
        self._recompute = recompute
        self.convs = [keras.layers.Conv2D(filters, 3, padding="same", name=f"conv{n}") for n in range(count)]
        self.norms = [BatchNormalization(name=f"norm{n}", momentum=0.5) for n in range(count)]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            conv.build((None, None, None, filters))
            norm.build((None, None, None, filters))
        self.built = True

    def call(self, inputs: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):

            def block(features: tf.Tensor, conv=conv, norm=norm, number=number) -> tf.Tensor:  # type: ignore[no-untyped-def]
                branch = tf.nn.relu(norm(conv(features), training=True))
                return features + drop_connect(branch, survival=0.7, seed=seed, index=number)

            inputs = recomputed(block, inputs, enabled=self._recompute)
        return inputs


def _blocks(recompute: bool) -> _Blocks:
    keras.utils.set_random_seed(0)
    return _Blocks(recompute)


def _gradients(layer: _Blocks, images: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(layer(images, tf.constant([1, 2]))))
    return tape.gradient(loss, [variable.value for variable in layer.trainable_variables])


def _images(batch: int) -> tf.Tensor:
    return tf.random.stateless_normal([batch, 8, 8, 4], [3, 4])


def _assert_equal_steps(ours: _Blocks, theirs: _Blocks, gradients: list[tf.Tensor]) -> None:
    for one, other in zip(gradients, _gradients(theirs, _images(8)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)
    for one, other in zip(ours.non_trainable_variables, theirs.non_trainable_variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_and_statistics_are_the_same_and_each_pass_runs() -> None:
    passes = 0

    def counted(inputs: tf.Tensor) -> tf.Tensor:
        nonlocal passes
        passes += 1
        return tf.tanh(inputs)

    x = tf.constant([0.5, -1.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = recomputed(counted, x)
    assert passes == 1
    np.testing.assert_allclose(tape.gradient(outputs, x), 1.0 - np.tanh([0.5, -1.0]) ** 2, rtol=1e-6)
    assert passes == 2
    assert recomputed(counted, x, enabled=False).shape == (2,)

    for compiled in (False, True):
        ours, theirs = _blocks(True), _blocks(False)
        step = tf.function(lambda images, layer=ours: _gradients(layer, images), jit_compile=compiled)
        _assert_equal_steps(ours, theirs, step(_images(8)))


def test_lists_of_tensors_may_be_recomputed() -> None:
    first, second = tf.constant(2.0), tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch([first, second])
        outputs = recomputed(lambda pair: [pair[0] * pair[1], pair[0] + pair[1]], [first, second])
        total = outputs[0] + 10.0 * outputs[1]
    assert [float(gradient) for gradient in tape.gradient(total, [first, second])] == [13.0, 12.0]


def test_two_replicas_equal_one(two_replicas: tf.distribute.Strategy) -> None:
    theirs = _blocks(False)
    with two_replicas.scope():
        ours = _blocks(True)

    def replica_step() -> list[tf.Tensor]:
        return [sum_over_replicas(gradient) for gradient in _gradients(ours, own_slice(_images(8)))]

    totals = tf.function(lambda: two_replicas.run(replica_step))()
    gradients = [two_replicas.experimental_local_results(total)[0] for total in totals]
    _assert_equal_steps(ours, theirs, gradients)
