"""Dense heads: convolutions shared by all pyramid levels, with batch norms per level."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from pydantic import Field, PositiveInt

from detection.models.layers.batch_norm import BatchNormalization, activate
from detection.models.layers.conv import conv2d
from detection.models.layers.drop_connect import drop_connect
from detection.models.layers.initializers import lecun_normal, normal
from detection.models.layers.recompute import recomputed
from schemas.config.section import Section

_FIRST_BRANCHES = {"class": 1000, "box": 2000}  # indices of the heads' drop-connect branches, above the blocks' indices


class HeadOptions(Section):
    """Options shared by the class and the box head."""

    layers: PositiveInt = Field(3, description="inner layers of each head")
    separable_conv: bool = Field(False, description="3x3 convolutions of the heads are separable; false: plain ones")
    share_tower: bool = Field(
        False, description="the box head predicts from the class head's inner layers, and has none of its own"
    )
    survival_probability: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="inner layers, from the second on, are residual branches with this survival in training; none: no "
        "residual branches",
    )


class DenseHead(keras.layers.Layer):
    """Class or box head: inner 3x3 convolutions and one that predicts; named `class_net` or `box_net`.

    Args:
        options: options of both heads; with `share_tower` the box head has no inner layers.
        prefix: prefix of the layers' names, `class` or `box`.
        filters: channels of the inner layers, and of the inputs.
        levels: pyramid levels, finest first.
        activation: name of the activation.
        batch_norm: arguments of `BatchNormalization`.
        conv_bias: inner convolutions have a bias, although a batch norm follows.
        outputs: channels of the prediction.
        output_bias: initial bias of the prediction.
        recompute: recompute each inner layer in the backward pass, to save memory.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        options: HeadOptions,
        *,
        prefix: str,
        filters: int,
        levels: Sequence[int],
        activation: str,
        batch_norm: dict[str, float],
        conv_bias: bool = True,
        outputs: int,
        output_bias: float,
        recompute: bool = False,
        dtype: Any = None,
    ):
        super().__init__(name=f"{prefix}_net", dtype=dtype)
        self._survival = options.survival_probability
        self._filters = filters
        self._levels = len(levels)
        self._activation = activation
        self._recompute = recompute
        self._first_branch = _FIRST_BRANCHES[prefix]
        initializer = lecun_normal if options.separable_conv else functools.partial(normal, 0.01)
        conv = functools.partial(
            conv2d, kernel=3, separable=options.separable_conv, initializer=initializer, dtype=self.dtype_policy
        )
        layers = range(0 if options.share_tower and prefix == "box" else options.layers)
        bias = 0.0 if conv_bias else None
        self.convs = [conv(filters, bias=bias, name=f"{prefix}-{number}") for number in layers]
        # A flat list, level by level within each layer, because Keras does not save nested lists.
        self.norms = [
            BatchNormalization(name=f"{prefix}-{number}-bn-{level}", dtype=self.dtype_policy, **batch_norm)
            for number in layers
            for level in levels
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
        return [self.predict(feature) for feature in self.tower(features, training=training, seed=seed)]

    def tower(self, features: Sequence[tf.Tensor], *, training: bool, seed: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Returns the features before the prediction; arguments as in `call`."""
        return [self._inner_level(feature, place, training, seed) for place, feature in enumerate(features)]

    def _inner_level(self, feature: tf.Tensor, place: int, training: bool, seed: tf.Tensor | None) -> tf.Tensor:
        for number in range(len(self.convs)):
            layer = functools.partial(self._layer, number=number, place=place, training=training, seed=seed)
            feature = recomputed(layer, feature, enabled=training and self._recompute)
        return feature

    def _layer(
        self, inputs: tf.Tensor, *, number: int, place: int, training: bool, seed: tf.Tensor | None
    ) -> tf.Tensor:
        norm = self.norms[number * self._levels + place]
        outputs = activate(norm(self.convs[number](inputs), training=training), self._activation)
        if self._survival is None or number == 0:
            return outputs
        if training and seed is not None:
            branch = self._first_branch + number * self._levels + place
            outputs = drop_connect(outputs, survival=self._survival, seed=seed, index=branch)
        return inputs + outputs
