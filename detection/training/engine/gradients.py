"""What happens to gradients between the loss and the optimizer."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from schemas.config.optimization import BiasVariables


class GradientRules(NamedTuple):
    """Rules, in the order in which they act; None and 1 leave one out.

    bias_multiplier: factor of the gradients of the variables that `bias_variables` names.
    bias_variables: `bias_and_beta`: biases and batch norm's offsets, that is variables whose
        name contains `bias` or `beta`.  Source: TPU Mask R-CNN, which doubled them.
        `bias`: biases of convolutions and dense layers alone.  Source: the TF Object
        Detection API's `bias_grad_multiplier`, for names that match `.*/biases`.
    value: every element is clipped to [-value, value].
    per_variable_norm: bound of each gradient's L2 norm.  Source: google/automl, 10.
    global_norm: bound of the L2 norm of all gradients together.  Source: google/automl
        (10, after `per_variable_norm`), the TF Object Detection API.
    norm_ratio: a global norm of this times the square root of the number of weights
        that train.  Source: TPU Mask R-CNN, 0.02.
    multiply_after_clipping: the bias multiplier acts last and may break the bounds,
        as TPU Mask R-CNN had it.
    """

    bias_multiplier: float = 1.0
    bias_variables: BiasVariables = "bias_and_beta"
    value: float | None = None
    per_variable_norm: float | None = None
    global_norm: float | None = None
    norm_ratio: float | None = None
    multiply_after_clipping: bool = False


def apply_gradient_rules(
    gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], rules: GradientRules
) -> list[tf.Tensor]:
    """Multiplies and clips gradients.

    Args:
        gradients: of the global batch, that is after the sum over replicas, and
            without a loss scale; dense.
        variables: those that the gradients are of, in the same order.
        rules: which of them act.

    Returns:
        The changed gradients.  Where one was not finite they must not be applied:
        clipping makes zeros of infinities.
    """
    changed = list(gradients)
    if not rules.multiply_after_clipping:
        changed = _multiply_biases(changed, variables, rules)
    changed = _clip(changed, rules)
    if rules.multiply_after_clipping:
        changed = _multiply_biases(changed, variables, rules)
    return changed


def _multiply_biases(
    gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], rules: GradientRules
) -> list[tf.Tensor]:
    if rules.bias_multiplier == 1.0:
        return list(gradients)
    return [
        gradient * rules.bias_multiplier if is_bias(variable, rules.bias_variables) else gradient
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def is_bias(variable: keras.Variable, rule: BiasVariables) -> bool:
    """Tells whether `rule` of `GradientRules` names a variable, by its own name: a layer's may contain anything."""
    return "bias" in variable.name or (rule == "bias_and_beta" and "beta" in variable.name)


def _clip(gradients: list[tf.Tensor], rules: GradientRules) -> list[tf.Tensor]:
    if rules.value is not None:
        gradients = [tf.clip_by_value(gradient, -rules.value, rules.value) for gradient in gradients]
    if rules.per_variable_norm is not None:
        gradients = [tf.clip_by_norm(gradient, rules.per_variable_norm) for gradient in gradients]
    if rules.global_norm is not None:
        gradients, _ = tf.clip_by_global_norm(gradients, rules.global_norm)
    if rules.norm_ratio is not None:
        weights = sum(gradient.shape.num_elements() for gradient in gradients)
        gradients, _ = tf.clip_by_global_norm(gradients, rules.norm_ratio * weights**0.5)
    return list(gradients)
