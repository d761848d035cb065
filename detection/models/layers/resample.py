"""Resamples a feature map to the channels and size of another pyramid level."""

from typing import Any

import keras
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization


class Resample(keras.layers.Layer):
    """1x1 convolution and batch norm if the channels differ, then pooling or nearest upsampling.

    Args:
        filters: output channels.
        batch_norm: arguments of `BatchNormalization`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(self, *, filters: int, batch_norm: dict[str, float], name: str, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self._filters = filters
        self._batch_norm = batch_norm
        self.conv: Any = None
        self.norm: Any = None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables of the convolution, if there is one."""
        if input_shape[-1] == self._filters:
            return
        self.conv = keras.layers.Conv2D(self._filters, 1, padding="same", name="conv2d", dtype=self.dtype_policy)
        self.norm = BatchNormalization(name="bn", dtype=self.dtype_policy, **self._batch_norm)
        self.conv.build(input_shape)
        self.norm.build((None, None, None, self._filters))

    def call(self, inputs: tf.Tensor, *, size: tuple[int, int], training: bool = False) -> tf.Tensor:
        """Resamples [B, H, W, C] to [B, *size, filters]; static sizes."""
        outputs = inputs
        if self.conv is not None:
            outputs = self.norm(self.conv(outputs), training=training)
        return upsample_nearest(_pool(outputs, size), size)


def _pool(inputs: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Max-pools to at most `size`, with windows one larger than the stride."""
    strides = [(length - 1) // target + 1 for length, target in zip(inputs.shape[1:3], size, strict=True)]
    if strides == [1, 1]:
        return inputs
    windows = [stride + 1 if stride > 1 else 1 for stride in strides]
    return tf.nn.max_pool2d(inputs, windows, strides, padding="SAME")


def upsample_nearest(inputs: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Repeats rows and columns of [B, H, W, C] up to [B, *size, C].

    Between adjacent pyramid levels (each half the finer one, rounded up) this equals the
    nearest-neighbour resize floor(i * H / size), but only copies: it is fast, and its
    gradient is deterministic.
    """
    height, width, channels = inputs.shape[1:]
    times_y, times_x = -(-size[0] // height), -(-size[1] // width)
    if (times_y, times_x) == (1, 1):
        return inputs
    wide = tf.reshape(tf.concat([inputs] * times_x, axis=3), [-1, height, 1, width * times_x * channels])
    tall = tf.reshape(tf.concat([wide] * times_y, axis=2), [-1, height * times_y, width * times_x, channels])
    return tall[:, : size[0], : size[1]]
