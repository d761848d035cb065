"""A head with values for every cell of a feature map, as in CenterNet."""

from typing import Any

import keras
import tensorflow as tf
from pydantic import Field, PositiveInt

from detection.models.layers.conv import conv2d
from schemas.config.section import Section


class CellHeadOptions(Section):
    """The convolutions of the heads before their 1x1 outputs."""

    filters: PositiveInt = Field(256, description="channels of each head's 3x3 convolution")
    convs: dict[str, tuple[tuple[PositiveInt, PositiveInt], ...]] = Field(
        {},
        description="[channels, kernel side] of the convolutions of single heads, such as {size: [[64, 3], [32, 1]]}; "
        "other heads have one 3x3 convolution of `filters`",
    )
    separable_conv: bool = Field(False, description="3x3 convolutions of the heads are separable; false: plain ones")

    def layers(self, task: str) -> tuple[tuple[int, int], ...]:
        """Returns (channels, kernel side) of the convolutions of a head."""
        return self.convs.get(task, ((self.filters, 3),))


class CellHead(keras.layers.Layer):
    """Convolutions, each followed by a ReLU, and a 1x1 convolution.

    Args:
        options: the inner convolutions.
        task: key of its output.
        place: index of the features that it takes.
        outputs: channels of the output.
        output_bias: initial bias of the output.
        dtype: Keras dtype policy.
    """

    def __init__(
        self, options: CellHeadOptions, *, task: str, place: int, outputs: int, output_bias: float, dtype: Any
    ):
        super().__init__(name=f"{task}_head_{place}" if place else f"{task}_head", dtype=dtype)
        self.task = task
        self.place = place
        self.inner = [
            conv2d(
                filters,
                kernel,
                separable=options.separable_conv,
                name=f"conv_{number}" if number else "conv",
                dtype=dtype,
            )
            for number, (filters, kernel) in enumerate(options.layers(task))
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
