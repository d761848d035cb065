"""Optimizers, and which variables decay."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from detection.training.schedules import StepFunction


def is_kernel(path: str) -> bool:
    """Whether a variable decays: kernels do, biases, batch norm and fusion weights do not."""
    return path.endswith("kernel")


def l2_loss(variables: Sequence[keras.Variable], weight: float) -> tf.Tensor:
    """Weight * half the sum of squares of all kernels.

    Source: google/automl EfficientDet, weight 4e-5.

    Returns:
        float32 scalar.
    """
    squares = [tf.nn.l2_loss(variable.value) for variable in variables if is_kernel(variable.path)]
    return weight * tf.add_n(squares) if squares else tf.constant(0.0)


def make_optimizer(
    name: str,
    *,
    learning_rate: Callable[[tf.Tensor], tf.Tensor],
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    variables: Sequence[keras.Variable],
    loss_scaling: bool,
) -> keras.optimizers.Optimizer:
    """Builds an optimizer for `variables`, slots included.

    Args:
        name: `sgd`, `adam` or `adamw`.
        learning_rate: of the step.
        momentum: SGD's momentum, Adam's beta_1.
        nesterov: for SGD.
        weight_decay: AdamW's decoupled decay, on kernels; the others take L2 in the loss.
        variables: that it will update.
        loss_scaling: dynamic loss scale, for float16; steps with a gradient that is
            not finite are skipped and halve the scale.
    """
    schedule = StepFunction(learning_rate)
    # Named, because Keras would count the optimizers of the process, and checkpoints go by path.
    if name == "sgd":
        optimizer = keras.optimizers.SGD(schedule, momentum=momentum, nesterov=nesterov, name=name)
    elif name == "adam":
        optimizer = keras.optimizers.Adam(schedule, beta_1=momentum, name=name)
    else:
        optimizer = keras.optimizers.AdamW(schedule, beta_1=momentum, weight_decay=weight_decay, name=name)
        optimizer.exclude_from_weight_decay([v for v in variables if not is_kernel(v.path)])
    if loss_scaling:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale")
    optimizer.build(list(variables))
    return optimizer
