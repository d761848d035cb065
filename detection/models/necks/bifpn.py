"""BiFPN: repeated top-down and bottom-up fusion of resampled pyramid levels, and its variants.

Tan, Pang and Le, "EfficientDet", 2020, figure 2(d).  Layer names follow google/automl, see
`detection.interop.automl.checkpoint.automl_name`.
"""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import keras
import tensorflow as tf
from pydantic import Field, NonNegativeInt, PositiveInt

from detection.models.layers.batch_norm import BatchNormalization, activate
from detection.models.layers.conv import conv2d
from detection.models.layers.recompute import recomputed
from detection.models.necks.fpn_graphs import FpnGraph, Node, output_ids
from detection.models.necks.resample import Resample
from schemas.config.section import Section

Fusion = Literal["fast_attention", "attention", "channel_fast_attention", "channel_attention", "sum"]
FpnNode = tuple[PositiveInt, tuple[NonNegativeInt, ...]]
_EPSILON = 1e-4  # added to the denominator of fast attention


def fuse(features: Sequence[tf.Tensor], weights: Sequence[tf.Tensor], method: Fusion) -> tf.Tensor:
    """Returns the weighted sum of features of equal shape.

    Args:
        features: float tensors of one shape, [..., C].
        weights: float32, one per feature: scalars, or [C] for the channel methods; ignored
            for `sum`.
        method: `fast_attention`: relu(w) / (sum of relu(w) + 1e-4); `attention`:
            softmax(w); `channel_...`: the same per channel; `sum`: all weights are 1.
    """
    if method == "sum":
        return _sum(features)
    if method.endswith("fast_attention"):
        positive = tf.nn.relu(tf.stack(list(weights)))
        normalized = positive / (tf.reduce_sum(positive, axis=0) + _EPSILON)
    else:
        normalized = tf.nn.softmax(tf.stack(list(weights)), axis=0)
    normalized = tf.unstack(tf.cast(normalized, features[0].dtype), num=len(features))
    return _sum([feature * weight for feature, weight in zip(features, normalized, strict=True)])


def _sum(features: Sequence[tf.Tensor]) -> tf.Tensor:
    # tf.add_n has no 8-bit kernel in LiteRT: neighbouring ops would run in float32, and on the CPU of a Coral device.
    return functools.reduce(tf.add, features)


class BiFpnOptions(Section):
    """The cells of a BiFPN."""

    filters: PositiveInt = Field(64, description="channels of neck and heads")
    cells: PositiveInt = Field(3, description="number of cells")
    graph: FpnGraph | tuple[FpnNode, ...] = Field(
        "bifpn",
        description="nodes of a cell: a name, or a list of [level, [inputs]]; inputs are numbers of the cell's levels, "
        "finest first and from 0, then of its nodes",
    )
    fusion: Fusion = Field(
        "fast_attention",
        description="weights of a node's inputs: fast_attention: relu(w) / (sum + 1e-4); attention: softmax(w); with "
        "channel_: a weight per channel; sum: 1",
    )
    separable_conv: bool = Field(True, description="3x3 convolutions of the neck are separable; false: plain ones")
    conv_bn_act: bool = Field(
        False,
        description="after the fusion: convolution without bias, batch norm, activation; false: activation comes first",
    )
    resample_batch_norm: bool = Field(True, description="batch norm after the 1x1 convolutions that change channels")
    conv_after_pooling: bool = Field(False, description="those convolutions come after pooling, not before")


class BiFpn(keras.layers.Layer):
    """A stack of BiFPN cells.

    Args:
        nodes: nodes of a cell, in order.
        options: number of cells, and options of all nodes.
        min_level: finest level.
        max_level: coarsest level.
        activation: name of the activation.
        batch_norm: arguments of `BatchNormalization`.
        recompute: recompute each cell in the backward pass, to save memory.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        options: BiFpnOptions,
        *,
        min_level: int,
        max_level: int,
        activation: str,
        batch_norm: dict[str, float],
        recompute: bool = False,
        name: str = "fpn_cells",
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        common = {"activation": activation, "batch_norm": batch_norm, "dtype": dtype}
        self.cells = [
            _Cell(nodes, options, min_level=min_level, max_level=max_level, name=f"cell_{number}", **common)
            for number in range(options.cells)
        ]
        self._filters = options.filters
        self._recompute = recompute

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per level, finest first."""
        shapes = list(input_shape)
        for cell in self.cells:
            cell.build(shapes)
            shapes = [(*shape[:-1], self._filters) for shape in shapes]

    def call(self, features: Sequence[tf.Tensor], training: bool = False) -> list[tf.Tensor]:
        """Returns features [B, h, w, filters] per level, finest first."""
        outputs = list(features)
        for cell in self.cells:
            outputs = list(
                recomputed(functools.partial(cell, training=training), outputs, enabled=training and self._recompute)
            )
        return outputs


class _Cell(keras.layers.Layer):
    """One BiFPN: nodes in order, with levels and earlier nodes as inputs."""

    def __init__(
        self, nodes: Sequence[Node], options: BiFpnOptions, *, min_level: int, max_level: int, name: str, **common: Any
    ):
        super().__init__(name=name, dtype=common["dtype"])
        self._nodes = nodes
        self._outputs = output_ids(nodes, min_level, max_level)
        self._min_level = min_level
        self._filters = options.filters
        num_levels = max_level - min_level + 1
        self.fusions = [
            _FusionNode(node.inputs, options, first_free_id=num_levels + number, name=f"fnode{number}", **common)
            for number, node in enumerate(nodes)
        ]

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables of all nodes."""
        shapes = list(input_shape)
        for node, fusion in zip(self._nodes, self.fusions, strict=True):
            fusion.build([shapes[number] for number in node.inputs])
            shapes.append((None, None, None, self._filters))

    def call(self, features: Sequence[tf.Tensor], training: bool = False) -> list[tf.Tensor]:
        """Fuses features per level into features per level."""
        outputs = list(features)
        for node, fusion in zip(self._nodes, self.fusions, strict=True):
            size = tuple(features[node.level - self._min_level].shape[1:3])
            outputs.append(fusion([outputs[number] for number in node.inputs], size=size, training=training))
        return [outputs[number] for number in self._outputs]


class _FusionNode(keras.layers.Layer):
    """Resamples its inputs, fuses them, then activation, 3x3 convolution and batch norm."""

    def __init__(self, inputs: tuple[int, ...], options: BiFpnOptions, *, first_free_id: int, name: str, **common: Any):
        super().__init__(name=name, dtype=common["dtype"])
        self._fusion: Fusion = options.fusion
        self.resamples = [
            Resample(
                filters=options.filters,
                batch_norm=common["batch_norm"] if options.resample_batch_norm else None,
                conv_after_pooling=options.conv_after_pooling,
                name=f"resample_{place}_{number}_{first_free_id}",
                dtype=common["dtype"],
            )
            for place, number in enumerate(inputs)
        ]
        self.after = _AfterFusion(options, name=f"op_after_combine{first_free_id}", **common)
        self._filters = options.filters

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per input."""
        self.weights_of_inputs = []
        if self._fusion != "sum":
            weight_shape = (self._filters,) if self._fusion.startswith("channel_") else ()
            names = ["WSM" if place == 0 else f"WSM_{place}" for place in range(len(input_shape))]
            self.weights_of_inputs = [
                self.add_weight(name=name, shape=weight_shape, initializer="ones", dtype="float32", autocast=False)
                for name in names
            ]
        for resample, shape in zip(self.resamples, input_shape, strict=True):
            resample.build(shape)
        self.after.build((None, None, None, self._filters))

    def call(self, features: Sequence[tf.Tensor], *, size: tuple[int, int], training: bool = False) -> tf.Tensor:
        """Fuses inputs of any sizes into [B, *size, filters]."""
        resampled = [
            resample(feature, size=size, training=training)
            for resample, feature in zip(self.resamples, features, strict=True)
        ]
        weights = [tf.convert_to_tensor(weight.value) for weight in self.weights_of_inputs]
        return self.after(fuse(resampled, weights, self._fusion), training=training)


class _AfterFusion(keras.layers.Layer):
    """Activation, 3x3 convolution, batch norm; or with the activation last."""

    def __init__(self, options: BiFpnOptions, *, activation: str, batch_norm: dict[str, float], name: str, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self._activation = activation
        self._conv_bn_act = options.conv_bn_act
        self.conv = conv2d(
            options.filters,
            3,
            separable=options.separable_conv,
            bias=None if options.conv_bn_act else 0.0,
            name="conv",
            dtype=dtype,
        )
        self.norm = BatchNormalization(name="bn", dtype=dtype, **batch_norm)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        self.conv.build(input_shape)
        self.norm.build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Keeps the shape."""
        if self._conv_bn_act:
            return activate(self.norm(self.conv(inputs), training=training), self._activation)
        return self.norm(self.conv(activate(inputs, self._activation)), training=training)
