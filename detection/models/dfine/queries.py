"""Selection of the decoder's queries among the cells of all levels: anchors, scores, boxes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.models.dfine.sampling import gather_cells
from detection.models.dfine.transformer import Mlp, dense, layer_norm
from detection.models.layers.initializers import glorot_uniform

_SIDE = 0.05  # of an anchor of the finest level, as a fraction of the image's
_MARGIN = 0.01  # cells whose anchors are nearer to 0 or 1 are no queries


def class_bias() -> Any:
    """Returns the initializer of a head of classes: each has a probability of 0.01 at first."""
    return keras.initializers.Constant(-float(np.log(99.0)))


class Queries(NamedTuple):
    """Selected cells, best first.

    content: [B, Q, C], features.
    logits: float32 [B, Q, classes].
    boxes: float32 [B, Q, 4], log-odds of (cx, cy, w, h), fractions of the input.
    indices: int32 [B, Q], cells of all levels, finest first, row by row.
    """

    content: tf.Tensor
    logits: tf.Tensor
    boxes: tf.Tensor
    indices: tf.Tensor


def cell_anchors(sizes: Sequence[tuple[int, int]]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Returns the log-odds of each cell's anchor, float32 [T, 4], (cx, cy, w, h), and whether it is a query, bool [T].

    Args:
        sizes: (height, width) of each level, finest first.
    """
    boxes = []
    for level, (height, width) in enumerate(sizes):
        y, x = np.divmod(np.arange(height * width), width)
        side = np.full(height * width, _SIDE * 2.0**level)
        boxes.append(np.stack([(x + 0.5) / width, (y + 0.5) / height, side, side], axis=1))
    anchors = np.concatenate(boxes)
    valid: npt.NDArray[np.bool_] = np.logical_and.reduce((anchors > _MARGIN) & (anchors < 1.0 - _MARGIN), axis=1)
    inside = np.where(valid[:, np.newaxis], anchors, 0.5)
    return np.log(inside / (1.0 - inside)).astype(np.float32), valid


class QuerySelection(keras.layers.Layer):
    """Scores all cells, and takes the best by their best class.

    Args:
        filters: channels of the cells.
        num_classes: number of classes.
        count: number of queries; all cells if there are fewer.
        activation: activation of the head of boxes.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(self, filters: int, num_classes: int, *, count: int, activation: str, name: str, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self._filters, self._count = filters, count
        self.projection = dense(filters, filters, kernel=glorot_uniform, name="projection", dtype=dtype)
        self.norm = layer_norm("norm", dtype)
        self.classes = dense(filters, num_classes, bias=class_bias, name="classes", dtype=dtype)
        widths = (filters, filters, filters, 4)
        self.boxes = Mlp(widths, activation=activation, last=keras.initializers.Zeros, name="boxes", dtype=dtype)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        for layer in (self.projection, self.norm, self.classes, self.boxes):
            layer.build((None, self._filters))

    def call(self, memory: tf.Tensor, *, sizes: Sequence[tuple[int, int]]) -> Queries:
        """Selects queries.

        Args:
            memory: [B, T, filters], the cells of all levels.
            sizes: (height, width) of each level.
        """
        anchors, valid = cell_anchors(sizes)
        cells = self.norm(self.projection(memory * tf.cast(valid[:, np.newaxis], memory.dtype)))
        logits = tf.cast(self.classes(cells), tf.float32)
        _, indices = tf.math.top_k(tf.reduce_max(logits, axis=2), min(self._count, len(anchors)))
        content, logits = (gather_cells(values, indices) for values in (cells, logits))
        places = tf.reshape(tf.gather(tf.constant(anchors), tf.reshape(indices, [-1])), [-1, indices.shape[1], 4])
        boxes = tf.cast(self.boxes(content), tf.float32) + places
        return Queries(content, logits, boxes, indices)
