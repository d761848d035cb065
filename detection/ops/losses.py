"""Loss terms per element, without weights and normalisers, which detectors apply."""

import tensorflow as tf


def focal_loss(
    logits: tf.Tensor, is_target: tf.Tensor, *, alpha: float = 0.25, gamma: float = 1.5, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Alpha-balanced sigmoid focal loss (Lin et al., "Focal Loss for Dense Object Detection", 2017).

    alpha_t (1 - p_t)^gamma CE, with the factor before CE of the true label and CE of the
    smoothed one, y (1 - s) + s / 2.  Computed from the margin
    z = +-logit, so that neither value nor gradient overflows: CE = softplus(-z) + z s / 2
    and log(1 - p_t) = -softplus(z).

    Args:
        logits: float32 [...].
        is_target: bool [...], True for the true class.
        alpha: weight of targets; all others have 1 - alpha.
        gamma: focusing, >= 0.
        label_smoothing: s, 0 <= s < 1.

    Returns:
        float32 [...].
    """
    margin = tf.where(is_target, logits, -logits)
    cross_entropy = tf.math.softplus(-margin)
    modulator = tf.exp(-gamma * (cross_entropy + margin))
    balance = tf.where(is_target, alpha, 1.0 - alpha)
    return balance * modulator * (cross_entropy + 0.5 * label_smoothing * margin)


def huber_loss(errors: tf.Tensor, *, delta: float) -> tf.Tensor:
    """Returns the Huber loss [...] of errors [...]: e^2 / 2 up to |e| = delta, then linear with slope delta."""
    size = tf.abs(errors)
    inside = tf.minimum(size, delta)
    return inside * (size - 0.5 * inside)
