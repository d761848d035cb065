"""The update rule: optimizer, weight decay, averages, what happens to gradients."""

from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from schemas.config.section import RegularExpression, Section

WeightsKind = Literal["ema", "raw"]

# The variables whose gradients `clip.bias_multiplier` multiplies.
BiasVariables = Literal["bias_and_beta", "bias"]
# The keys that act, by name; under the names they have in Keras, except legacy_momentum and lars_*.
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
# What a key that is not set means, by optimizer.
_DEFAULTS = {
    "epsilon": {"rmsprop": 1.0, "adam": 1e-7, "adamw": 1e-7, "adadelta": 1e-8, "adagrad": 0.0, "lars": 0.0},
    "rho": {"rmsprop": 0.9, "adadelta": 0.95},
    "initial_accumulator_value": {"rmsprop": 0.0, "adagrad": 0.1},
}
# The engine handles these apart from the optimizer's own arguments.
_NOT_HYPERPARAMETERS = {"legacy_momentum", "lars_exclude"}


class OptimizerConfig(Section):
    """The update rule."""

    name: Literal["sgd", "rmsprop", "adam", "adamw", "adadelta", "adagrad", "lars"] = Field(
        "sgd",
        description="sgd: with momentum; lars: sgd whose learning rate adapts to each kernel, for large batches; TPU "
        "Mask R-CNN had all but adamw",
    )
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="of sgd, rmsprop and lars")
    nesterov: bool = Field(False, description="of sgd and lars")
    legacy_momentum: bool = Field(
        False,
        description="of sgd and lars: the momentum gathers gradients and the present rate scales it, as TF1's "
        "optimizers had it, Mask R-CNN's on TPUs among its users; Keras gathers steps, each with the rate of its time",
    )
    beta_1: float = Field(0.9, ge=0.0, lt=1.0, description="of adam and adamw: share of the mean that stays")
    beta_2: float = Field(0.999, ge=0.0, lt=1.0, description="of adam and adamw: share of the mean square that stays")
    rho: float | None = Field(
        None,
        ge=0.0,
        lt=1.0,
        description="of rmsprop and adadelta: share of the mean square that stays, the OD API's decay; none: rmsprop "
        "0.9, adadelta 0.95",
    )
    epsilon: NonNegativeFloat | None = Field(
        None,
        description="of all but sgd, against division by zero; none: rmsprop 1 as the OD API, adam and adamw 1e-7, "
        "adadelta 1e-8, adagrad and lars 0, as TF1; the OD API had 1e-8 for adam, TPU Mask R-CNN 1e-10 for rmsprop, "
        "the later TPU detection code 0.001",
    )
    centered: bool = Field(False, description="of rmsprop: by the variance instead of the mean square")
    initial_accumulator_value: NonNegativeFloat | None = Field(
        None,
        description="start of rmsprop's mean square and of adagrad's sum of squares; none: rmsprop 0 as Keras, adagrad "
        "0.1; TF1 started rmsprop at 1, so did the OD API on TF1 and TPU Mask R-CNN, and its first steps are smaller",
    )
    lars_coefficient: PositiveFloat = Field(
        0.001,
        description="of lars: the learning rate of a kernel w with the gradient g is scaled by its trust ratio, this "
        "* norm(w) / (norm(g) + lars_weight_decay * norm(w) + epsilon)",
    )
    lars_weight_decay: NonNegativeFloat = Field(
        1e-4, description="of lars: in the trust ratio only; what decays the weights is weight_decay"
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
        """Drops `rho: 0.9` under optimizers without it: its default in files from before Adadelta was there."""
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
        """The arguments of the optimizer besides weight decay; see `make_optimizer`."""
        chosen = {key: getattr(self, key) for key in _KEYS_OF[self.name] if key not in _NOT_HYPERPARAMETERS}
        return {key: _DEFAULTS[key][self.name] if value is None else value for key, value in chosen.items()}


class EmaConfig(Section):
    """Moving average of the weights."""

    enabled: bool = Field(True, description="keep averages beside the raw weights")
    decay: float = Field(0.9998, ge=0.0, lt=1.0, description="share of the average that stays at each step")
    dynamic: bool = Field(True, description="min(decay, (1 + step) / (10 + step))")
    include_batch_norm: bool = Field(True, description="average batch-norm statistics as well")
    use_moving_averages: bool = Field(
        True,
        description="validate, follow and export the EMA weights; false: the raw weights, the default of the OD API's "
        "eval_config.use_moving_averages",
    )

    @model_validator(mode="after")
    def _there_are_averages_to_use(self) -> Self:
        if not self.enabled:
            self.refuse(["use_moving_averages"], "while enabled = false: all weights are raw")
        return self

    @property
    def exported_weights(self) -> WeightsKind:
        """The weights that are validated, followed and exported."""
        return "ema" if self.enabled and self.use_moving_averages else "raw"


class ClipConfig(Section):
    """What happens to the global batch's gradients, in the order of these keys."""

    bias_multiplier: PositiveFloat = Field(
        1.0,
        description="factor of the gradients of the variables in bias_variables; TPU Mask R-CNN doubled them, the OD "
        "API called it bias_grad_multiplier",
    )
    bias_variables: BiasVariables = Field(
        "bias_and_beta",
        description="what bias_multiplier multiplies: bias_and_beta: biases and batch-norm offsets (beta), as TPU Mask "
        "R-CNN; bias: biases of convolutions and dense layers alone, as the OD API's `.*/biases`",
    )
    value: PositiveFloat | None = Field(None, description="bound of each element; none: off")
    per_variable_norm: PositiveFloat | None = Field(10.0, description="bound of each gradient's norm; none: off")
    global_norm: PositiveFloat | None = Field(10.0, description="bound of the norm of all together; none: off")
    norm_ratio: PositiveFloat | None = Field(
        None,
        description="instead of global_norm, a bound of this times the square root of the number of weights that "
        "train; none: off; Mask R-CNN on TPUs took 0.02",
    )
    multiply_after_clipping: bool = Field(
        False, description="bias_multiplier acts last and may break the bounds, as in Mask R-CNN on TPUs"
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
