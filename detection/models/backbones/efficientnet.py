"""EfficientNet, MnasNet and MobileNet without their classifiers, as feature extractors, with stochastic depth.

Layer names follow google/automl, see `detection.interop.automl.checkpoint.automl_name`.
"""

import functools
from typing import Any

import keras
import tensorflow as tf

from detection.models.backbones.contract import Backbone
from detection.models.backbones.efficientnet_spec import (
    BlockSpec,
    EfficientNetLayout,
    EfficientNetSpec,
    block_specs,
    level_blocks,
    stem_filters,
)
from detection.models.layers.batch_norm import BatchNormalization, activate
from detection.models.layers.conv import ConvNorm, conv2d
from detection.models.layers.drop_connect import drop_connect
from detection.models.layers.initializers import he_normal
from detection.models.layers.recompute import recomputed

_SE_RATIO = 0.25  # squeezed channels per input channel of a block


class EfficientNet(Backbone):
    """Feature maps of levels 1..L, level l at stride 2^l: the output of a block before each halving.

    Args:
        spec: network to build.
        activation: name of the activation; None: that of `spec`.
        layout: selects the blocks whose outputs are levels, as in `level_blocks`; blocks after level L are not built.
        expanded: a level is the expansion within the next block, which halves it later, if there is one, as in SSD.
        survival_probability: survival of the last block in stochastic depth; None: off.
        batch_norm: arguments of `BatchNormalization`.
        recompute: see `Backbone`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        spec: EfficientNetSpec,
        activation: str | None = None,
        layout: EfficientNetLayout = "standard",
        expanded: bool = False,
        survival_probability: float | None = None,
        batch_norm: dict[str, float],
        recompute: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ):
        super().__init__(recompute=recompute, name=name, dtype=dtype)
        self.spec = spec
        common = {"activation": activation or spec.activation, "batch_norm": batch_norm, "dtype": self.dtype_policy}
        blocks = block_specs(spec)
        self._level_blocks = level_blocks(spec, layout)
        self.stem = ConvNorm(3, stem_filters(spec), 3, 2, name="stem", **common)
        self.blocks = [
            Block(
                spec=block,
                index=index,
                survival=survival_probability and survival_of(index, len(blocks), last=survival_probability),
                name=f"blocks_{index}",
                **common,
            )
            for index, block in enumerate(blocks[: self._level_blocks[-1] + 1])
        ]
        # Blocks whose expansions are levels.
        self._expansions = [
            index + 1 for index in self._level_blocks[:-1] if expanded and blocks[index + 1].expand != 1
        ]
        self.level_filters = [
            blocks[index + 1].expanded_filters if index + 1 in self._expansions else blocks[index].out_filters
            for index in self._level_blocks
        ]
        self.top: ConvNorm | None = None
        if spec.top_filters is not None:
            self.top = ConvNorm(self.level_filters[-1], spec.top_filters, 1, name="top", **common)
            self.level_filters[-1] = spec.top_filters
        if blocks[0].stride == 2:
            self.level_filters.insert(0, stem_filters(spec))

    @property
    def stages(self) -> list[list[keras.layers.Layer]]:
        """Layers between the levels: the first stage starts at the image, each later one at a strided block."""
        stages: list[list[keras.layers.Layer]] = [[self.stem]]
        for block in self.blocks:
            if block.spec.stride == 2:
                stages.append([])
            stages[-1].append(block)
        if self.top is not None:
            stages[-1].append(self.top)
        return stages

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables of all blocks."""
        self.stem.build(input_shape)
        for block in self.blocks:
            block.build((None, None, None, block.spec.in_filters))
        if self.top is not None:
            self.top.build((None, None, None, self.blocks[-1].spec.out_filters))

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Returns features [B, H / 2^l, W / 2^l, level_filters[l - 1]] of levels l = 1..L, sizes rounded up."""
        features = self.stem(images, training=training)
        levels = [features] if self.blocks[0].spec.stride == 2 else []
        for index, block in enumerate(self.blocks):
            if index in self._expansions:
                levels[-1] = block.expand(features, training=training)
                features = block(features, training=training, seed=seed, expanded=levels[-1])
            else:
                call = functools.partial(block, training=training, seed=seed)
                features = recomputed(call, features, enabled=training and self._recompute)
            if index in self._level_blocks:
                levels.append(features)
        if self.top is not None:
            levels[-1] = self.top(levels[-1], training=training)
        return levels


_conv = functools.partial(conv2d, kernel=1, bias=None, initializer=he_normal)


class Block(keras.layers.Layer):
    """Inverted bottleneck: expand, depthwise, squeeze-and-excite, project, add.

    Args:
        spec: kernel, stride, channels and branches.
        index: position in the network; it seeds the block's drop-connect.
        survival: probability of keeping the branch in training; None: always kept.
        activation: name of the activation.
        batch_norm: arguments of `BatchNormalization`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        spec: BlockSpec,
        index: int,
        survival: float | None,
        activation: str,
        batch_norm: dict[str, float],
        name: str,
        dtype: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self.spec = spec
        self._index = index
        self._survival = survival
        self._activation = activation
        inner = spec.expanded_filters
        expands = spec.expand != 1
        norms = [
            BatchNormalization(name=_numbered("batch_normalization", number), dtype=dtype, **batch_norm)
            for number in range(2 + expands)
        ]
        self.expand_conv = _conv(inner, name="conv2d", dtype=dtype) if expands else None
        self.expand_norm = norms[0] if expands else None
        self.depthwise_conv = keras.layers.DepthwiseConv2D(
            spec.kernel,
            strides=spec.stride,
            padding="same",
            use_bias=False,
            depthwise_initializer=he_normal(),
            name="depthwise_conv2d",
            dtype=dtype,
        )
        self.depthwise_norm = norms[-2]
        self.squeeze_excite = None
        if spec.squeeze_excite:
            squeezed = max(1, int(spec.in_filters * _SE_RATIO))
            self.squeeze_excite = SqueezeExcite(
                filters=inner, squeezed=squeezed, activation=activation, name="se", dtype=dtype
            )
        self.project_conv = _conv(spec.out_filters, name=_numbered("conv2d", int(expands)), dtype=dtype)
        self.project_norm = norms[-1]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        inner = (None, None, None, self.spec.expanded_filters)
        if self.expand_conv is not None:
            self.expand_conv.build(input_shape)
        if self.expand_norm is not None:
            self.expand_norm.build(inner)
        self.depthwise_conv.build(inner)
        self.depthwise_norm.build(inner)
        if self.squeeze_excite is not None:
            self.squeeze_excite.build(inner)
        self.project_conv.build(inner)
        self.project_norm.build((None, None, None, self.spec.out_filters))

    def expand(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, H, W, in_filters] to [B, H, W, expanded_filters], the first part of `call`."""
        if self.expand_conv is None or self.expand_norm is None:
            return inputs
        return activate(self.expand_norm(self.expand_conv(inputs), training=training), self._activation)

    def call(
        self,
        inputs: tf.Tensor,
        training: bool = False,
        seed: tf.Tensor | None = None,
        expanded: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Maps [B, H, W, in_filters] to [B, H / stride, W / stride, out_filters]; `expanded`: result of `expand`."""
        outputs = self.expand(inputs, training=training) if expanded is None else expanded
        outputs = activate(self.depthwise_norm(self.depthwise_conv(outputs), training=training), self._activation)
        if self.squeeze_excite is not None:
            outputs = self.squeeze_excite(outputs)
        outputs = self.project_norm(self.project_conv(outputs), training=training)
        if self.spec.activates:
            outputs = activate(outputs, self._activation)
        if not self.spec.adds or self.spec.stride != 1 or self.spec.in_filters != self.spec.out_filters:
            return outputs
        if training and seed is not None and self._survival is not None:
            outputs = drop_connect(outputs, survival=self._survival, seed=seed, index=self._index)
        return inputs + outputs


class SqueezeExcite(keras.layers.Layer):
    """Scales each channel by a factor in (0, 1) computed from the means of all channels."""

    def __init__(self, *, filters: int, squeezed: int, activation: str, name: str, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self._activation = activation
        self.reduce = _conv(squeezed, name="conv2d", bias=0.0, dtype=dtype)
        self.expand = _conv(filters, name="conv2d_1", bias=0.0, dtype=dtype)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables of the two 1x1 convolutions."""
        self.reduce.build(input_shape)
        self.expand.build((None, None, None, self.reduce.filters))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Scales [B, H, W, C]."""
        means = tf.cast(tf.reduce_mean(tf.cast(inputs, tf.float32), [1, 2], keepdims=True), inputs.dtype)
        return inputs * tf.sigmoid(self.expand(activate(self.reduce(means), self._activation)))


def _numbered(name: str, number: int) -> str:
    return name if number == 0 else f"{name}_{number}"


def survival_of(index: int, count: int, *, last: float) -> float:
    """Returns the probability of keeping block `index` of `count`, which falls linearly from 1 towards `last`."""
    return 1.0 - (1.0 - last) * index / count
