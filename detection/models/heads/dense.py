"""Dense heads: convolutions shared by all pyramid levels, with batch norms per level."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization, activate


class DenseHead(keras.layers.Layer):
    """Class or box head: `num_layers` separable 3x3 convolutions and a predicting one.

    Args:
        prefix: prefix of the layers' names, `class` or `box`.
        filters: channels of the inner layers.
        num_layers: number of inner layers.
        outputs: channels of the prediction.
        output_bias: initial bias of the prediction.
        levels: pyramid levels, finest first.
        activation: name of the activation.
        batch_norm: arguments of `BatchNormalization`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        prefix: str,
        filters: int,
        num_layers: int,
        outputs: int,
        output_bias: float,
        levels: Sequence[int],
        activation: str,
        batch_norm: dict[str, float],
        name: str,
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self._activation = activation
        self._filters = filters
        self.convs = [_separable(filters, 0.0, f"{prefix}-{number}", self.dtype_policy) for number in range(num_layers)]
        # A flat list, level by level within each layer, as Keras does not save nested lists.
        self.norms = [
            BatchNormalization(name=f"{prefix}-{number}-bn-{level}", dtype=self.dtype_policy, **batch_norm)
            for number in range(num_layers)
            for level in levels
        ]
        self._num_levels = len(levels)
        self.predict = _separable(outputs, output_bias, f"{prefix}-predict", self.dtype_policy)

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per level, all with the same channels."""
        shape = input_shape[0]
        inner = (None, None, None, self._filters)
        for conv in self.convs:
            conv.build(shape)
            shape = inner
        for norm in self.norms:
            norm.build(inner)
        self.predict.build(shape)

    def call(self, features: Sequence[tf.Tensor], training: bool = False) -> list[tf.Tensor]:
        """Returns predictions [B, h, w, outputs] per level, in the compute dtype."""
        return [self._predict_level(feature, place, training) for place, feature in enumerate(features)]

    def _predict_level(self, feature: tf.Tensor, place: int, training: bool) -> tf.Tensor:
        for conv, norm in zip(self.convs, self.norms[place :: self._num_levels], strict=True):
            feature = activate(norm(conv(feature), training=training), self._activation)
        return self.predict(feature)


def _separable(filters: int, bias: float, name: str, dtype: Any) -> Any:
    return keras.layers.SeparableConv2D(
        filters,
        3,
        padding="same",
        depthwise_initializer=keras.initializers.VarianceScaling(),
        pointwise_initializer=keras.initializers.VarianceScaling(),
        bias_initializer=keras.initializers.Constant(bias),
        name=name,
        dtype=dtype,
    )
