"""Which weights decay, and decay as a part of the loss."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from detection.training.engine.variable_paths import kernels_without
from schemas.config.section import PatternMatch

EXCLUDE_KEY = "train.optimizer.weight_decay_exclude"


def decayed_variables(
    variables: Sequence[keras.Variable], exclude: Sequence[str] = (), *, match: PatternMatch = "start"
) -> tuple[keras.Variable, ...]:
    """The kernels: biases, batch norm and fusion weights do not decay.

    Source: google/automl's rule (names ending in kernel or weight), which on other
    networks gives TPU Mask R-CNN's (neither batch norm nor bias); the TF Object
    Detection API left depthwise kernels out, too.

    Args:
        variables: those that train: frozen ones do not count.
        exclude: regular expressions; kernels whose path matches are left out.
        match: see `matching_paths`.

    Raises:
        ConfigError: an expression matches no kernel.
    """
    return kernels_without(variables, exclude, key=EXCLUDE_KEY, match=match)


def l2_loss(variables: Sequence[keras.Variable], weight: float) -> tf.Tensor:
    """Weight * half the sum of squares of all `variables`.

    Source: google/automl EfficientDet, weight 4e-5; TPU Mask R-CNN, 1e-4.

    Returns:
        float32 scalar.
    """
    squares = [tf.nn.l2_loss(variable.value) for variable in variables]
    return weight * tf.add_n(squares) if squares else tf.constant(0.0)
