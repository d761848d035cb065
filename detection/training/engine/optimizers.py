"""Keras' optimizers for gradients that are already summed over replicas."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf


class _SummedGradients:
    """Skips Keras' own sum over replicas, which would send all gradients a second time.

    Attributes:
        rate_factor: returns the factor of a variable's learning rate.
    """

    rate_factor: Callable[[keras.Variable], float]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        by_factor: dict[float, list[Any]] = {}
        for pair in zip(grads, trainable_variables, strict=True):
            by_factor.setdefault(self.rate_factor(pair[1]), []).append(pair)
        for factor, pairs in by_factor.items():
            rate = learning_rate if factor == 1.0 else tf.cast(learning_rate, tf.float32) * factor
            of_group, variables = zip(*pairs, strict=True)
            self._update_group(of_group, variables, rate)

    def _update_group(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        super()._backend_update_step(grads, trainable_variables, learning_rate)


class _Sgd(_SummedGradients, keras.optimizers.SGD):
    """SGD whose momentum is one op for each weight, which takes less time than Keras' several."""

    _apply = staticmethod(tf.raw_ops.ResourceApplyKerasMomentum)

    def update_step(self, gradient: tf.Tensor, variable: Any, learning_rate: Any) -> None:
        """Updates one weight; overrides the method of Keras."""
        if not self.momentum:
            super().update_step(gradient, variable, learning_rate)
            return
        accum = self.momentums[self._get_variable_index(variable)].value.handle
        rates = {"lr": learning_rate, "momentum": self.momentum}
        self._apply(var=variable.handle, accum=accum, grad=gradient, use_nesterov=self.nesterov, **rates)


class _LegacyMomentum(_Sgd):
    """Momentum of TF1's `MomentumOptimizer`: v = m v + g, w = w - rate v.

    Nesterov: w = w - rate (g + m v).  Keras' v includes the learning rate of each step, so the
    two differ after the rate has changed.
    """

    _apply = staticmethod(tf.raw_ops.ResourceApplyMomentum)


class _RmsProp(_SummedGradients, keras.optimizers.RMSprop):
    """RMSProp with an initial mean square above 0.

    Source: TF1's `RMSPropOptimizer` starts at 1, Keras at 0.  If gradients are small, the initial
    value dominates the first updates: with epsilon 1e-10, rho 0.9 and a gradient of 0.05, Keras'
    first update is 60 times that of TF1.
    """

    def __init__(self, *args: Any, initial_accumulator_value: float = 0.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self._start = initial_accumulator_value

    def add_optimizer_variables(self, trainable_variables: Any, name: Any, initializer: Any = "zeros") -> Any:
        """Adds slots; overrides the method of Keras, which calls the mean square `velocity`."""
        if name == "velocity":
            initializer = keras.initializers.Constant(self._start)
        return super().add_optimizer_variables(trainable_variables, name, initializer)


class _Adadelta(_SummedGradients, keras.optimizers.Adadelta):
    pass


class _Adagrad(_SummedGradients, keras.optimizers.Adagrad):
    pass


class _Adam(_SummedGradients, keras.optimizers.Adam):
    """Adam, and AdamW if weights decay: one op for each weight, and one for its decay, in place of Keras' twenty.

    The learning rate, corrected for the zeros that the moments start with, is computed once.
    """

    def __init__(self, *args: Any, weight_decay: float, decayed: Sequence[keras.Variable], **options: Any) -> None:
        super().__init__(*args, **options)
        self._decay = weight_decay
        self._decayed = frozenset(self._var_key(variable) for variable in decayed)

    def _update_group(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        rate, count = tf.cast(learning_rate, tf.float32), tf.cast(self.iterations + 1, tf.float32)
        corrected = rate * tf.sqrt(1.0 - self.beta_2**count) / (1.0 - self.beta_1**count)
        # Once, not a constant for each weight: a third of the update's ops.
        numbers = {"beta1": self.beta_1, "beta2": self.beta_2, "epsilon": self.epsilon}
        rates = {name: tf.constant(number, tf.float32) for name, number in numbers.items()}
        powers = dict.fromkeys(("beta1_power", "beta2_power"), tf.constant(0.0))  # in the rate already
        options = {"lr": corrected, **rates, **powers}
        super()._update_group(grads, trainable_variables, (options, self._decay * rate))

    def update_step(self, gradient: tf.Tensor, variable: Any, learning_rate: Any) -> None:
        """Updates one weight; overrides the method of Keras."""
        options, decay = learning_rate
        if self._decay and self._var_key(variable) in self._decayed:
            value = tf.convert_to_tensor(variable)
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=decay, delta=value)
        index = self._get_variable_index(variable)
        slots = {"m": self._momentums[index].value.handle, "v": self._velocities[index].value.handle}
        tf.raw_ops.ResourceApplyAdam(var=variable.handle, grad=gradient, **slots, **options)


class _Lars(_Sgd):
    """LARS: the learning rate of each variable is scaled by its trust ratio.

    The ratio is coefficient * |w| / (|g| + weight_decay * |w| + epsilon), or 1 if |w| or |g| is 0.
    Variables that are not adapted keep the learning rate.  Momentum accumulates scaled steps.

    With `lars_decays_weights`, g becomes g + weight_decay * w after the ratio, for adapted
    variables.  Source: You, Gitman and Ginsburg, Large Batch Training of Convolutional
    Networks (2017), and the last version of TF1's `contrib.opt.LARSOptimizer`.
    """

    def __init__(
        self,
        *args: Any,
        lars_coefficient: float,
        lars_weight_decay: float,
        lars_decays_weights: bool,
        epsilon: float,
        adapted: Sequence[keras.Variable],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._coefficient = lars_coefficient
        self._norm_decay = lars_weight_decay
        self._gradient_decay = lars_weight_decay if lars_decays_weights else 0.0
        self._epsilon = epsilon
        self._adapted = frozenset(self._var_key(variable) for variable in adapted)

    def update_step(self, gradient: tf.Tensor, variable: Any, learning_rate: Any) -> None:
        """Updates one weight; overrides the method of Keras."""
        if self._var_key(variable) in self._adapted:
            learning_rate = tf.cast(learning_rate, tf.float32) * self._trust_ratio(gradient, variable)
            if self._gradient_decay:
                gradient += self._gradient_decay * tf.convert_to_tensor(variable)
        super().update_step(gradient, variable, learning_rate)

    def _trust_ratio(self, gradient: tf.Tensor, variable: Any) -> tf.Tensor:
        weight_norm = tf.norm(tf.cast(tf.convert_to_tensor(variable), tf.float32))
        gradient_norm = tf.norm(tf.cast(gradient, tf.float32))
        bound = gradient_norm + self._norm_decay * weight_norm + self._epsilon
        ratio = tf.math.divide_no_nan(self._coefficient * weight_norm, bound)
        return tf.where((weight_norm > 0.0) & (gradient_norm > 0.0), ratio, 1.0)


class _LegacyLars(_Lars, _LegacyMomentum):
    """LARS with momentum of gradients, as in the first version of TF1's `contrib.opt.LARSOptimizer`."""


_CLASSES: dict[str, Any] = {
    "sgd": _Sgd,
    "rmsprop": _RmsProp,
    "adam": _Adam,
    "adamw": _Adam,
    "adadelta": _Adadelta,
    "adagrad": _Adagrad,
    "lars": _Lars,
}
_LEGACY_CLASSES: dict[str, Any] = {"sgd": _LegacyMomentum, "lars": _LegacyLars}


def make_optimizer(
    name: str,
    *,
    learning_rate: Callable[[], tf.Tensor],
    variables: Sequence[keras.Variable],
    hyperparameters: dict[str, float | bool],
    legacy_momentum: bool = False,
    weight_decay: float = 0.0,
    decayed: Sequence[keras.Variable] = (),
    adapted: Sequence[keras.Variable] = (),
    rate_factor: Callable[[keras.Variable], float] = lambda _: 1.0,
) -> keras.optimizers.Optimizer:
    """Builds an optimizer for `variables`, slots included.

    It takes gradients of the global batch, equal on all replicas, and does not sum them over
    replicas as Keras' own optimizers do.

    Args:
        name: `sgd`, `rmsprop`, `adam`, `adamw`, `adadelta`, `adagrad` or `lars`.
        learning_rate: returns the current learning rate, float32 scalar.
        variables: the variables to update.
        hyperparameters: Keras' arguments: `momentum` and `nesterov` for sgd and lars; `rho`,
            `momentum`, `epsilon` and `centered` for rmsprop; `beta_1`, `beta_2` and `epsilon` for
            adam and adamw; `rho` and `epsilon` for adadelta; `initial_accumulator_value` and
            `epsilon` for adagrad.  In addition, `initial_accumulator_value` of the mean square for
            rmsprop, and `lars_coefficient`, `lars_weight_decay`, `lars_decays_weights` and
            `epsilon` for lars.
        legacy_momentum: momentum of sgd and lars accumulates gradients instead of steps.
        weight_decay: AdamW's decoupled decay: weights shrink by this times the learning rate.
        decayed: variables that decay under adamw.
        adapted: variables with a learning rate adapted by lars.
        rate_factor: returns the factor of a variable's learning rate.
    """
    options: dict[str, Any] = dict(hyperparameters)
    if name in ("adam", "adamw"):
        options |= {"weight_decay": weight_decay if name == "adamw" else 0.0, "decayed": decayed}
    if name == "lars":
        options["adapted"] = adapted
    # Without a name, Keras would number the optimizers of the process, and checkpoints use paths.
    make = (_LEGACY_CLASSES if legacy_momentum else _CLASSES)[name]
    optimizer = make(learning_rate, name=name, **options)
    optimizer.build(list(variables))
    optimizer.rate_factor = rate_factor
    return optimizer
