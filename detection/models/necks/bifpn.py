"""BiFPN: repeated top-down and bottom-up fusion of resampled pyramid levels.

Tan, Pang and Le, "EfficientDet", 2020, figure 2(d).  Layer names follow google/automl, see
`detection.weights.automl.automl_name`.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization, activate

Fusion = Literal["fast_attention", "attention", "sum"]
_EPSILON = 1e-4  # of fast attention's denominator


class Node(NamedTuple):
    """A fusion node: its level, and the ids of its inputs.

    Ids count the cell's input levels first, then its nodes in order.
    """

    level: int
    inputs: tuple[int, ...]


def bifpn_nodes(min_level: int, max_level: int) -> list[Node]:
    """Returns the nodes of one cell: top-down from the second coarsest level, then bottom-up to the coarsest."""
    ids = {level: [number] for number, level in enumerate(range(min_level, max_level + 1))}
    next_id = max_level - min_level + 1
    nodes = []
    for level in range(max_level - 1, min_level - 1, -1):
        nodes.append(Node(level, (ids[level][-1], ids[level + 1][-1])))
        ids[level].append(next_id)
        next_id += 1
    for level in range(min_level + 1, max_level + 1):
        nodes.append(Node(level, (*ids[level], ids[level - 1][-1])))
        ids[level].append(next_id)
        next_id += 1
    return nodes


def output_ids(min_level: int, max_level: int) -> list[int]:
    """Returns the ids of the last node of each level, finest first."""
    last = {
        node.level: max_level - min_level + 1 + number for number, node in enumerate(bifpn_nodes(min_level, max_level))
    }
    return [last[level] for level in range(min_level, max_level + 1)]


def fuse(features: Sequence[tf.Tensor], weights: Sequence[tf.Tensor], method: Fusion) -> tf.Tensor:
    """Returns the weighted sum of features of equal shape.

    Args:
        features: float tensors of one shape.
        weights: float32 scalars, one per feature; ignored for `sum`.
        method: `fast_attention`: relu(w) / (sum of relu(w) + 1e-4); `attention`:
            softmax(w); `sum`: all 1.
    """
    if method == "sum":
        return tf.add_n(list(features))
    if method == "attention":
        normalized = tf.nn.softmax(tf.stack(list(weights)))
    else:
        positive = tf.nn.relu(tf.stack(list(weights)))
        normalized = positive / (tf.reduce_sum(positive) + _EPSILON)
    normalized = tf.unstack(tf.cast(normalized, features[0].dtype), num=len(features))
    return tf.add_n([feature * weight for feature, weight in zip(features, normalized, strict=True)])


class BiFpn(keras.layers.Layer):
    """A stack of cells.

    Args:
        min_level: finest level.
        max_level: coarsest level.
        filters: channels of all outputs.
        num_cells: number of cells.
        fusion: method of weighting inputs, see `fuse`.
        activation: name of the activation.
        batch_norm: arguments of `BatchNormalization`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        min_level: int,
        max_level: int,
        filters: int,
        num_cells: int,
        fusion: Fusion,
        activation: str,
        batch_norm: dict[str, float],
        name: str = "fpn_cells",
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self.cells = [
            _Cell(
                min_level=min_level,
                max_level=max_level,
                filters=filters,
                fusion=fusion,
                activation=activation,
                batch_norm=batch_norm,
                name=f"cell_{number}",
                dtype=self.dtype_policy,
            )
            for number in range(num_cells)
        ]
        self._filters = filters

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
            outputs = cell(outputs, training=training)
        return outputs


class _Cell(keras.layers.Layer):
    """One BiFPN: nodes in order, with levels and earlier nodes as inputs."""

    def __init__(
        self,
        *,
        min_level: int,
        max_level: int,
        filters: int,
        fusion: Fusion,
        activation: str,
        batch_norm: dict[str, float],
        name: str,
        dtype: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self._nodes = bifpn_nodes(min_level, max_level)
        self._outputs = output_ids(min_level, max_level)
        self._min_level = min_level
        self._filters = filters
        num_levels = max_level - min_level + 1
        self.fusions = [
            _FusionNode(
                inputs=node.inputs,
                first_free_id=num_levels + number,
                filters=filters,
                fusion=fusion,
                activation=activation,
                batch_norm=batch_norm,
                name=f"fnode{number}",
                dtype=dtype,
            )
            for number, node in enumerate(self._nodes)
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
    """Resamples its inputs, fuses them, then activation, separable 3x3 convolution, batch norm."""

    def __init__(
        self,
        *,
        inputs: tuple[int, ...],
        first_free_id: int,
        filters: int,
        fusion: Fusion,
        activation: str,
        batch_norm: dict[str, float],
        name: str,
        dtype: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self._fusion: Fusion = fusion
        self.resamples = [
            Resample(
                filters=filters,
                batch_norm=batch_norm,
                name=f"resample_{place}_{number}_{first_free_id}",
                dtype=dtype,
            )
            for place, number in enumerate(inputs)
        ]
        self.after = _AfterFusion(
            filters=filters,
            activation=activation,
            batch_norm=batch_norm,
            name=f"op_after_combine{first_free_id}",
            dtype=dtype,
        )
        self._filters = filters

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per input."""
        self.weights_of_inputs = []
        if self._fusion != "sum":
            names = ["WSM" if place == 0 else f"WSM_{place}" for place in range(len(input_shape))]
            self.weights_of_inputs = [
                self.add_weight(name=name, shape=(), initializer="ones", dtype="float32", autocast=False)
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
    """Activation, separable 3x3 convolution, batch norm."""

    def __init__(self, *, filters: int, activation: str, batch_norm: dict[str, float], name: str, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self._activation = activation
        self.conv = keras.layers.SeparableConv2D(filters, 3, padding="same", name="conv", dtype=dtype)
        self.norm = BatchNormalization(name="bn", dtype=dtype, **batch_norm)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        self.conv.build(input_shape)
        self.norm.build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Keeps the shape."""
        return self.norm(self.conv(activate(inputs, self._activation)), training=training)


class Resample(keras.layers.Layer):
    """1x1 convolution and batch norm if the channels differ, then pooling or nearest upsampling.

    Args:
        filters: output channels.
        batch_norm: arguments of `BatchNormalization`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(self, *, filters: int, batch_norm: dict[str, float], name: str, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self._filters = filters
        self._batch_norm = batch_norm
        self.conv: Any = None
        self.norm: Any = None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables of the convolution, if there is one."""
        if input_shape[-1] == self._filters:
            return
        self.conv = keras.layers.Conv2D(self._filters, 1, padding="same", name="conv2d", dtype=self.dtype_policy)
        self.norm = BatchNormalization(name="bn", dtype=self.dtype_policy, **self._batch_norm)
        self.conv.build(input_shape)
        self.norm.build((None, None, None, self._filters))

    def call(self, inputs: tf.Tensor, *, size: tuple[int, int], training: bool = False) -> tf.Tensor:
        """Resamples [B, H, W, C] to [B, *size, filters]; static sizes."""
        outputs = inputs
        if self.conv is not None:
            outputs = self.norm(self.conv(outputs), training=training)
        return upsample_nearest(_pool(outputs, size), size)


def _pool(inputs: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Max-pools to at most `size`, with windows one larger than the stride."""
    strides = [(length - 1) // target + 1 for length, target in zip(inputs.shape[1:3], size, strict=True)]
    if strides == [1, 1]:
        return inputs
    windows = [stride + 1 if stride > 1 else 1 for stride in strides]
    return tf.nn.max_pool2d(inputs, windows, strides, padding="SAME")


def upsample_nearest(inputs: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Repeats rows and columns of [B, H, W, C] up to [B, *size, C].

    Between adjacent pyramid levels (each half the finer one, rounded up) this equals the
    nearest-neighbour resize floor(i * H / size), but only copies: it is fast, and its
    gradient is deterministic.
    """
    height, width, channels = inputs.shape[1:]
    times_y, times_x = -(-size[0] // height), -(-size[1] // width)
    if (times_y, times_x) == (1, 1):
        return inputs
    wide = tf.reshape(tf.concat([inputs] * times_x, axis=3), [-1, height, 1, width * times_x * channels])
    tall = tf.reshape(tf.concat([wide] * times_y, axis=2), [-1, height * times_y, width * times_x, channels])
    return tall[:, : size[0], : size[1]]
