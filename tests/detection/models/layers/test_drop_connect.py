import numpy as np
import tensorflow as tf

from detection.models.layers.drop_connect import drop_connect


def _kept(seed: list[int], index: int = 3) -> np.ndarray:
    return drop_connect(tf.ones([200, 2, 1, 3]), survival=0.8, seed=tf.constant(seed), index=index).numpy()


def test_whole_examples_are_dropped_and_the_rest_scaled() -> None:
    outputs = _kept([1, 2])
    assert set(np.unique(outputs)) == {np.float32(0.0), np.float32(1.25)}
    assert (outputs == outputs[:, :1, :1, :1]).all()
    assert 0.7 < (outputs[:, 0, 0, 0] > 0).mean() < 0.9


def test_seed_and_block_decide_alone() -> None:
    np.testing.assert_array_equal(_kept([1, 2]), _kept([1, 2]))
    assert (_kept([1, 2]) != _kept([1, 3])).any()
    assert (_kept([1, 2]) != _kept([1, 2], index=4)).any()


def test_xla_drops_the_same_examples() -> None:
    def drop(seed: tf.Tensor) -> tf.Tensor:
        return drop_connect(tf.ones([50, 1]), survival=0.5, seed=seed, index=0)

    for seed in ([1, 2], [-5, 3], [2**31 - 1, -7]):
        compiled = tf.function(drop, jit_compile=True)
        np.testing.assert_array_equal(compiled(tf.constant(seed)), drop(tf.constant(seed)))


def test_a_survival_of_one_keeps_everything() -> None:
    outputs = drop_connect(tf.ones([500, 1]), survival=1.0, seed=tf.constant([3, 4]), index=0)
    np.testing.assert_array_equal(outputs, 1.0)


def test_two_replicas_together_drop_what_one_drops(two_replicas: tf.distribute.Strategy) -> None:
    def drop(count: int) -> tf.Tensor:
        return drop_connect(tf.ones([count, 2, 3]), survival=0.5, seed=tf.constant([1, 2]), index=4)

    halves = two_replicas.experimental_local_results(tf.function(lambda: two_replicas.run(drop, (100,)))())
    np.testing.assert_array_equal(np.concatenate(halves), drop(200))
    assert (halves[0].numpy() != halves[1].numpy()).any()
