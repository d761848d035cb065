"""Boxes by distributions of the distances of their sides.

Source: Peng et al., "D-FINE", 2024: fine-grained distribution refinement.
"""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

_CLIP = 1e-5
_TOP = 4  # probabilities of a side that its quality depends on, besides their mean


def bin_distances(bins: int, *, up: float, scale: float) -> npt.NDArray[np.float32]:
    """Returns the distance of each bin, float32 [bins], ascending: dense around 0, with outliers at both ends.

    Args:
        bins: number of bins, odd.
        up: half of the outer bins' distance, in units of `scale`.
        scale: unit of the distances.

    >>> bin_distances(33, up=0.5, scale=4.0)[[0, 1, 15, 16, 17, 31, 32]].astype(float).round(3).tolist()
    [-4.0, -2.0, -0.076, 0.0, 0.076, 2.0, 4.0]
    """
    outer, half = abs(up) * abs(scale), bins // 2
    steps = (outer + 1.0) ** (np.arange(half) / (half - 1)) - 1.0
    positive = [*steps[1:], 2.0 * outer]
    return np.array([*(-value for value in reversed(positive)), 0.0, *positive], np.float32)


def expected_distances(corners: tf.Tensor, *, up: float, scale: float) -> tf.Tensor:
    """Returns the mean of each distribution, float32 [..., 4].

    Args:
        corners: float32 [..., 4, bins], log-probabilities, not normalised.
        up: as for `bin_distances`.
        scale: as for `bin_distances`.
    """
    return tf.linalg.matvec(tf.nn.softmax(corners), tf.constant(bin_distances(corners.shape[-1], up=up, scale=scale)))


def log_odds(values: tf.Tensor) -> tf.Tensor:
    """Returns log(x / (1 - x)) of values [...], fractions of the input, neither of them below 1e-5."""
    clipped = tf.clip_by_value(values, 0.0, 1.0)
    return tf.math.log(tf.maximum(clipped, _CLIP) / tf.maximum(1.0 - clipped, _CLIP))


def boxes_of_distances(reference: tf.Tensor, distances: tf.Tensor, *, scale: float) -> tf.Tensor:
    """Moves the sides of boxes outwards, float32 [..., 4], (cx, cy, w, h).

    Args:
        reference: float32 [..., 4], (cx, cy, w, h).
        distances: float32 [..., 4] of left, top, right and bottom, in units of 1 / scale of the box's side.
        scale: unit of the distances.
    """
    centers, sides = tf.split(reference, 2, axis=-1)
    near, far = (distance * sides / scale for distance in tf.split(distances, 2, axis=-1))
    low, high = centers - 0.5 * sides - near, centers + 0.5 * sides + far
    return tf.concat([(low + high) / 2.0, high - low], axis=-1)


def side_quality(corners: tf.Tensor) -> tf.Tensor:
    """Returns the largest probabilities of each side and their mean, float32 [..., 20], by corners [..., 4, bins]."""
    largest, _ = tf.math.top_k(tf.nn.softmax(corners), _TOP)
    values = tf.concat([largest, tf.reduce_mean(largest, axis=-1, keepdims=True)], axis=-1)
    return tf.reshape(values, [*(-1 if size is None else size for size in corners.shape[:-2]), 4 * (_TOP + 1)])
