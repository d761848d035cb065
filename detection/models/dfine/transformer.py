"""Dense layers, attention and positions of the transformer's encoder and decoder."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.models.layers.batch_norm import activate
from detection.models.layers.initializers import fan_in_uniform, uniform

NORM_EPSILON = 1e-5  # of all layer normalisations


def dense(
    in_filters: int,
    filters: int,
    *,
    kernel: Callable[[], Any] = fan_in_uniform,
    bias: Callable[[], Any] | None = None,
    name: str,
    dtype: Any,
) -> keras.layers.Dense:
    """Returns a dense layer.

    Args:
        in_filters: channels of the input.
        filters: channels of the output.
        kernel: makes the initializer of the kernel.
        bias: makes that of the bias; None: PyTorch's default.
        name: layer name.
        dtype: Keras dtype policy.
    """
    of_bias = fan_in_uniform(in_filters) if bias is None else bias()
    return keras.layers.Dense(filters, kernel_initializer=kernel(), bias_initializer=of_bias, name=name, dtype=dtype)


class _LayerNormalization(keras.layers.LayerNormalization):
    """Keras' over the last axis, in float32, scaled last: no factor of a product repeats the other one."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps [..., C] to [..., C]."""
        values = tf.cast(inputs, tf.float32)
        mean, variance = tf.nn.moments(values, -1, keepdims=True)
        values = (values - mean) * tf.math.rsqrt(variance + self.epsilon)
        return tf.cast(values * tf.cast(self.gamma, tf.float32) + tf.cast(self.beta, tf.float32), inputs.dtype)


def layer_norm(name: str, dtype: Any) -> keras.layers.LayerNormalization:
    """Returns a layer normalisation over the channels."""
    return _LayerNormalization(epsilon=NORM_EPSILON, name=name, dtype=dtype)


class Mlp(keras.layers.Layer):
    """Dense layers with an activation between them.

    Args:
        filters: channels of the input, and of each layer's output.
        activation: activation between the layers.
        kernel: makes the initializer of the inner kernels.
        last: makes the initializers of the last layer; None: as for `dense`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        filters: Sequence[int],
        *,
        activation: str,
        kernel: Callable[[], Any] = fan_in_uniform,
        last: Callable[[], Any] | None = None,
        name: str,
        dtype: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self._activation, self._filters = activation, tuple(filters)
        self.linears = []
        for number, (inner, outer) in enumerate(itertools.pairwise(filters)):
            is_last = number == len(filters) - 2
            options: dict[str, Any] = {"kernel": last, "bias": last} if is_last and last else {"kernel": kernel}
            self.linears.append(dense(inner, outer, name=f"layer_{number}", dtype=dtype, **options))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        for layer, channels in zip(self.linears, self._filters, strict=False):
            layer.build((None, channels))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps [..., filters[0]] to [..., filters[-1]]."""
        outputs = inputs
        for layer in self.linears[:-1]:
            outputs = activate(layer(outputs), self._activation)
        return self.linears[-1](outputs)


class SelfAttention(keras.layers.Layer):
    """Multi-head attention between tokens, whose queries and keys have positions.

    Args:
        filters: channels.
        heads: number of heads.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(self, filters: int, *, heads: int, name: str, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self._filters, self._heads = filters, heads
        # Xavier's over the three kernels together, as PyTorch has them in one.
        limit = (6.0 / (4 * filters)) ** 0.5
        inputs = {"kernel": functools.partial(uniform, limit), "bias": keras.initializers.Zeros}
        self.projections = [
            dense(filters, filters, name=part, dtype=dtype, **inputs) for part in ("query", "key", "value")
        ]
        self.output_projection = dense(filters, filters, bias=keras.initializers.Zeros, name="output", dtype=dtype)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        for layer in (*self.projections, self.output_projection):
            layer.build((None, self._filters))

    def call(self, tokens: tf.Tensor, positions: tf.Tensor, blocked: tf.Tensor | None = None) -> tf.Tensor:
        """Maps tokens [B, T, filters] to [B, T, filters].

        Args:
            tokens: values.
            positions: [B or 1, T, filters], added to queries and keys.
            blocked: bool [T, T], or [B, T, T]: the query of a row does not see the key of a column.
        """
        placed = tokens + tf.cast(positions, tokens.dtype)
        width = self._filters // self._heads
        query, key, value = (  # [B, heads, T, width]
            tf.transpose(tf.reshape(layer(part), [-1, tokens.shape[1], self._heads, width]), [0, 2, 1, 3])
            for layer, part in zip(self.projections, (placed, placed, tokens), strict=True)
        )
        logits = tf.cast(tf.matmul(query * width**-0.5, key, transpose_b=True), tf.float32)
        if blocked is not None:
            blocked = blocked[tf.newaxis] if blocked.shape.rank == 2 else blocked
            logits = tf.where(blocked[:, tf.newaxis], logits.dtype.min, logits)
        attended = tf.transpose(tf.matmul(tf.cast(tf.nn.softmax(logits), value.dtype), value), [0, 2, 1, 3])
        return self.output_projection(tf.reshape(attended, [-1, tokens.shape[1], self._filters]))


def grid_positions(height: int, width: int, filters: int, *, transposed: bool = False) -> npt.NDArray[np.float32]:
    """Returns the sines and cosines of the places of cells, float32 [height * width, filters], row by row.

    Channels are sin and cos of the row, then sin and cos of the column, each by filters / 4 frequencies from 1 down to
    1 / 10,000.

    Args:
        height: rows.
        width: columns.
        filters: channels, a multiple of 4.
        transposed: token t has row t // height and column t % height, as in the original: the order is another one
            unless the grid is square.
    """
    frequencies = 10_000.0 ** -(np.arange(filters // 4) / (filters / 4))
    places = np.divmod(np.arange(height * width), height if transposed else width)
    angles = [place[:, np.newaxis] * frequencies for place in places]
    parts = [function(angle) for angle in angles for function in (np.sin, np.cos)]
    return np.concatenate(parts, axis=1).astype(np.float32)
