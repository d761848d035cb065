"""Norms and histograms of each variable's gradient, computed inside the training step."""

from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from schemas.scalars import GRADIENT_HISTOGRAM, GRADIENT_NORM

BUCKETS = 30  # as many as tf.summary.histogram has


class GradientSummaries:
    """Summarises gradients of the global batch, before any rule multiplies or clips them.

    Source: the TF Object Detection API's `summarize_gradients`.

    Args:
        norms: whether each step tells the norm of each variable's gradient.
        histograms_every: steps between histograms; 0: no histograms.
    """

    def __init__(self, *, norms: bool, histograms_every: int) -> None:
        self._norms = norms
        self._histograms_every = histograms_every

    def norms(self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]) -> dict[str, tf.Tensor]:
        """L2 norms, float32 scalars by name."""
        if not self._norms:
            return {}
        return {
            f"{GRADIENT_NORM}/{variable.path}": tf.norm(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        }

    def histograms(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], number: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Histograms as `histogram` gives them, by name; zeros in steps without one.

        Args:
            gradients: dense.
            variables: the variables of these gradients, in the same order.
            number: int64 scalar, steps done before this one.
        """
        if not self._histograms_every:
            return {}
        due = (number + 1) % self._histograms_every == 0
        values = tf.cond(
            due,
            lambda: tf.stack([histogram(gradient) for gradient in gradients]),
            lambda: tf.zeros([len(gradients), 2 + BUCKETS]),
        )
        names = [f"{GRADIENT_HISTOGRAM}/{variable.path}" for variable in variables]
        return dict(zip(names, tf.unstack(values), strict=True))


def histogram(values: tf.Tensor) -> tf.Tensor:
    """Counts of values in buckets of equal width between the smallest and the largest.

    Returns:
        float32 [2 + BUCKETS]: the smallest value, the largest, and the counts.  Equal
        values are all counted in the first bucket.
    """
    flat = tf.cast(tf.reshape(values, [-1]), tf.float32)
    low, high = tf.reduce_min(flat), tf.reduce_max(flat)
    width = tf.where(high > low, (high - low) / BUCKETS, 1.0)
    bucket = tf.clip_by_value(tf.cast(tf.floor((flat - low) / width), tf.int32), 0, BUCKETS - 1)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(bucket), bucket, BUCKETS)
    return tf.concat([[low, high], tf.cast(counts, tf.float32)], axis=0)


def write_histogram(name: str, values: npt.NDArray[np.float32], *, step: int) -> None:
    """Writes one `histogram` to TensorBoard; one of no values, or of values that are not finite, is left out."""
    from tensorboard.plugins.histogram import metadata

    low, high = values[:2].astype(np.float64)
    if not np.isfinite(high - low) or not values[2:].any():
        return
    edges = np.linspace(low, high, BUCKETS + 1)
    buckets = np.stack([edges[:-1], edges[1:], values[2:]], axis=1)
    tf.summary.write(
        name,
        tf.constant(buckets, tf.float64),
        step=step,
        metadata=metadata.create_summary_metadata(display_name=None, description=None),
    )
