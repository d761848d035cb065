"""Resampling between pyramid levels: 1x1 convolution, max-pooling, nearest upsampling.

Layer names follow google/automl, see `detection.interop.automl.checkpoint.automl_name`.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization
from detection.models.layers.initializers import glorot_uniform

_by_op = ContextVar("nearest_by_op", default=False)


class Resample(keras.layers.Layer):
    """1x1 convolution and batch norm if the channels differ, and pooling or nearest upsampling.

    Args:
        filters: output channels.
        batch_norm: arguments of `BatchNormalization`; None: no batch norm.
        conv_after_pooling: the convolution comes after pooling, not before.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        filters: int,
        batch_norm: dict[str, float] | None,
        conv_after_pooling: bool = False,
        name: str,
        dtype: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self._filters = filters
        self._batch_norm = batch_norm
        self._conv_after_pooling = conv_after_pooling
        self.conv: Any = None
        self.norm: Any = None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables of the convolution, if there is one."""
        if input_shape[-1] == self._filters:
            return
        self.conv = keras.layers.Conv2D(
            self._filters,
            1,
            padding="same",
            kernel_initializer=glorot_uniform(),
            name="conv2d",
            dtype=self.dtype_policy,
        )
        self.conv.build(input_shape)
        if self._batch_norm is not None:
            self.norm = BatchNormalization(name="bn", dtype=self.dtype_policy, **self._batch_norm)
            self.norm.build((None, None, None, self._filters))

    def call(self, inputs: tf.Tensor, *, size: tuple[int, int], training: bool = False) -> tf.Tensor:
        """Resamples [B, H, W, C] to [B, *size, filters]; static sizes."""
        if self._conv_after_pooling:
            outputs = self._project(_pool(inputs, size), training)
        else:
            outputs = _pool(self._project(inputs, training), size)
        return upsample_nearest(outputs, size)

    def _project(self, inputs: tf.Tensor, training: bool) -> tf.Tensor:
        if self.conv is None:
            return inputs
        outputs = self.conv(inputs)
        return outputs if self.norm is None else self.norm(outputs, training=training)


def _pool(inputs: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Max-pools to at most `size`, with windows one larger than the stride."""
    strides = [(length - 1) // target + 1 for length, target in zip(inputs.shape[1:3], size, strict=True)]
    if strides == [1, 1]:
        return inputs
    windows = [stride + 1 if stride > 1 else 1 for stride in strides]
    return tf.nn.max_pool2d(inputs, windows, strides, padding="SAME")


@contextlib.contextmanager
def nearest_by_op() -> Iterator[None]:
    """Makes `upsample_nearest` one op in graphs that are traced in the block: for LiteRT's GPU delegates.

    They do not concatenate a tensor with itself.
    """
    token = _by_op.set(True)
    try:
        yield
    finally:
        _by_op.reset(token)


def upsample_nearest(inputs: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Resizes [B, H, W, C] to [B, *size, C], both sides at least H and W: pixel i takes floor(i * H / size).

    Between adjacent pyramid levels (each half the finer one, rounded up) this only repeats
    rows and columns: it is fast, and its gradient is deterministic.
    """
    height, width, channels = inputs.shape[1:]
    if _by_op.get() and (height, width) != tuple(size):
        return tf.raw_ops.ResizeNearestNeighbor(images=inputs, size=size)
    if not (_repeats(height, size[0]) and _repeats(width, size[1])):
        return tf.gather(tf.gather(inputs, _nearest(height, size[0]), axis=1), _nearest(width, size[1]), axis=2)
    times_y, times_x = -(-size[0] // height), -(-size[1] // width)
    if (times_y, times_x) == (1, 1):
        return inputs
    wide = tf.reshape(tf.concat([inputs] * times_x, axis=3), [-1, height, 1, width * times_x * channels])
    tall = tf.reshape(tf.concat([wide] * times_y, axis=2), [-1, height * times_y, width * times_x, channels])
    return tall[:, : size[0], : size[1]]


def _nearest(length: int, target: int) -> npt.NDArray[np.int64]:
    return np.arange(target) * length // target


def _repeats(length: int, target: int) -> bool:
    """Returns whether nearest upsampling repeats every pixel, except the last, the same number of times."""
    return bool((_nearest(length, target) == np.arange(target) // -(-target // length)).all())
