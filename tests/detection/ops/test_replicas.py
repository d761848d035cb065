import numpy as np
import tensorflow as tf

from detection.ops.replicas import micro_batch, own_slice, replica_count, replica_id, slice_count, sum_over_replicas


def test_without_a_strategy_there_is_one() -> None:
    assert replica_count() == 1
    assert replica_id() == 0
    assert sum_over_replicas(tf.constant(3.0)) == 3.0
    np.testing.assert_array_equal(own_slice(tf.range(6)), range(6))


def test_across_replicas_a_sum_is_the_identity(two_replicas: tf.distribute.Strategy) -> None:
    with two_replicas.scope():
        assert replica_count() == 1
        assert replica_id() == 0
        assert sum_over_replicas(tf.constant(3.0)) == 3.0


def test_two_replicas_sum_values_and_gradients(two_replicas: tf.distribute.Strategy) -> None:
    def replica() -> tuple[tf.Tensor, tf.Tensor, int]:
        value = tf.cast(replica_id(), tf.float32) + 2.0
        with tf.GradientTape() as tape:
            tape.watch(value)
            # The total loss is 2 * total^2, so each replica's gradient is 4 * total.
            loss = sum_over_replicas(value) ** 2
        return sum_over_replicas(value), tape.gradient(loss, value), replica_count()

    total, gradient, count = tf.function(lambda: two_replicas.run(replica))()
    assert [float(x) for x in two_replicas.experimental_local_results(total)] == [5.0, 5.0]
    assert [float(x) for x in two_replicas.experimental_local_results(gradient)] == [20.0, 20.0]
    assert count == 2


def test_tensors_given_together_are_summed_each(two_replicas: tf.distribute.Strategy) -> None:
    def replica() -> dict[str, list[tf.Tensor]]:
        number = tf.cast(replica_id(), tf.float32)
        return sum_over_replicas({"a": [number, tf.fill([2, 3], number + 1.0)], "b": [tf.zeros([0])]})

    summed = tf.function(lambda: two_replicas.run(replica))()
    for one in range(2):
        scalar, matrix = (two_replicas.experimental_local_results(value)[one].numpy() for value in summed["a"])
        assert scalar == 1.0
        np.testing.assert_array_equal(matrix, np.full([2, 3], 3.0))
        assert two_replicas.experimental_local_results(summed["b"][0])[one].shape == (0,)


def test_the_slices_of_replicas_are_the_whole_in_order(two_replicas: tf.distribute.Strategy) -> None:
    whole = tf.reshape(tf.range(24), [6, 2, 2])
    for xla in (False, True):
        compiled = tf.function(lambda: own_slice(whole), jit_compile=xla)
        slices = two_replicas.experimental_local_results(tf.function(lambda: two_replicas.run(compiled))())  # noqa: B023
        np.testing.assert_array_equal(np.concatenate(slices), whole)


def test_the_slices_of_micro_batches_are_the_whole_in_order(two_replicas: tf.distribute.Strategy) -> None:
    whole = tf.range(12)

    def replica(index: tf.Tensor) -> tf.Tensor:
        with micro_batch(index, 3):
            assert slice_count() == 6
            return own_slice(whole)

    run = tf.function(lambda index: two_replicas.run(replica, args=(index,)))
    parts = [two_replicas.experimental_local_results(run(tf.constant(index))) for index in range(3)]
    np.testing.assert_array_equal(np.concatenate([part for both in parts for part in both]), whole)
    assert slice_count() == 1
