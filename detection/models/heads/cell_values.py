"""A head with values for every cell of a feature map, as of CenterNet."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from detection.models.layers.conv import conv2d


class CellHead(keras.layers.Layer):
    """Convolutions, each followed by a ReLU, and a 1x1 convolution.

    Args:
        task: key of its output.
        place: number of the features that it takes.
        layers: (channels, side of the kernel) of each inner convolution.
        outputs: channels of the output.
        output_bias: initial bias of the output.
        separable: the inner convolutions are separable.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        task: str,
        place: int,
        layers: Sequence[tuple[int, int]],
        outputs: int,
        output_bias: float,
        separable: bool,
        dtype: Any,
    ):
        super().__init__(name=f"{task}_head_{place}" if place else f"{task}_head", dtype=dtype)
        self.task = task
        self.place = place
        self.inner = [
            conv2d(filters, kernel, separable=separable, name=f"conv_{number}" if number else "conv", dtype=dtype)
            for number, (filters, kernel) in enumerate(layers)
        ]
        self.predict = conv2d(outputs, 1, bias=output_bias, name="predict", dtype=dtype)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        for layer in (*self.inner, self.predict):
            layer.build(input_shape)
            input_shape = (None, None, None, layer.filters)

    def call(self, features: tf.Tensor) -> tf.Tensor:
        """Maps [B, h, w, F] to [B, h, w, outputs], in the compute dtype."""
        for layer in self.inner:
            features = tf.nn.relu(layer(features))
        return self.predict(features)
