"""Gradient clipping."""

from collections.abc import Sequence

import tensorflow as tf


def clip_gradients(
    gradients: Sequence[tf.Tensor], *, per_variable_norm: float | None, global_norm: float | None
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Clips each gradient to a norm, then all together to a global norm.

    Source: google/automl EfficientDet, which uses 10 for both; the TF Object
    Detection API clips the global norm only.

    Args:
        gradients: of the global batch, that is after the sum over replicas.
        per_variable_norm: bound of each gradient's L2 norm; None: no bound.
        global_norm: bound of the L2 norm of all together; None: no bound.

    Returns:
        The clipped gradients, and the global norm before any clipping, float32.
    """
    norm = tf.linalg.global_norm(gradients)
    clipped = list(gradients)
    if per_variable_norm is not None:
        clipped = [tf.clip_by_norm(gradient, per_variable_norm) for gradient in clipped]
    if global_norm is not None:
        clipped, _ = tf.clip_by_global_norm(clipped, global_norm)
    return clipped, norm
