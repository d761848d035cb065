"""Sums of three terms have one rounding, whatever else uses the terms and however long it takes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.training.engine.loop import TrainLoop
from detection.training.engine.step import StepReport

Terms = Sequence[tf.Tensor]
SIZE = 1000


def _gradient(terms: Terms) -> tf.Tensor:
    """The sum of the terms as the gradient of a tensor with three uses."""
    value = tf.zeros([SIZE])
    with tf.GradientTape() as tape:
        tape.watch(value)
        loss = tf.add_n([tf.reduce_sum(value * term) for term in terms])
    return tape.gradient(loss, value)


class _Step:
    """A step whose result is a sum; other ops that need some of its terms come after it."""

    def __init__(self, add: Callable[[Terms], tf.Tensor], used: Sequence[int]) -> None:
        self._add, self._used = add, used
        self.sum = tf.Variable(tf.zeros([SIZE]))

    def on_replicas(
        self, strategy: tf.distribute.Strategy, compiled: Callable[[Callable[..., Any]], Any]
    ) -> Callable[[Batch], StepReport]:
        return self._run

    def _run(self, batch: Batch) -> StepReport:
        terms = [tf.sqrt(row) for row in tf.unstack(batch.images)]
        total = self._add(terms)
        self.sum.assign(total)
        mean = tf.reduce_mean(total)
        scalars = {str(place): tf.reduce_sum(terms[place] * mean) for place in self._used} | {"mean": mean}
        zero = tf.constant(0, tf.int64)
        return StepReport(zero, scalars, {}, tf.constant(True), tf.constant(False), zero)


@pytest.mark.usefixtures("op_determinism")
@pytest.mark.parametrize(
    "add", [tf.add_n, lambda terms: terms[0] + terms[1] + terms[2], _gradient], ids=["add_n", "plus", "gradient"]
)
def test_a_sum_does_not_depend_on_the_other_uses_of_its_terms(add: Callable[[Terms], tf.Tensor]) -> None:
    """TensorFlow's own order of the terms is another one where the first and the third are needed afterwards."""
    images = np.random.default_rng(0).uniform(size=(3, SIZE)).astype(np.float32)
    options = tf.config.optimizer.get_experimental_options()
    sums = []
    for used in ((), (0, 1), (0, 2), (1, 2)):
        step = _Step(add, used)
        loop = TrainLoop(tf.distribute.OneDeviceStrategy("/cpu:0"), step, jit_compile=False, deterministic=True)
        loop(iter(tf.data.Dataset.from_tensors(Batch(tf.constant(images), tf.zeros([]), tf.zeros([])))), 1)
        sums.append(step.sum.numpy())
    for one in sums[1:]:
        np.testing.assert_array_equal(one, sums[0])
    np.testing.assert_allclose(sums[0], np.sqrt(images).sum(axis=0), rtol=1e-6)
    assert tf.config.optimizer.get_experimental_options() == options | {"arithmetic_optimization": True}
