"""HGNetV2 without its classifier, as a feature extractor.

Source: PaddleClas' PP-HGNetV2, in the form of D-FINE (Peng et al., 2024) and of timm, whose features are the same.
"""

import functools
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from detection.models.backbones.contract import Backbone
from detection.models.layers.conv import ConvNorm
from detection.models.layers.recompute import recomputed


class HGNetSpec(NamedTuple):
    """Specification of one HGNetV2.

    stem: inner and output channels of the stem.
    stages: inner channels, output channels and number of blocks of each stage.
    layers: layers of each block.
    affine: a learnt scale and offset follow each activation.
    """

    stem: tuple[int, int]
    stages: tuple[tuple[int, int, int], ...]
    layers: int
    affine: bool


HGNETS = {
    "hgnetv2-pico": HGNetSpec((8, 16), ((16, 32, 1), (24, 64, 1), (32, 128, 1), (48, 192, 1)), 2, True),
    "hgnetv2-b0": HGNetSpec((16, 16), ((16, 64, 1), (32, 256, 1), (64, 512, 2), (128, 1024, 1)), 3, True),
    "hgnetv2-b1": HGNetSpec((24, 32), ((32, 64, 1), (48, 256, 1), (96, 512, 2), (192, 1024, 1)), 3, True),
    "hgnetv2-b2": HGNetSpec((24, 32), ((32, 96, 1), (64, 384, 1), (128, 768, 3), (256, 1536, 1)), 4, True),
    "hgnetv2-b3": HGNetSpec((24, 32), ((32, 128, 1), (64, 512, 1), (128, 1024, 3), (256, 2048, 1)), 5, True),
    "hgnetv2-b4": HGNetSpec((32, 48), ((48, 128, 1), (96, 512, 1), (192, 1024, 3), (384, 2048, 1)), 6, False),
    "hgnetv2-b5": HGNetSpec((32, 64), ((64, 128, 1), (128, 512, 2), (256, 1024, 5), (512, 2048, 2)), 6, False),
}
_LIGHT = 2  # first stage whose layers are light, of 5x5 convolutions; before it, they are plain and 3x3


class HGNetV2(Backbone):
    """Feature maps of levels 1..5, level l at stride 2^l: of the stem before its second stride, and of the four stages.

    Args:
        spec: network to build.
        activation: activation of the layers; None: relu.
        batch_norm: arguments of `BatchNormalization`.
        recompute: see `Backbone`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        spec: HGNetSpec,
        activation: str | None = None,
        batch_norm: dict[str, float],
        recompute: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ):
        super().__init__(recompute=recompute, name=name, dtype=dtype)
        common = {"activation": activation or "relu", "affine": spec.affine, "batch_norm": batch_norm, "dtype": dtype}
        inner, outer = spec.stem
        self.stem = [
            ConvNorm(3, inner, 3, 2, centred=True, name="stem_1", **common),
            ConvNorm(inner, inner // 2, 2, name="stem_2a", **common),
            ConvNorm(inner // 2, inner, 2, name="stem_2b", **common),
            ConvNorm(2 * inner, inner, 3, 2, centred=True, name="stem_3", **common),
            ConvNorm(inner, outer, 1, name="stem_4", **common),
        ]
        self.level_filters = [2 * inner]
        self.blocks: list[list[ConvNorm | Block]] = []
        channels = outer
        for number, (mid, out, repeats) in enumerate(spec.stages, start=1):
            stage: list[ConvNorm | Block] = []
            if number > 1:
                plain = common | {"activation": None}
                name = f"stage_{number}_downsample"
                stage.append(ConvNorm(channels, channels, 3, 2, depthwise=True, centred=True, name=name, **plain))
            for repeat in range(1, repeats + 1):
                options = {"layers": spec.layers, "light": number > _LIGHT, "adds": repeat > 1, **common}
                stage.append(Block(channels, mid, out, name=f"stage_{number}_block_{repeat}", **options))
                channels = out
            self.blocks.append(stage)
            self.level_filters.append(out)

    @property
    def stages(self) -> list[list[keras.layers.Layer]]:
        """Layers between the levels: the stem up to its second stride, the rest with stage 1, stages 2 to 4."""
        return [self.stem[:3], [*self.stem[3:], *self.blocks[0]], *self.blocks[1:]]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables of all blocks."""
        for stage in self.stages:
            for layer in stage:
                layer.build((None, None, None, layer.in_filters))

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Returns features [B, H / 2^l, W / 2^l, level_filters[l - 1]] of levels l = 1..5, sizes rounded up.

        Args:
            images: float [B, H, W, 3].
            training: use batch statistics.
            seed: ignored; for compatibility with backbones that use random numbers.
        """
        first, *branch = self.stem[:3]
        stem = branched = first(images, training=training)
        # Windows of 2 x 2 whose last row and column are zeros outside: pooling pads with zeros, too.
        pooled = tf.nn.max_pool2d(tf.pad(stem, [[0, 0], [0, 1], [0, 1], [0, 0]]), 2, 1, padding="VALID")
        for layer in branch:
            branched = layer(branched, training=training)
        levels = [tf.concat([pooled, branched], axis=-1)]
        for stage in self.stages[1:]:
            features = levels[-1]
            for layer in stage:
                call = functools.partial(layer, training=training)
                features = recomputed(call, features, enabled=training and self._recompute)
            levels.append(features)
        return levels


class Block(keras.layers.Layer):
    """A chain of layers, whose outputs and input two 1x1 convolutions aggregate: to half the channels, and to all.

    Args:
        in_filters: channels of the input.
        mid: channels of each layer.
        out: channels of the output.
        layers: number of layers.
        light: a layer is a 1x1 convolution without activation and a depthwise 5x5 one; False: a 3x3 convolution.
        adds: the input is added.
        name: layer name.
        dtype: Keras dtype policy.
        **common: other arguments of `ConvNorm`.
    """

    def __init__(
        self,
        in_filters: int,
        mid: int,
        out: int,
        *,
        layers: int,
        light: bool,
        adds: bool,
        name: str,
        dtype: Any,
        **common: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self.in_filters, self._adds = in_filters, adds
        common |= {"dtype": dtype}
        self.chain: list[list[ConvNorm]] = []
        for number in range(1, layers + 1):
            channels = in_filters if number == 1 else mid
            if light:
                plain = common | {"activation": None}
                pointwise = ConvNorm(channels, mid, 1, name=f"layer_{number}_pointwise", **plain)
                depthwise = ConvNorm(mid, mid, 5, depthwise=True, name=f"layer_{number}_depthwise", **common)
                self.chain.append([pointwise, depthwise])
            else:
                self.chain.append([ConvNorm(channels, mid, 3, name=f"layer_{number}", **common)])
        self.aggregation = [
            ConvNorm(in_filters + layers * mid, out // 2, 1, name="squeeze", **common),
            ConvNorm(out // 2, out, 1, name="excite", **common),
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        for layer in (*(one for link in self.chain for one in link), *self.aggregation):
            layer.build((None, None, None, layer.in_filters))

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, H, W, in_filters] to [B, H, W, out]."""
        outputs = [inputs]
        for link in self.chain:
            features = outputs[-1]
            for layer in link:
                features = layer(features, training=training)
            outputs.append(features)
        features = tf.concat(outputs, axis=-1)
        for layer in self.aggregation:
            features = layer(features, training=training)
        return features + inputs if self._adds else features
