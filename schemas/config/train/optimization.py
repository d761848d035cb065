"""The sections of the update rule: optimizer, weight decay, EMA weights, clipping."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from schemas.config.section import RegularExpression, Section

WeightsKind = Literal["ema", "raw"]
WeightsChoice = Literal["auto", "ema", "raw"]

# Variables whose gradients `clip.bias_multiplier` multiplies.
BiasVariables = Literal["bias_and_beta", "bias"]
# Keys of each optimizer, by their names in Keras, except legacy_momentum and lars_*.
_KEYS_OF = {
    "sgd": ("momentum", "nesterov", "legacy_momentum"),
    "rmsprop": ("momentum", "rho", "epsilon", "centered", "initial_accumulator_value"),
    "adam": ("beta_1", "beta_2", "epsilon"),
    "adamw": ("beta_1", "beta_2", "epsilon"),
    "adadelta": ("rho", "epsilon"),
    "adagrad": ("epsilon", "initial_accumulator_value"),
    "lars": (
        "momentum",
        "nesterov",
        "legacy_momentum",
        "epsilon",
        "lars_coefficient",
        "lars_weight_decay",
        "lars_decays_weights",
        "lars_exclude",
    ),
}
# Defaults by optimizer, for keys that are not set.
_DEFAULTS = {
    "epsilon": {"rmsprop": 1.0, "adam": 1e-7, "adamw": 1e-7, "adadelta": 1e-8, "adagrad": 0.0, "lars": 0.0},
    "rho": {"rmsprop": 0.9, "adadelta": 0.95},
    "initial_accumulator_value": {"rmsprop": 0.0, "adagrad": 0.1},
}
# Keys that are not arguments of the optimizer.
_NOT_HYPERPARAMETERS = {"legacy_momentum", "lars_exclude"}


class RegularizerConfig(Section):
    """Regularisation of some kernels, as in the TF Object Detection API's hyperparameters of parts of a network."""

    match: RegularExpression = Field(description="regular expression, see train.pattern_match")
    l1: NonNegativeFloat = Field(0.0, description="weight of the sum of absolute values")
    l2: NonNegativeFloat = Field(0.0, description="weight of half the sum of squares")


class LearningRateFactorConfig(Section):
    """Learning rate of some variables, as a factor of the others'."""

    match: RegularExpression = Field(description="regular expression, see train.pattern_match")
    factor: PositiveFloat


class OptimizerConfig(Section):
    """The update rule."""

    name: Literal["sgd", "rmsprop", "adam", "adamw", "adadelta", "adagrad", "lars"] = Field(
        "adamw",
        description="sgd: with momentum; lars: sgd with a learning rate per kernel, for large batches; TPU Mask R-CNN "
        "has all but adamw",
    )
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="for sgd, rmsprop and lars: momentum")
    nesterov: bool = Field(False, description="for sgd and lars: Nesterov momentum")
    legacy_momentum: bool = Field(
        False,
        description="for sgd and lars: momentum accumulates gradients, scaled by the current learning rate, as in "
        "TF1's MomentumOptimizer; false: it accumulates steps, each scaled by the learning rate at that step, as in "
        "Keras and TF1's LARSOptimizer",
    )
    beta_1: float = Field(
        0.9, ge=0.0, lt=1.0, description="for adam and adamw: exponential decay rate of the first moment"
    )
    beta_2: float = Field(
        0.999, ge=0.0, lt=1.0, description="for adam and adamw: exponential decay rate of the second moment"
    )
    rho: float | None = Field(
        None,
        ge=0.0,
        lt=1.0,
        description="for rmsprop and adadelta: exponential decay rate of the mean square; none: rmsprop 0.9, adadelta "
        "0.95",
    )
    epsilon: NonNegativeFloat | None = Field(
        None,
        description="for all but sgd: small constant against division by zero; none: rmsprop 1 as in the OD API, adam "
        "and adamw 1e-7, adadelta 1e-8, adagrad and lars 0 as in TF1; the OD API uses 1e-8 for adam, TPU Mask R-CNN "
        "1e-10 for rmsprop, the later TPU detection code 0.001",
    )
    centered: bool = Field(
        False, description="for rmsprop: normalise gradients by the variance instead of the mean square"
    )
    initial_accumulator_value: NonNegativeFloat | None = Field(
        None,
        description="initial value of rmsprop's mean square and adagrad's sum of squares; none: rmsprop 0 as in "
        "Keras, adagrad 0.1; TF1's rmsprop (OD API on TF1, TPU Mask R-CNN) starts at 1, with smaller first steps",
    )
    lars_coefficient: PositiveFloat = Field(
        0.001,
        description="for lars: factor of the trust ratio, which scales the learning rate of a kernel w with gradient "
        "g: lars_coefficient * norm(w) / (norm(g) + lars_weight_decay * norm(w) + epsilon)",
    )
    lars_weight_decay: NonNegativeFloat = Field(
        1e-4, description="for lars: weight decay in the trust ratio; weight_decay decays the weights"
    )
    lars_decays_weights: bool = Field(
        False,
        description="for lars: also add lars_weight_decay * w to the gradient of each kernel w whose learning rate is "
        "scaled, as in the paper and TF1's LARSOptimizer, besides weight_decay",
    )
    lars_exclude: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see train.pattern_match: kernels whose path matches keep the learning rate "
        "unscaled, like biases, batch norm and fusion weights",
    )
    weight_decay: NonNegativeFloat = Field(
        1e-4,
        description="L2 regularisation of kernels, not of biases or batch norm; decoupled for adamw, part of the loss "
        "for the others",
    )
    weight_decay_exclude: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see train.pattern_match: kernels whose path matches do not decay; the OD "
        "API's EfficientDet: see update_rules.md",
    )
    regularizers: tuple[RegularizerConfig, ...] = Field(
        (),
        description="list of {match, l1, l2}: regularisation of kernels whose path matches, as part of the loss, in "
        "place of weight_decay; the first match of a path counts",
    )
    learning_rate_factors: tuple[LearningRateFactorConfig, ...] = Field(
        (),
        description="list of {match, factor}: variables whose path matches have this times the learning rate, as "
        "{match: efficientnet, factor: 0.1} for a backbone; the first match of a path counts",
    )

    def _check_keys(self) -> None:
        idle = sorted({key for keys in _KEYS_OF.values() for key in keys} - set(_KEYS_OF[self.name]))
        self.refuse(idle, f"under name = {self.name}")
        self.refuse(["nesterov", "legacy_momentum"], "while momentum is 0", when=not self.momentum)
        self.refuse(["lars_decays_weights"], "while lars_weight_decay is 0", when=not self.lars_weight_decay)
        decays = self.weight_decay or self.regularizers
        self.refuse(["weight_decay_exclude"], "while weight_decay is 0", when=not decays)
        values = self.hyperparameters
        sums_from_more = self.name == "adagrad" and values["initial_accumulator_value"]
        if values.get("epsilon") == 0 and not (sums_from_more or self.name == "lars"):
            fix = "set epsilon, or initial_accumulator_value" if self.name == "adagrad" else "set epsilon"
            raise ValueError(f"name = {self.name} divides by zero if epsilon and a gradient are 0; {fix}")

    @property
    def hyperparameters(self) -> dict[str, float | bool]:
        """Arguments of the optimizer except weight decay, as for `make_optimizer`."""
        chosen = {key: getattr(self, key) for key in _KEYS_OF[self.name] if key not in _NOT_HYPERPARAMETERS}
        return {key: _DEFAULTS[key][self.name] if value is None else value for key, value in chosen.items()}


class EmaConfig(Section):
    """EMA weights: exponential moving averages of the weights."""

    enabled: bool = Field(True, description="keep EMA weights beside the raw weights")
    decay: float = Field(
        0.9998, ge=0.0, lt=1.0, description="decay rate of the EMA: fraction of the EMA weight that each step keeps"
    )
    dynamic: bool = Field(
        True, description="use a lower decay in the first steps: min(decay, (1 + step) / (10 + step))"
    )
    include_batch_norm: bool = Field(True, description="also average batch-norm statistics")
    use_moving_averages: bool = Field(
        True,
        description="validate, follow and export EMA weights; false: raw weights, the default of the OD API's "
        "eval_config.use_moving_averages",
    )

    def _check_keys(self) -> None:
        self.refuse(["use_moving_averages"], "while enabled = false: all weights are raw", when=not self.enabled)

    @property
    def exported_weights(self) -> WeightsKind:
        """Weights that are validated, followed and exported."""
        return "ema" if self.enabled and self.use_moving_averages else "raw"


class ClipConfig(Section):
    """Clipping and multiplication of the global batch's gradients, in the order of these keys."""

    bias_multiplier: PositiveFloat = Field(
        1.0,
        description="factor for the gradients of the variables in bias_variables; 2 in TPU Mask R-CNN; "
        "bias_grad_multiplier in the OD API",
    )
    bias_variables: BiasVariables = Field(
        "bias_and_beta",
        description="bias_and_beta: biases and batch-norm offsets (beta), as in TPU Mask R-CNN; bias: biases of "
        "convolutions and dense layers only, as the OD API's `.*/biases`",
    )
    value: PositiveFloat | None = Field(None, description="max absolute value of each gradient element; none: off")
    per_variable_norm: PositiveFloat | None = Field(10.0, description="max norm of each variable's gradient; none: off")
    global_norm: PositiveFloat | None = Field(10.0, description="max global norm of all gradients; none: off")
    norm_ratio: PositiveFloat | None = Field(
        None,
        description="max global norm divided by the square root of the number of trainable weights, instead of "
        "global_norm; none: off; TPU Mask R-CNN: 0.02",
    )
    multiply_after_clipping: bool = Field(
        False,
        description="apply bias_multiplier after clipping, so that gradients may exceed the bounds, as in TPU Mask "
        "R-CNN",
    )

    def _check_keys(self) -> None:
        if self.global_norm is not None and self.norm_ratio is not None:
            raise ValueError("global_norm and norm_ratio bound the same norm; set one of them to null")
        if self.multiply_after_clipping and self.bias_multiplier == 1.0:
            raise ValueError(
                "multiply_after_clipping does nothing while bias_multiplier is 1; set it to 2, for example"
            )
        if self.bias_multiplier == 1.0:
            self.refuse(["bias_variables"], "while bias_multiplier is 1; set it to 2, for example")
