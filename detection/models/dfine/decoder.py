"""The decoder: queries attend to each other and to the cells, and refine distributions of their boxes' sides.

Source: Peng et al., "D-FINE: Redefine Regression Task of DETRs as Fine-grained Distribution Refinement", 2024.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from pydantic import Field, PositiveFloat, PositiveInt

from detection.models.dfine.distributions import boxes_of_distances, expected_distances, log_odds, side_quality
from detection.models.dfine.queries import class_bias
from detection.models.dfine.sampling import sample_cells
from detection.models.dfine.transformer import Mlp, SelfAttention, dense, layer_norm
from detection.models.layers.batch_norm import activate
from detection.models.layers.initializers import glorot_uniform
from schemas.config.section import Section

_MOST = 65_504.0  # of float16
_POSITION_LIMIT = 10.0


class DecoderOptions(Section):
    """The decoder."""

    filters: PositiveInt = Field(256, description="channels of the queries")
    feedforward: PositiveInt = Field(1024, description="inner channels of the dense layers")
    heads: PositiveInt = Field(8, description="heads of each attention")
    layers: PositiveInt = Field(6, description="number of layers")
    points: tuple[PositiveInt, ...] = Field(
        (3, 6, 3), description="cells of each level, finest first, that each head of a query samples"
    )
    queries: PositiveInt = Field(300, description="number of queries, the max number of boxes per image")
    activation: str = Field("relu", description="activation of the dense layers; swish in DEIM's networks")
    bins: PositiveInt = Field(33, description="bins of the distribution of each side's distance")
    bin_up: PositiveFloat = Field(0.5, description="distance of the outer bins; with bin_scale, their spacing")
    bin_scale: PositiveFloat = Field(4.0, description="unit of the distances: 4 of them are the box's side")
    quality_filters: PositiveInt = Field(64, description="inner channels of the quality's dense layers")


class DecoderOutputs(NamedTuple):
    """Outputs of a layer, float32, of N queries.

    logits: [B, N, classes].
    boxes: [B, N, 4], (cx, cy, w, h), fractions of the input, not clipped.
    corners: [B, N, 4, bins], log-probabilities, not normalised, of left, top, right, bottom; None: initial boxes.
    """

    logits: tf.Tensor
    boxes: tf.Tensor
    corners: tf.Tensor | None


class Decoder(keras.layers.Layer):
    """All layers with their heads.

    Args:
        options: the decoder.
        num_classes: number of classes.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(self, options: DecoderOptions, num_classes: int, *, name: str = "decoder", dtype: Any = None):
        super().__init__(name=name, dtype=dtype, autocast=False)  # boxes stay float32
        self._options = options
        filters, activation = options.filters, options.activation
        zeros = keras.initializers.Zeros
        self.query_positions = Mlp(
            (4, 2 * filters, filters), activation=activation, kernel=glorot_uniform, name="query_positions", dtype=dtype
        )
        self.initial_boxes = Mlp(
            (filters, filters, filters, 4), activation=activation, last=zeros, name="initial_boxes", dtype=dtype
        )
        numbers = range(options.layers)
        self.decoder_layers = [DecoderLayer(options, name=f"layer_{number}", dtype=dtype) for number in numbers]
        self.classes = [
            dense(filters, num_classes, bias=class_bias, name=f"classes_{number}", dtype=dtype) for number in numbers
        ]
        corners = (filters, filters, filters, 4 * options.bins)
        self.corners = [
            Mlp(corners, activation=activation, last=zeros, name=f"corners_{number}", dtype=dtype) for number in numbers
        ]
        self.qualities = [
            Mlp(
                (20, options.quality_filters, 1),
                activation=activation,
                last=zeros,
                name=f"quality_{number}",
                dtype=dtype,
            )
            for number in numbers
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        heads: list[Any] = [self.query_positions, self.initial_boxes, *self.corners, *self.qualities]
        for layer in (*heads, *self.decoder_layers):
            layer.build((None, None))
        for layer in self.classes:
            layer.build((None, self._options.filters))

    def call(
        self,
        content: tf.Tensor,
        boxes: tf.Tensor,
        memory: tf.Tensor,
        *,
        sizes: Sequence[tuple[int, int]],
        blocked: tf.Tensor | None = None,
        training: bool = False,
    ) -> tuple[DecoderOutputs, list[DecoderOutputs]]:
        """Returns the outputs of the initial boxes, and of each layer; in inference of the last alone.

        Args:
            content: [B, N, filters].
            boxes: float32 [B, N, 4], log-odds of (cx, cy, w, h).
            memory: [B, T, filters], the cells of all levels, finest first.
            sizes: (height, width) of each level.
            blocked: bool [N, N] or [B, N, N]: the query of a row does not see the key of a column.
            training: return the outputs of all layers.
        """
        options = self._options
        reference = tf.sigmoid(boxes)
        before: tf.Tensor = tf.zeros_like(content)
        corners: tf.Tensor = 0.0
        initial: DecoderOutputs | None = None
        outputs = []
        for number, layer in enumerate(self.decoder_layers):
            reference = tf.stop_gradient(reference)
            positions = self.query_positions(tf.cast(reference, content.dtype))
            positions = tf.clip_by_value(positions, -_POSITION_LIMIT, _POSITION_LIMIT)
            content = layer(content, positions, reference, memory, sizes=sizes, blocked=blocked)
            if initial is None:
                moved = tf.cast(self.initial_boxes(content), tf.float32) + log_odds(reference)
                logits = tf.cast(self.classes[0](content), tf.float32)
                initial = DecoderOutputs(logits, tf.sigmoid(moved), None)
            refined = self.corners[number](content + tf.stop_gradient(before))
            shape = [-1, content.shape[1], 4, options.bins]
            corners = corners + tf.reshape(tf.cast(refined, tf.float32), shape)
            distances = expected_distances(corners, up=options.bin_up, scale=options.bin_scale)
            reference = boxes_of_distances(tf.stop_gradient(initial.boxes), distances, scale=options.bin_scale)
            if training or number == options.layers - 1:
                quality = self.qualities[number](tf.cast(side_quality(corners), content.dtype))
                logits = tf.cast(self.classes[number](content), tf.float32) + tf.cast(quality, tf.float32)
                outputs.append(DecoderOutputs(logits, reference, corners))
            before = content
        assert initial is not None
        return initial, outputs


class DecoderLayer(keras.layers.Layer):
    """Attention between queries, attention to the cells through a gate, and dense layers."""

    def __init__(self, options: DecoderOptions, *, name: str, dtype: Any):
        super().__init__(name=name, dtype=dtype, autocast=False)
        self._options = options
        filters, zeros = options.filters, keras.initializers.Zeros
        self.self_attention = SelfAttention(filters, heads=options.heads, name="self_attention", dtype=dtype)
        self.norms = [layer_norm(f"norm_{part}", dtype) for part in ("attention", "gate", "output")]
        places = options.heads * sum(options.points)
        self.offsets = dense(
            filters, 2 * places, kernel=zeros, bias=functools.partial(_spread, options), name="offsets", dtype=dtype
        )
        self.weights_of_points = dense(filters, places, kernel=zeros, bias=zeros, name="weights", dtype=dtype)
        self.gate = dense(2 * filters, 2 * filters, kernel=zeros, bias=zeros, name="gate", dtype=dtype)
        self.linears = [
            dense(filters, options.feedforward, kernel=glorot_uniform, name="linear_1", dtype=dtype),
            dense(options.feedforward, filters, kernel=glorot_uniform, name="linear_2", dtype=dtype),
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        filters = self._options.filters
        for layer in (self.self_attention, *self.norms, self.offsets, self.weights_of_points, self.linears[0]):
            layer.build((None, filters))
        self.gate.build((None, 2 * filters))
        self.linears[1].build((None, self._options.feedforward))

    def call(
        self,
        content: tf.Tensor,
        positions: tf.Tensor,
        reference: tf.Tensor,
        memory: tf.Tensor,
        *,
        sizes: Sequence[tuple[int, int]],
        blocked: tf.Tensor | None,
    ) -> tf.Tensor:
        """Maps queries [B, N, filters] to [B, N, filters]; arguments as for `Decoder.call`."""
        content = self.norms[0](content + self.self_attention(content, positions, blocked))
        sampled = self._sample(content + positions, reference, memory, sizes)
        gates = tf.sigmoid(self.gate(tf.concat([content, sampled], axis=-1)))
        own, other = tf.split(gates, 2, axis=-1)
        content = self.norms[1](own * content + other * sampled)
        inner = activate(self.linears[0](content), self._options.activation)
        return self.norms[2](tf.clip_by_value(content + self.linears[1](inner), -_MOST, _MOST))

    def _sample(
        self, queries: tf.Tensor, reference: tf.Tensor, memory: tf.Tensor, sizes: Sequence[tuple[int, int]]
    ) -> tf.Tensor:
        options = self._options
        shape = [-1, queries.shape[1], options.heads, sum(options.points)]
        offsets = tf.reshape(tf.cast(self.offsets(queries), tf.float32), [*shape, 2])
        weights = tf.nn.softmax(tf.reshape(tf.cast(self.weights_of_points(queries), tf.float32), shape))
        shares = np.concatenate([np.full(count, 0.5 / count) for count in options.points]).astype(np.float32)
        centers, sides = tf.split(tf.reshape(reference, [-1, queries.shape[1], 1, 1, 4]), 2, axis=-1)
        points = centers + offsets * shares[:, np.newaxis] * sides
        return sample_cells(memory, points, weights, sizes, counts=options.points)


def _spread(options: DecoderOptions) -> Any:
    """Returns the initial offsets: each head looks into a direction of its own, each point of a level farther."""
    angles = 2.0 * np.pi * np.arange(options.heads) / options.heads
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    directions /= np.abs(directions).max(axis=1, keepdims=True)
    steps = np.concatenate([np.arange(1, count + 1) for count in options.points])
    values = directions[:, np.newaxis] * steps[:, np.newaxis]
    return lambda shape, dtype=None: tf.constant(values.reshape(shape), dtype or tf.float32)
