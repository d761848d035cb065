"""The sections of the update rule: optimizer, weight decay, EMA weights, clipping."""

from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from schemas.config.section import RegularExpression, Section

WeightsKind = Literal["ema", "raw"]

# Variables whose gradients `clip.bias_multiplier` multiplies.
BiasVariables = Literal["bias_and_beta", "bias"]
# Keys that each optimizer has, under their names in Keras, except legacy_momentum and lars_*.
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


class OptimizerConfig(Section):
    """The update rule."""

    name: Literal["sgd", "rmsprop", "adam", "adamw", "adadelta", "adagrad", "lars"] = Field(
        "sgd",
        description="sgd: with momentum; lars: sgd whose learning rate adapts to each kernel, for large batches; TPU "
        "Mask R-CNN had all but adamw",
    )
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="for sgd, rmsprop and lars")
    nesterov: bool = Field(False, description="for sgd and lars")
    legacy_momentum: bool = Field(
        False,
        description="for sgd and lars: momentum accumulates gradients, scaled by the present rate, as in TF1's "
        "optimizers and Mask R-CNN on TPUs; Keras accumulates steps, each with the rate of its time",
    )
    beta_1: float = Field(0.9, ge=0.0, lt=1.0, description="for adam and adamw: decay of the mean")
    beta_2: float = Field(0.999, ge=0.0, lt=1.0, description="for adam and adamw: decay of the mean square")
    rho: float | None = Field(
        None,
        ge=0.0,
        lt=1.0,
        description="for rmsprop and adadelta: decay of the mean square; none: rmsprop 0.9, adadelta 0.95",
    )
    epsilon: NonNegativeFloat | None = Field(
        None,
        description="for all but sgd, against division by zero; none: rmsprop 1 as the OD API, adam and adamw 1e-7, "
        "adadelta 1e-8, adagrad and lars 0, as TF1; the OD API had 1e-8 for adam, TPU Mask R-CNN 1e-10 for rmsprop, "
        "the later TPU detection code 0.001",
    )
    centered: bool = Field(False, description="for rmsprop: divide by the variance instead of the mean square")
    initial_accumulator_value: NonNegativeFloat | None = Field(
        None,
        description="initial value of rmsprop's mean square and adagrad's sum of squares; none: rmsprop 0 as "
        "Keras, adagrad 0.1; TF1's rmsprop (OD API on TF1, TPU Mask R-CNN) starts at 1: its first steps are smaller",
    )
    lars_coefficient: PositiveFloat = Field(
        0.001,
        description="for lars: the learning rate of a kernel w with the gradient g is scaled by its trust ratio, this "
        "* norm(w) / (norm(g) + lars_weight_decay * norm(w) + epsilon)",
    )
    lars_weight_decay: NonNegativeFloat = Field(
        1e-4, description="for lars: in the trust ratio only; weights decay by weight_decay"
    )
    lars_exclude: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see train.pattern_match: kernels whose path matches keep the plain learning "
        "rate, as biases, batch norm and fusion weights do",
    )
    weight_decay: NonNegativeFloat = Field(
        4e-5,
        description="L2 on kernels, not biases or batch norm: decoupled for adamw, in the loss for the others",
    )
    weight_decay_exclude: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see train.pattern_match: kernels whose path matches do not decay either; the "
        "OD API left out `.*depthwise`",
    )

    @model_validator(mode="before")
    @classmethod
    def _older_files_are_read(cls, tree: Any) -> Any:
        """Drops `rho: 0.9` for optimizers without it: its default in files from before Adadelta was added."""
        if (
            isinstance(tree, dict)
            and tree.get("rho") == 0.9
            and "rho" not in _KEYS_OF.get(str(tree.get("name", "sgd")), ())
        ):
            return {key: value for key, value in tree.items() if key != "rho"}
        return tree

    @model_validator(mode="after")
    def _keys_act(self) -> Self:
        idle = sorted({key for keys in _KEYS_OF.values() for key in keys} - set(_KEYS_OF[self.name]))
        self.refuse(idle, f"under name = {self.name}")
        if not self.momentum:
            self.refuse(["nesterov", "legacy_momentum"], "while momentum is 0")
        if not self.weight_decay:
            self.refuse(["weight_decay_exclude"], "while weight_decay is 0")
        return self

    @model_validator(mode="after")
    def _divides_by_more_than_zero(self) -> Self:
        values = self.hyperparameters
        sums_from_more = self.name == "adagrad" and values["initial_accumulator_value"]
        if values.get("epsilon") == 0 and not (sums_from_more or self.name == "lars"):
            fix = "set epsilon, or initial_accumulator_value" if self.name == "adagrad" else "set epsilon"
            raise ValueError(f"name = {self.name} divides by zero if a gradient is 0 and epsilon = 0; {fix}")
        return self

    @property
    def hyperparameters(self) -> dict[str, float | bool]:
        """Arguments of the optimizer besides weight decay; see `make_optimizer`."""
        chosen = {key: getattr(self, key) for key in _KEYS_OF[self.name] if key not in _NOT_HYPERPARAMETERS}
        return {key: _DEFAULTS[key][self.name] if value is None else value for key, value in chosen.items()}


class EmaConfig(Section):
    """EMA weights: exponential moving averages of the weights."""

    enabled: bool = Field(True, description="keep EMA weights beside the raw weights")
    decay: float = Field(0.9998, ge=0.0, lt=1.0, description="fraction of the EMA weight that each step keeps")
    dynamic: bool = Field(True, description="min(decay, (1 + step) / (10 + step))")
    include_batch_norm: bool = Field(True, description="average batch-norm statistics, too")
    use_moving_averages: bool = Field(
        True,
        description="validate, follow and export EMA weights; false: raw weights, the default of the OD API's "
        "eval_config.use_moving_averages",
    )

    @model_validator(mode="after")
    def _there_are_ema_weights_to_use(self) -> Self:
        if not self.enabled:
            self.refuse(["use_moving_averages"], "while enabled = false: all weights are raw")
        return self

    @property
    def exported_weights(self) -> WeightsKind:
        """Weights that are validated, followed and exported."""
        return "ema" if self.enabled and self.use_moving_averages else "raw"


class ClipConfig(Section):
    """Clipping and multiplication of the global batch's gradients, in the order of these keys."""

    bias_multiplier: PositiveFloat = Field(
        1.0,
        description="factor of the gradients of the variables in bias_variables; TPU Mask R-CNN doubled them, the OD "
        "API called it bias_grad_multiplier",
    )
    bias_variables: BiasVariables = Field(
        "bias_and_beta",
        description="bias_and_beta: biases and batch-norm offsets (beta), as TPU Mask "
        "R-CNN; bias: biases of convolutions and dense layers alone, as the OD API's `.*/biases`",
    )
    value: PositiveFloat | None = Field(None, description="max absolute value of each element; none: off")
    per_variable_norm: PositiveFloat | None = Field(10.0, description="max norm of each gradient; none: off")
    global_norm: PositiveFloat | None = Field(10.0, description="max norm of all gradients together; none: off")
    norm_ratio: PositiveFloat | None = Field(
        None,
        description="instead of global_norm: a max norm of this times the square root of the number of weights that "
        "train; none: off; Mask R-CNN on TPUs: 0.02",
    )
    multiply_after_clipping: bool = Field(
        False, description="apply bias_multiplier last, beyond the bounds, as in Mask R-CNN on TPUs"
    )

    @model_validator(mode="after")
    def _one_global_norm(self) -> Self:
        if self.global_norm is not None and self.norm_ratio is not None:
            raise ValueError("global_norm and norm_ratio both bound the same norm; set one of them to null")
        return self

    @model_validator(mode="after")
    def _something_is_multiplied(self) -> Self:
        if self.multiply_after_clipping and self.bias_multiplier == 1.0:
            raise ValueError(
                "multiply_after_clipping does nothing while bias_multiplier is 1; set it to 2, for example"
            )
        if self.bias_multiplier == 1.0:
            self.refuse(["bias_variables"], "while bias_multiplier is 1; set it to 2, for example")
        return self
