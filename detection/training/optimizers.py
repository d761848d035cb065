"""Keras' optimizers, for gradients that are already summed over replicas."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf


class _SummedGradients:
    """Leaves out Keras' own sum over replicas: it would send all gradients a second time."""

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


class _Sgd(_SummedGradients, keras.optimizers.SGD):
    pass


class _LegacyMomentum(_Sgd):
    """Momentum of TF1's `MomentumOptimizer`: v = m v + g, w = w - rate v.

    Nesterov: w = w - rate (g + m v).  Keras' v holds the rate of each gradient's time, so
    the two differ after the rate has changed.
    """

    def update_step(self, gradient: tf.Tensor, variable: Any, learning_rate: Any) -> None:
        """Updates one weight, as Keras' method of this name."""
        if not self.momentum:
            super().update_step(gradient, variable, learning_rate)
            return
        rate = tf.cast(learning_rate, variable.dtype)
        gradient = tf.cast(gradient, variable.dtype)
        gathered = self.momentums[self._get_variable_index(variable)]
        velocity = self.momentum * tf.convert_to_tensor(gathered) + gradient
        self.assign(gathered, velocity)
        self.assign_sub(variable, rate * (gradient + self.momentum * velocity if self.nesterov else velocity))


class _RmsProp(_SummedGradients, keras.optimizers.RMSprop):
    pass


class _Adam(_SummedGradients, keras.optimizers.Adam):
    pass


class _AdamW(_SummedGradients, keras.optimizers.AdamW):
    pass


_CLASSES: dict[str, Any] = {"sgd": _Sgd, "rmsprop": _RmsProp, "adam": _Adam, "adamw": _AdamW}


def make_optimizer(
    name: str,
    *,
    learning_rate: Callable[[], tf.Tensor],
    variables: Sequence[keras.Variable],
    hyperparameters: dict[str, float | bool],
    legacy_momentum: bool = False,
    weight_decay: float = 0.0,
    decayed: Sequence[keras.Variable] = (),
) -> keras.optimizers.Optimizer:
    """Builds an optimizer for `variables`, slots included.

    It takes gradients of the global batch, the same on all replicas, and does not sum
    them over replicas as Keras' own optimizers do.

    Args:
        name: `sgd`, `rmsprop`, `adam` or `adamw`.
        learning_rate: float32 scalar of the present step.
        variables: that it will update.
        hyperparameters: Keras' own arguments: `momentum` and `nesterov` of sgd; `rho`,
            `momentum`, `epsilon` and `centered` of rmsprop; `beta_1`, `beta_2` and
            `epsilon` of Adam's.
        legacy_momentum: of sgd: TF1's form.
        weight_decay: AdamW's, decoupled: weights shrink by it times the learning rate.
        decayed: of `variables`, those that shrink.
    """
    decay = {"weight_decay": weight_decay} if name == "adamw" else {}
    # Named, because Keras would count the optimizers of the process, and checkpoints go by path.
    make = _LegacyMomentum if legacy_momentum else _CLASSES[name]
    optimizer = make(learning_rate, name=name, **hyperparameters, **decay)
    if name == "adamw":
        decays = {variable.path for variable in decayed}
        optimizer.exclude_from_weight_decay([variable for variable in variables if variable.path not in decays])
    optimizer.build(list(variables))
    return optimizer
