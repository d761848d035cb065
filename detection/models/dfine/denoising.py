"""Denoising queries: noisy copies of the objects, which learn to find them again beside the matching queries.

Source: Zhang et al., "DINO", 2022, with the mask and the noise of RT-DETR and D-FINE.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from detection.models.dfine.distributions import log_odds
from detection.models.dfine.matching import Objects, corners_of
from detection.models.layers.initializers import normal
from detection.ops.replicas import own_random_bits

_FLIPS = 0.25  # share of the copies with a random class
_RANDOM_INDEX = 0xD71E  # of the random bits of a step


class ClassEmbedding(keras.layers.Layer):
    """Features of a query of a class: zeros for a slot without an object, whose class is the number of classes.

    Classes are the last axis of `embedding`, float32 [filters, classes], as in heads.
    """

    def __init__(self, num_classes: int, filters: int, *, dtype: Any):
        super().__init__(name="class_embedding", dtype=dtype)
        self._shape = (filters, num_classes)
        self.embedding: Any = None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variable."""
        self.embedding = self.add_weight(name="embedding", shape=self._shape, initializer=normal(1.0))

    def call(self, classes: tf.Tensor) -> tf.Tensor:
        """Maps int32 [B, D] to [B, D, filters]."""
        rows = tf.pad(tf.transpose(tf.convert_to_tensor(self.embedding)), [[0, 1], [0, 0]])
        return tf.gather(rows, classes)


class Draws(NamedTuple):
    """Random numbers of the slots.

    flips: float32 [B, D], 0 to 1: below 0.25, the class is the new one.
    classes: int32 [B, D], new classes.
    signs: float32 [B, D, 4], -1 or 1, of xmin, ymin, xmax, ymax.
    parts: float32 [B, D, 4], 0 to 1.
    """

    flips: tf.Tensor
    classes: tf.Tensor
    signs: tf.Tensor
    parts: tf.Tensor


class DenoisingQueries(NamedTuple):
    """D slots, of which groups of positives and negatives use the first.

    classes: int32 [B, D]; the number of classes for a slot whose image has fewer objects.
    boxes: float32 [B, D, 4], log-odds of (cx, cy, w, h).
    object_of: int32 [B, D], the object that a positive learns, or -1.
    used: bool [D], False for a slot of no group.
    blocked: bool [D + Q, D + Q]: the query of a row does not see the key of a column; denoising queries come first.
    groups: int32, number of groups.
    """

    classes: tf.Tensor
    boxes: tf.Tensor
    object_of: tf.Tensor
    used: tf.Tensor
    blocked: tf.Tensor
    groups: tf.Tensor


def draw(seed: tf.Tensor, *, images: tf.Tensor | int, slots: int, num_classes: int) -> Draws:
    """Draws the random numbers of this micro-batch and replica; `seed` is int32 [2], of the step."""
    bits = own_random_bits(images, [slots, 10], seed=seed, index=_RANDOM_INDEX)
    # 23 bits are exact in float32, and below 1.
    uniform = tf.cast(tf.bitwise.right_shift(tf.cast(bits, tf.uint32), 9), tf.float32) / 2.0**23
    flips, classes, signs, parts = tf.split(uniform, [1, 1, 4, 4], axis=-1)
    classes = tf.cast(classes[..., 0] * num_classes, tf.int32)
    return Draws(flips[..., 0], classes, tf.where(signs < 0.5, -1.0, 1.0), parts)


def denoising_queries(
    objects: Objects, draws: Draws, *, copies: int, most: tf.Tensor, num_classes: int, num_queries: int
) -> DenoisingQueries:
    """Returns noisy copies of the objects: in each group positives near them, and negatives farther away.

    Of an image with more objects than `copies`, the first ones are copied.

    Args:
        objects: the objects.
        draws: random numbers of D = 2 * copies slots.
        copies: number of positives of an image with the most objects.
        most: int32, most objects of an image of the update's batch.
        num_classes: number of classes.
        num_queries: Q, number of matching queries.
    """
    copied = tf.clip_by_value(most, 1, copies)
    in_group, groups = 2 * copied, copies // copied
    slot = tf.range(draws.flips.shape[1])
    used = (slot < in_group * groups) & (most > 0)
    group, place = slot // in_group, slot % in_group
    is_negative = place >= copied
    index = tf.minimum(place % copied, objects.boxes.shape[1] - 1)
    exists = tf.gather(objects.valid, index, axis=1) & used
    classes = tf.where(draws.flips < _FLIPS, draws.classes, tf.gather(objects.classes, index, axis=1))
    boxes = tf.where(exists[..., tf.newaxis], tf.gather(objects.boxes, index, axis=1), 0.0)
    parts = draws.parts + tf.cast(is_negative, tf.float32)[:, tf.newaxis]
    moves = draws.signs * parts * tf.tile(boxes[..., 2:] / 2.0, [1, 1, 2])
    low, high = tf.split(tf.clip_by_value(corners_of(boxes) + moves, 0.0, 1.0), 2, axis=-1)
    noisy = tf.abs(tf.concat([(low + high) / 2.0, high - low], axis=-1))  # corners may have crossed
    return DenoisingQueries(
        classes=tf.where(exists, classes, num_classes),
        boxes=log_odds(noisy),
        object_of=tf.where(exists & ~is_negative, index, -1),
        used=used,
        blocked=_blocked(group, used, num_queries),
        groups=groups,
    )


def _blocked(group: tf.Tensor, used: tf.Tensor, num_queries: int) -> tf.Tensor:
    """Hides from a group the others, from matching queries the denoising ones, and unused slots from all others."""
    slots = group.shape[0]
    is_query = tf.range(slots + num_queries) >= slots
    group = tf.pad(tf.where(used, group, -1 - tf.range(slots)), [[0, num_queries]])
    same_group = (group[:, tf.newaxis] == group) & ~is_query[:, tf.newaxis]
    return ~(is_query | same_group)
