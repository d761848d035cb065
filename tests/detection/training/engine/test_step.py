"""An update of all replicas or of none."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.training.engine.step import update_if

STRATEGIES = pytest.mark.parametrize("kind", ["default", "one_device", "mirrored"])


def _strategy(kind: str) -> tf.distribute.Strategy:
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return tf.distribute.get_strategy() if kind == "default" else tf.distribute.OneDeviceStrategy("/cpu:0")


@STRATEGIES
def test_an_optimizer_acts_on_every_replica_or_on_none(kind: str) -> None:
    """Two updates with momentum of which the second is left out, slots and iterations included."""
    strategy = _strategy(kind)
    with strategy.scope():
        weight = keras.Variable([1.0], name="weight")
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build([weight])

    def step(apply: tf.Tensor) -> None:
        count = tf.distribute.get_replica_context().num_replicas_in_sync
        update_if(apply, lambda gradient: optimizer.apply([gradient], [weight]), tf.constant([2.0]) / count)

    run = tf.function(lambda apply: strategy.run(step, args=(apply,)), autograph=False)
    for apply in (True, False, True):
        run(tf.constant(apply))
    copies = strategy.experimental_local_results(weight.value)
    expected = 1 - 0.2 - (0.9 * 0.2 + 0.2)
    np.testing.assert_allclose(copies, [[expected]] * strategy.num_replicas_in_sync, rtol=1e-6)
    assert optimizer.iterations.numpy() == 2
