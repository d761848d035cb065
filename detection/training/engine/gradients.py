"""Regularisation, clipping and multiplication of gradients, and their norms and histograms."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from schemas.config.train.optimization import BiasVariables
from schemas.scalars import GRADIENT_HISTOGRAM, GRADIENT_NORM

HISTOGRAM_BUCKETS = 30  # the default of tf.summary.histogram


class Regularization(NamedTuple):
    """Variables, and the weights of the sum of their absolute values and of half the sum of their squares."""

    variables: Sequence[keras.Variable]
    l1: float
    l2: float


def regularization_loss(parts: Sequence[Regularization]) -> tf.Tensor:
    """Returns the sum of the L1 and L2 losses of variables.

    Source: google/automl EfficientDet, L2 with weight 4e-5; TPU Mask R-CNN, 1e-4; the TF Object Detection API's
    `l1_regularizer` and `l2_regularizer`.

    Returns:
        float32 scalar.
    """
    terms = [part.l2 * tf.add_n([tf.nn.l2_loss(one.value) for one in part.variables]) for part in parts if part.l2]
    for part in parts:
        if part.l1:
            terms.append(part.l1 * tf.add_n([tf.reduce_sum(tf.abs(one.value)) for one in part.variables]))
    return tf.add_n(terms) if terms else tf.constant(0.0)


def transform_gradients(
    gradients: Sequence[tf.Tensor],
    variables: Sequence[keras.Variable],
    *,
    bias_multiplier: float = 1.0,
    bias_variables: BiasVariables = "bias_and_beta",
    value: float | None = None,
    per_variable_norm: float | None = None,
    global_norm: float | None = None,
    norm_ratio: float | None = None,
    multiply_after_clipping: bool = False,
) -> list[tf.Tensor]:
    """Multiplies and clips gradients, in the order of the arguments; None and 1 disable a rule.

    Args:
        gradients: dense gradients of the global batch, after the sum over replicas and without a
            loss scale.
        variables: the variables of these gradients, in the same order.
        bias_multiplier: factor of the gradients of biases.
        bias_variables: rule that decides which variables are biases, as in `is_bias`.
        value: every element is clipped to [-value, value].
        per_variable_norm: max L2 norm of each gradient.  Source: google/automl, 10.
        global_norm: max L2 norm of all gradients together.  Source: google/automl (10, after
            `per_variable_norm`), the TF Object Detection API.
        norm_ratio: max global norm divided by the square root of the number of trainable weights.
            Source: TPU Mask R-CNN, 0.02.
        multiply_after_clipping: apply the bias multiplier last, so that gradients may exceed the
            limits, as in TPU Mask R-CNN.

    Returns:
        The new gradients.  Do not apply them if a gradient was not finite: clipping turns
        infinities into zeros.
    """
    changed = list(gradients)
    if not multiply_after_clipping:
        changed = _multiply_biases(changed, variables, bias_multiplier, bias_variables)
    if value is not None:
        changed = [tf.clip_by_value(gradient, -value, value) for gradient in changed]
    limits = [] if global_norm is None else [global_norm]
    if norm_ratio is not None:
        limits.append(norm_ratio * sum(gradient.shape.num_elements() for gradient in changed) ** 0.5)
    if limits or per_variable_norm is not None:
        changed = _clip_norms(changed, per_variable_norm, limits)
    if multiply_after_clipping:
        changed = _multiply_biases(changed, variables, bias_multiplier, bias_variables)
    return list(changed)


def _clip_norms(gradients: Sequence[tf.Tensor], each: float | None, limits: Sequence[float]) -> list[tf.Tensor]:
    """Limits the L2 norm of each gradient, if `each` is not None, and then that of all to each of `limits`.

    Equals tf.clip_by_norm and tf.clip_by_global_norm, whose ten ops for each gradient are two here: on a GPU, the start
    of an op takes longer than most of them.
    """
    norms = tf.sqrt(2.0 * tf.stack([tf.nn.l2_loss(gradient) for gradient in gradients]))
    factors = tf.ones_like(norms) if each is None else each / tf.maximum(norms, each)
    for limit in limits:
        factors *= limit / tf.maximum(tf.norm(norms * factors), limit)
    return [gradient * factor for gradient, factor in zip(gradients, tf.unstack(factors), strict=True)]


def _multiply_biases(
    gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], multiplier: float, rule: BiasVariables
) -> list[tf.Tensor]:
    if multiplier == 1.0:
        return list(gradients)
    return [
        gradient * multiplier if is_bias(variable, rule) else gradient
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def is_bias(variable: keras.Variable, rule: BiasVariables) -> bool:
    """Returns whether a variable is a bias, by its own name: a layer's name may contain anything.

    Args:
        variable: a variable of the model.
        rule: `bias_and_beta`: biases and batch norm's offsets, that is variables whose name
            contains `bias` or `beta`.  Source: TPU Mask R-CNN, which doubled their gradients.
            `bias`: biases of convolutions and dense layers only.  Source: the TF Object
            Detection API's `bias_grad_multiplier`, for names that match `.*/biases`.
    """
    return "bias" in variable.name or (rule == "bias_and_beta" and "beta" in variable.name)


class GradientSummaries:
    """Computes norms and histograms of the gradients of the global batch, before multiplying and clipping.

    The TF Object Detection API's `summarize_gradients` writes them after clipping.

    Args:
        norms: report the norm of each variable's gradient at each step.
        histograms_every: steps between histograms; 0: no histograms.
    """

    def __init__(self, *, norms: bool, histograms_every: int) -> None:
        self._norms = norms
        self._histograms_every = histograms_every

    def norms(self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]) -> dict[str, tf.Tensor]:
        """Computes L2 norms: float32 scalars by name."""
        if not self._norms:
            return {}
        return {
            f"{GRADIENT_NORM}/{variable.path}": tf.norm(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        }

    def histograms(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], step: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Computes a `histogram` per variable, by name; zeros in steps without histograms.

        Args:
            gradients: dense gradients.
            variables: the variables of these gradients, in the same order.
            step: int64 scalar, number of completed steps before this one.
        """
        if not self._histograms_every:
            return {}
        due = (step + 1) % self._histograms_every == 0
        values = tf.cond(
            due,
            lambda: tf.stack([histogram(gradient) for gradient in gradients]),
            lambda: tf.zeros([len(gradients), 2 + HISTOGRAM_BUCKETS]),
        )
        names = [f"{GRADIENT_HISTOGRAM}/{variable.path}" for variable in variables]
        return dict(zip(names, tf.unstack(values), strict=True))


def histogram(values: tf.Tensor) -> tf.Tensor:
    """Counts values in buckets of equal width between the smallest and the largest value.

    Returns:
        float32 [2 + HISTOGRAM_BUCKETS]: the smallest value, the largest, and the counts.  If all
        values are equal, the first bucket contains them.
    """
    flat = tf.cast(tf.reshape(values, [-1]), tf.float32)
    low, high = tf.reduce_min(flat), tf.reduce_max(flat)
    width = tf.where(high > low, (high - low) / HISTOGRAM_BUCKETS, 1.0)
    bucket = tf.clip_by_value(tf.cast(tf.floor((flat - low) / width), tf.int32), 0, HISTOGRAM_BUCKETS - 1)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(bucket), bucket, HISTOGRAM_BUCKETS)
    return tf.concat([[low, high], tf.cast(counts, tf.float32)], axis=0)


def write_histogram(name: str, values: npt.NDArray[np.float32], *, step: int) -> None:
    """Writes a `histogram` to TensorBoard; skips empty and non-finite ones."""
    from tensorboard.plugins.histogram import metadata

    low, high = values[:2].astype(np.float64)
    if not np.isfinite(high - low) or not values[2:].any():
        return
    edges = np.linspace(low, high, HISTOGRAM_BUCKETS + 1)
    buckets = np.stack([edges[:-1], edges[1:], values[2:]], axis=1)
    tf.summary.write(
        name,
        tf.constant(buckets, tf.float64),
        step=step,
        metadata=metadata.create_summary_metadata(display_name=None, description=None),
    )
