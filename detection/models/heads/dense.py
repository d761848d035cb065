"""Dense heads: convolutions shared by all pyramid levels, with batch norms per level."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization, activate
from detection.models.layers.conv import conv2d
from detection.models.layers.drop_connect import drop_connect
from detection.models.layers.initializers import lecun_normal, normal
from detection.models.layers.recompute import recomputed


@dataclass(frozen=True)  # not a tuple: Keras layers track the elements of tuples
class HeadOptions:
    """Options shared by the class and the box head.

    filters: channels of the inner layers, and of the inputs.
    num_layers: number of inner layers.
    levels: pyramid levels, finest first.
    activation: name of the activation.
    batch_norm: arguments of `BatchNormalization`.
    separable_conv: False: plain convolutions.
    recompute: recompute each inner layer in the backward pass, to save memory.
    dtype: Keras dtype policy.
    survival: all inner layers but the first are residual branches, kept with this
        probability in training; None: no residual branches.
    conv_bias: inner convolutions have a bias, although a batch norm follows.
    """

    filters: int
    num_layers: int
    levels: Sequence[int]
    activation: str
    batch_norm: dict[str, float]
    separable_conv: bool
    recompute: bool
    dtype: Any
    survival: float | None = None
    conv_bias: bool = True


class DenseHead(keras.layers.Layer):
    """Class or box head: inner 3x3 convolutions and one that predicts; named `class_net` or `box_net`.

    Args:
        options: options of both heads.
        prefix: prefix of the layers' names, `class` or `box`.
        outputs: channels of the prediction.
        output_bias: initial bias of the prediction.
        first_branch: `drop_connect` index of the first branch; there is one branch per layer and level.
    """

    def __init__(self, options: HeadOptions, *, prefix: str, outputs: int, output_bias: float, first_branch: int):
        super().__init__(name=f"{prefix}_net", dtype=options.dtype)
        self._options = options
        self._first_branch = first_branch
        initializer = lecun_normal if options.separable_conv else functools.partial(normal, 0.01)
        conv = functools.partial(
            conv2d, kernel=3, separable=options.separable_conv, initializer=initializer, dtype=self.dtype_policy
        )
        layers = range(options.num_layers)
        bias = 0.0 if options.conv_bias else None
        self.convs = [conv(options.filters, bias=bias, name=f"{prefix}-{number}") for number in layers]
        # A flat list, level by level within each layer, because Keras does not save nested lists.
        self.norms = [
            BatchNormalization(name=f"{prefix}-{number}-bn-{level}", dtype=self.dtype_policy, **options.batch_norm)
            for number in layers
            for level in options.levels
        ]
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
        inner = (None, None, None, self._options.filters)
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
        return [self.predict(feature) for feature in self.tower(features, training=training, seed=seed)]

    def tower(self, features: Sequence[tf.Tensor], *, training: bool, seed: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Returns the features before the prediction; arguments as in `call`."""
        return [self._inner_level(feature, place, training, seed) for place, feature in enumerate(features)]

    def _inner_level(self, feature: tf.Tensor, place: int, training: bool, seed: tf.Tensor | None) -> tf.Tensor:
        for number in range(len(self.convs)):
            layer = functools.partial(self._layer, number=number, place=place, training=training, seed=seed)
            feature = recomputed(layer, feature, enabled=training and self._options.recompute)
        return feature

    def _layer(
        self, inputs: tf.Tensor, *, number: int, place: int, training: bool, seed: tf.Tensor | None
    ) -> tf.Tensor:
        norm = self.norms[number * len(self._options.levels) + place]
        outputs = activate(norm(self.convs[number](inputs), training=training), self._options.activation)
        if self._options.survival is None or number == 0:
            return outputs
        if training and seed is not None:
            branch = self._first_branch + number * len(self._options.levels) + place
            outputs = drop_connect(outputs, survival=self._options.survival, seed=seed, index=branch)
        return inputs + outputs
