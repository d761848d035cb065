"""A head with values for every cell of a feature map, as of CenterNet."""

from typing import Any

import keras
import tensorflow as tf

from detection.models.layers.conv import conv2d


class CellHead(keras.layers.Layer):
    """A 3x3 convolution, ReLU, and a 1x1 convolution.

    Args:
        task: key of its output.
        place: number of the features that it takes.
        filters: inner channels.
        outputs: channels of the output.
        output_bias: initial bias of the output.
        separable: the 3x3 convolution is separable.
        dtype: Keras dtype policy.
    """

    def __init__(
        self, *, task: str, place: int, filters: int, outputs: int, output_bias: float, separable: bool, dtype: Any
    ):
        super().__init__(name=f"{task}_head_{place}" if place else f"{task}_head", dtype=dtype)
        self.task = task
        self.place = place
        self.inner = conv2d(filters, 3, separable=separable, name="conv", dtype=self.dtype_policy)
        self.predict = conv2d(outputs, 1, bias=output_bias, name="predict", dtype=self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        self.inner.build(input_shape)
        self.predict.build((None, None, None, self.inner.filters))

    def call(self, features: tf.Tensor) -> tf.Tensor:
        """Maps [B, h, w, F] to [B, h, w, outputs], in the compute dtype."""
        return self.predict(tf.nn.relu(self.inner(features)))
