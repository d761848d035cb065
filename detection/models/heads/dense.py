"""Dense heads: convolutions shared by all pyramid levels, with batch norms per level."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization, activate
from detection.models.layers.drop_connect import drop_connect
from detection.models.layers.initializers import lecun_normal, normal
from detection.models.layers.recompute import recomputed


class DenseHead(keras.layers.Layer):
    """Class or box head: `num_layers` 3x3 convolutions and a predicting one.

    Args:
        prefix: prefix of the layers' names, `class` or `box`.
        filters: channels of the inner layers, and of its inputs.
        num_layers: number of inner layers.
        outputs: channels of the prediction.
        output_bias: initial bias of the prediction.
        levels: pyramid levels, finest first.
        activation: name of the activation.
        batch_norm: arguments of `BatchNormalization`.
        separable_conv: False: plain convolutions.
        survival: all inner layers but the first are residual branches, kept with this
            probability in training; None: they are no branches.
        first_branch: number of the first branch for `drop_connect`; each layer of each level
            has its own.
        recompute: compute each inner layer again for its gradient, see `recomputed`.
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
        separable_conv: bool = True,
        survival: float | None = None,
        first_branch: int = 0,
        recompute: bool = False,
        name: str,
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self._activation = activation
        self._filters = filters
        self._survival = survival
        self._first_branch = first_branch
        self._recompute = recompute
        conv = functools.partial(_separable_conv if separable_conv else _plain_conv, dtype=self.dtype_policy)
        self.convs = [conv(filters, bias=0.0, name=f"{prefix}-{number}") for number in range(num_layers)]
        # A flat list, level by level within each layer, as Keras does not save nested lists.
        self.norms = [
            BatchNormalization(name=f"{prefix}-{number}-bn-{level}", dtype=self.dtype_policy, **batch_norm)
            for number in range(num_layers)
            for level in levels
        ]
        self._num_levels = len(levels)
        self.predict = conv(outputs, bias=output_bias, name=f"{prefix}-predict")

    @property
    def output_variables(self) -> list[Any]:
        """The variables whose last axis is the prediction's channels."""
        predict = self.predict
        kernel = predict.pointwise_kernel if isinstance(predict, keras.layers.SeparableConv2D) else predict.kernel
        return [kernel, predict.bias]

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

    def call(
        self, features: Sequence[tf.Tensor], training: bool = False, seed: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """Returns predictions [B, h, w, outputs] per level, in the compute dtype.

        Args:
            features: float [B, h, w, filters] per level, finest first.
            training: use batch statistics, and drop-connect if there is a seed.
            seed: int32 [2], seed of this step; None: no drop-connect.
        """
        return [self._predict_level(feature, place, training, seed) for place, feature in enumerate(features)]

    def _predict_level(self, feature: tf.Tensor, place: int, training: bool, seed: tf.Tensor | None) -> tf.Tensor:
        for number in range(len(self.convs)):
            layer = functools.partial(self._layer, number=number, place=place, training=training, seed=seed)
            feature = recomputed(layer, feature, enabled=training and self._recompute)
        return self.predict(feature)

    def _layer(
        self, inputs: tf.Tensor, *, number: int, place: int, training: bool, seed: tf.Tensor | None
    ) -> tf.Tensor:
        norm = self.norms[number * self._num_levels + place]
        outputs = activate(norm(self.convs[number](inputs), training=training), self._activation)
        if self._survival is None or number == 0:
            return outputs
        if training and seed is not None:
            branch = self._first_branch + number * self._num_levels + place
            outputs = drop_connect(outputs, survival=self._survival, seed=seed, index=branch)
        return inputs + outputs


def _separable_conv(filters: int, *, bias: float, name: str, dtype: Any) -> Any:
    return keras.layers.SeparableConv2D(
        filters,
        3,
        padding="same",
        depthwise_initializer=lecun_normal(),
        pointwise_initializer=lecun_normal(),
        bias_initializer=keras.initializers.Constant(bias),
        name=name,
        dtype=dtype,
    )


def _plain_conv(filters: int, *, bias: float, name: str, dtype: Any) -> Any:
    return keras.layers.Conv2D(
        filters,
        3,
        padding="same",
        kernel_initializer=normal(0.01),
        bias_initializer=keras.initializers.Constant(bias),
        name=name,
        dtype=dtype,
    )
