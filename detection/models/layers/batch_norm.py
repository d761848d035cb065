"""Batch normalisation on the fused op, synchronised over replicas, and the activations that follow it."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from detection.ops.replicas import replica_count, sum_over_replicas

_updates_statistics = ContextVar("updates_statistics", default=True)  # per thread, and so per replica
_observed: ContextVar[list[tuple["BatchNormalization", tf.Tensor]] | None] = ContextVar("observed", default=None)


class BatchNormalization(keras.layers.Layer):
    """Normalises [B, H, W, C] over batch and space, with float32 statistics.

    Training uses the fused op on one replica, and the moments of the global batch from one
    all-reduce on several, so that the result does not depend on the number of replicas.
    Both estimate the moving variance with Bessel's correction.  A layer that is not
    trainable, or with `fixed_statistics` True, runs as in inference; with `fixed_statistics`,
    scale and offset still train.

    With `synchronized` False (default: True), each replica normalises with the statistics of
    its local examples; the moving statistics use the mean over replicas, so they stay equal.

    Args:
        momentum: moving = momentum * moving + (1 - momentum) * batch.
        epsilon: added to the variance.
        initial_scale: initial value of all scales.
        name: layer name.
        dtype: Keras dtype policy; variables and statistics are always float32.
    """

    def __init__(
        self,
        *,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        initial_scale: float = 1.0,
        name: str | None = None,
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self._initial_scale = initial_scale
        self.momentum = momentum
        self.epsilon = epsilon
        self.synchronized = True
        self.fixed_statistics = False

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates scale, offset and moving statistics, each float32 [C]."""
        shape = (input_shape[-1],)
        options = {"shape": shape, "dtype": "float32", "autocast": False}
        scale = keras.initializers.Constant(self._initial_scale)
        self.gamma = self.add_weight(name="gamma", initializer=scale, **options)
        self.beta = self.add_weight(name="beta", initializer="zeros", **options)
        self.moving_mean = self.add_weight(name="moving_mean", initializer="zeros", trainable=False, **options)
        self.moving_variance = self.add_weight(name="moving_variance", initializer="ones", trainable=False, **options)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Normalises `inputs`; in training it also updates the moving statistics."""
        observed = _observed.get()
        if observed is not None:
            observed.append((self, inputs))
        if not training or not self.trainable or self.fixed_statistics:
            return self._fused(inputs, mean=self.moving_mean.value, variance=self.moving_variance.value)[0]
        if replica_count() == 1:
            outputs, mean, variance = self._fused(inputs)
        elif self.synchronized:
            outputs, mean, variance = self._over_replicas(inputs)
        else:
            outputs, mean, variance = self._fused(inputs)
            mean, variance = tf.unstack(sum_over_replicas(tf.stack([mean, variance])) / replica_count())
        self._update(self.moving_mean, mean)
        self._update(self.moving_variance, variance)
        return outputs

    def _fused(
        self, inputs: tf.Tensor, mean: tf.Tensor | None = None, variance: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return tf.compat.v1.nn.fused_batch_norm(
            inputs,
            tf.convert_to_tensor(self.gamma.value),
            tf.convert_to_tensor(self.beta.value),
            mean=mean,
            variance=variance,
            epsilon=self.epsilon,
            is_training=mean is None,
        )

    def _over_replicas(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns normalised inputs, mean and corrected variance over all replicas."""
        # The shift, equal on all replicas, prevents cancellation in E[x^2] - E[x]^2.
        shift = tf.stop_gradient(tf.convert_to_tensor(self.moving_mean.value))
        shifted = tf.cast(inputs, tf.float32) - shift
        sums = tf.stack([tf.reduce_sum(shifted, [0, 1, 2]), tf.reduce_sum(tf.square(shifted), [0, 1, 2])])
        count = tf.cast(tf.size(inputs) // inputs.shape[-1] * replica_count(), tf.float32)
        mean, square = tf.unstack(sum_over_replicas(sums) / count)
        variance = tf.maximum(square - tf.square(mean), 0.0)
        scale = tf.math.rsqrt(variance + self.epsilon) * self.gamma.value
        outputs = tf.cast((shifted - mean) * scale + self.beta.value, inputs.dtype)
        return outputs, mean + shift, variance * (count / tf.maximum(count - 1.0, 1.0))

    def _update(self, moving: Any, batch: tf.Tensor) -> None:
        if not _updates_statistics.get():
            return
        # All replicas have the same values, so each updates its own copy without aggregation.
        old = tf.convert_to_tensor(moving.value)
        moving.assign(old + (batch - old) * (1.0 - self.momentum))


def batch_norms(model: keras.Model) -> list[BatchNormalization]:
    """Returns the model's `BatchNormalization` layers, nested ones included, in the order of their creation.

    Keras' own batch norm layers are not included.
    """
    # Keras has no public list of the layers inside layers.
    return [layer for layer in model._flatten_layers() if isinstance(layer, BatchNormalization)]


def synchronize_batch_norm(model: keras.Model, synchronized: bool) -> None:
    """Sets whether `batch_norms` of the model share their statistics over replicas."""
    for layer in batch_norms(model):
        layer.synchronized = synchronized


@contextlib.contextmanager
def statistics_updates(enabled: bool) -> Iterator[None]:
    """Sets whether layers called in the context update their moving statistics; outputs are not affected."""
    token = _updates_statistics.set(enabled)
    try:
        yield
    finally:
        _updates_statistics.reset(token)


@contextlib.contextmanager
def observed_inputs() -> Iterator[list[tuple[BatchNormalization, tf.Tensor]]]:
    """Collects the inputs [B, H, W, C] of batch norm layers called in the context, in the order of the calls."""
    observed: list[tuple[BatchNormalization, tf.Tensor]] = []
    token = _observed.set(observed)
    try:
        yield observed
    finally:
        _observed.reset(token)


_ACTIVATIONS = {
    "swish": tf.nn.silu,
    "hswish": lambda inputs: inputs * tf.nn.relu6(inputs + 3.0) / 6.0,
    "mish": lambda inputs: inputs * tf.math.tanh(tf.math.softplus(inputs)),
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "identity": tf.identity,
}


def activate(inputs: tf.Tensor, name: str) -> tf.Tensor:
    """Applies the activation called `name`, one of `detection.models.detector.Activation`.

    Sources: Howard et al., "Searching for MobileNetV3", 2019 (hswish); Misra, "Mish", 2019.
    """
    return _ACTIVATIONS[name](inputs)
