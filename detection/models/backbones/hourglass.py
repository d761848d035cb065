"""Stacked hourglass networks, which give features at a quarter of the image's sides, once per hourglass.

Newell et al., "Stacked Hourglass Networks", 2016; layers and sizes of Law and Deng, "CornerNet", 2018, and of the TF
Object Detection API.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from detection.models.backbones.contract import Backbone
from detection.models.backbones.resnet import Block
from detection.models.layers.batch_norm import activate
from detection.models.layers.conv import ConvNorm
from detection.models.layers.recompute import recomputed
from detection.models.necks.resample import upsample_nearest


class HourglassSpec(NamedTuple):
    """Specification of a network.

    filters: channels of an hourglass's sizes, each half the side of the one before.
    repeats: number of blocks at each size.
    stem: channels of the first convolution.
    stacks: number of hourglasses.
    """

    filters: tuple[int, ...]
    repeats: tuple[int, ...]
    stem: int
    stacks: int = 1


HOURGLASSES: dict[str, HourglassSpec] = {
    "hourglass-10": HourglassSpec((64, 64), (1, 1), 32),
    "hourglass-20": HourglassSpec((96, 96, 144), (1, 2, 2), 48),
    "hourglass-32": HourglassSpec((96, 96, 144, 144), (2, 2, 2, 2), 48),
    "hourglass-52": HourglassSpec((128, 128, 192, 192, 192, 256), (2, 2, 2, 2, 2, 4), 64),
    "hourglass-104": HourglassSpec((256, 256, 384, 384, 384, 512), (2, 2, 2, 2, 2, 4), 128, stacks=2),
}


def _block(in_filters: int, filters: int, stride: int = 1, *, name: str, **options: Any) -> Block:
    """Returns a block of two 3x3 convolutions; `options`: `activation`, `batch_norm` and `dtype` of its layers."""
    return Block(
        in_filters=in_filters,
        filters=filters,
        stride=stride,
        projects=stride > 1 or filters != in_filters,
        bottleneck=False,
        stride_in_first=True,
        last_scale=1.0,
        name=name,
        **options,
    )


class HourglassModule(keras.layers.Layer):
    """Blocks at this size, plus those at half of it and below, upsampled.

    Args:
        filters: see `HourglassSpec`.
        repeats: see `HourglassSpec`.
        name: layer name.
        options: `activation`, `batch_norm` and `dtype` of its layers.
    """

    def __init__(self, filters: Sequence[int], repeats: Sequence[int], *, name: str, **options: Any):
        super().__init__(name=name, dtype=options["dtype"])
        outer, inner = filters[:2]
        self.in_filters = outer
        blocks, last = range(repeats[0]), repeats[0] - 1
        self.shortcut = [_block(outer, outer, name=f"encoder_block1_{place}", **options) for place in blocks]
        self.encoder = [
            _block(inner if place else outer, inner, 1 if place else 2, name=f"encoder_block2_{place}", **options)
            for place in blocks
        ]
        self.inner: list[HourglassModule | Block]
        if len(filters) > 2:
            self.inner = [HourglassModule(filters[1:], repeats[1:], name="inner_block_0", **options)]
        else:
            self.inner = [_block(inner, inner, name=f"inner_block_{place}", **options) for place in range(repeats[1])]
        self.decoder = [
            _block(inner, outer if place == last else inner, name=f"decoder_block_{place}", **options)
            for place in blocks
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        for layer in (*self.shortcut, *self.encoder, *self.inner, *self.decoder):
            layer.build((None, None, None, layer.in_filters))

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, H, W, filters[0]] to the same shape."""
        shortcut = outputs = inputs
        for layer in self.shortcut:
            shortcut = layer(shortcut, training=training)
        for layer in (*self.encoder, *self.inner, *self.decoder):
            outputs = layer(outputs, training=training)
        height, width = inputs.shape[1:3]
        return shortcut + upsample_nearest(outputs, (height, width))


class Hourglass(Backbone):
    """A stem with stride 4, and hourglasses, each of which takes the features before it and its own.

    Args:
        spec: network to build.
        activation: activation of the layers; None: relu.
        batch_norm: arguments of `BatchNormalization`.
        recompute: recompute each hourglass in the backward pass, to save memory.
        name: layer name.
        dtype: Keras dtype policy.
    """

    stacked = True

    def __init__(
        self,
        *,
        spec: HourglassSpec,
        activation: str | None = None,
        batch_norm: dict[str, float],
        recompute: bool = False,
        name: str,
        dtype: Any = None,
    ):
        super().__init__(recompute=recompute, name=name, dtype=dtype)
        self._activation = activation or "relu"
        plain: dict[str, Any] = {"activation": None, "batch_norm": batch_norm, "dtype": self.dtype_policy}
        options = plain | {"activation": self._activation}
        width, between = spec.filters[0], range(spec.stacks - 1)
        self.level_filters = [width] * spec.stacks
        self.stem = ConvNorm(3, spec.stem, 7, 2, centred=True, name="stem", **options)
        self.stem_block = _block(spec.stem, width, 2, name="stem_block", **options)
        self.hourglasses: list[Any] = [
            HourglassModule(spec.filters, spec.repeats, name=f"hourglass_network_{place}", **options)
            for place in range(spec.stacks)
        ]
        self.output_convs = [
            ConvNorm(width, width, 3, name=f"output_conv_{place}", **options) for place in range(spec.stacks)
        ]
        self.of_inputs, self.of_outputs = (
            [ConvNorm(width, width, 1, name=f"intermediate_conv{number}_{place}", **plain) for place in between]
            for number in (1, 2)
        )
        self.merged = [_block(width, width, name=f"intermediate_residual_{place}", **options) for place in between]

    @property
    def stages(self) -> list[list[keras.layers.Layer]]:
        """Layers of each hourglass, those before it included."""
        rest = zip(
            self.of_inputs, self.of_outputs, self.merged, self.hourglasses[1:], self.output_convs[1:], strict=True
        )
        return [[self.stem, self.stem_block, self.hourglasses[0], self.output_convs[0]], *map(list, rest)]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        self.stem.build(input_shape)
        self.stem_block.build((None, None, None, self.stem_block.in_filters))
        for layer in (*self.hourglasses, *self.merged, *self.output_convs, *self.of_inputs, *self.of_outputs):
            layer.build((None, None, None, self.level_filters[0]))

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Maps [B, H, W, 3] to [B, H / 4, W / 4, filters] for each hourglass; `seed` is ignored."""
        features = self.stem_block(self.stem(images, training=training), training=training)
        found: list[tf.Tensor] = []
        for place, (hourglass, output) in enumerate(zip(self.hourglasses, self.output_convs, strict=True)):
            if place:
                merged = self.of_inputs[place - 1](features, training=training)
                merged += self.of_outputs[place - 1](found[-1], training=training)
                features = self.merged[place - 1](activate(merged, self._activation), training=training)
            call = functools.partial(hourglass, training=training)
            inner = recomputed(call, features, enabled=training and self._recompute)
            found.append(output(inner, training=training))
        return found
