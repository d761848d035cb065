"""Keras' optimizers, built."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

_CLASSES = {
    "sgd": keras.optimizers.SGD,
    "rmsprop": keras.optimizers.RMSprop,
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
}


def make_optimizer(
    name: str,
    *,
    learning_rate: Callable[[], tf.Tensor],
    variables: Sequence[keras.Variable],
    hyperparameters: dict[str, float | bool],
    weight_decay: float = 0.0,
    decayed: Sequence[keras.Variable] = (),
) -> keras.optimizers.Optimizer:
    """Builds an optimizer for `variables`, slots included.

    Args:
        name: `sgd`, `rmsprop`, `adam` or `adamw`.
        learning_rate: float32 scalar of the present step.
        variables: that it will update.
        hyperparameters: Keras' own arguments: `momentum` and `nesterov` of sgd; `rho`,
            `momentum`, `epsilon` and `centered` of rmsprop; `beta_1`, `beta_2` and
            `epsilon` of Adam's.
        weight_decay: AdamW's, decoupled: weights shrink by it times the learning rate.
        decayed: of `variables`, those that shrink.
    """
    decay = {"weight_decay": weight_decay} if name == "adamw" else {}
    # Named, because Keras would count the optimizers of the process, and checkpoints go by path.
    optimizer = _CLASSES[name](learning_rate, name=name, **hyperparameters, **decay)
    if name == "adamw":
        decays = {variable.path for variable in decayed}
        optimizer.exclude_from_weight_decay([variable for variable in variables if variable.path not in decays])
    optimizer.build(list(variables))
    return optimizer
