"""The update rule: optimizer, weight decay, averages, what happens to gradients."""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from schemas.expressions import RegularExpression
from schemas.section import Section

WeightsKind = Literal["ema", "raw"]

# The keys that act, by name; under the names they have in Keras, which has no legacy_momentum.
_KEYS_OF = {
    "sgd": ("momentum", "nesterov", "legacy_momentum"),
    "rmsprop": ("momentum", "rho", "epsilon", "centered"),
    "adam": ("beta_1", "beta_2", "epsilon"),
    "adamw": ("beta_1", "beta_2", "epsilon"),
}
_EPSILON = {"rmsprop": 1.0, "adam": 1e-7, "adamw": 1e-7}


class OptimizerConfig(Section):
    """The update rule."""

    name: Literal["sgd", "rmsprop", "adam", "adamw"] = Field("sgd", description="sgd: with momentum")
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="of sgd and rmsprop")
    nesterov: bool = Field(False, description="of sgd")
    legacy_momentum: bool = Field(
        False,
        description="of sgd: the momentum gathers gradients and the present rate scales it, as TF1's optimizer had "
        "it, Mask R-CNN's on TPUs among its users; Keras gathers steps, each with the rate of its time",
    )
    beta_1: float = Field(0.9, ge=0.0, lt=1.0, description="of adam and adamw: share of the mean that stays")
    beta_2: float = Field(0.999, ge=0.0, lt=1.0, description="of adam and adamw: share of the mean square that stays")
    rho: float = Field(
        0.9, ge=0.0, lt=1.0, description="of rmsprop: share of the mean square that stays, the OD API's decay"
    )
    epsilon: PositiveFloat | None = Field(
        None,
        description="of rmsprop, adam and adamw, against division by zero; none: rmsprop 1 as the OD API, adam and "
        "adamw 1e-7; the TPU detection code had 0.001 for rmsprop, the OD API 1e-8 for adam",
    )
    centered: bool = Field(False, description="of rmsprop: by the variance instead of the mean square")
    weight_decay: NonNegativeFloat = Field(
        4e-5,
        description="L2 on kernels, not biases or batch norm: decoupled for adamw, in the loss for the others",
    )
    weight_decay_exclude: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions: kernels whose path matches from its start do not decay either; the OD API "
        "left out `.*depthwise`",
    )

    @model_validator(mode="after")
    def _keys_act(self) -> Self:
        idle = sorted({key for keys in _KEYS_OF.values() for key in keys} - set(_KEYS_OF[self.name]))
        self.refuse(idle, f"under name = {self.name}")
        if not self.momentum:
            self.refuse(["nesterov", "legacy_momentum"], "while momentum is 0")
        if not self.weight_decay:
            self.refuse(["weight_decay_exclude"], "while weight_decay is 0")
        return self

    @property
    def hyperparameters(self) -> dict[str, float | bool]:
        """The keys that Keras' optimizer takes besides weight decay."""
        chosen = {key: getattr(self, key) for key in _KEYS_OF[self.name] if key != "legacy_momentum"}
        if "epsilon" in chosen and self.epsilon is None:
            chosen["epsilon"] = _EPSILON[self.name]
        return chosen


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
        1.0, description="factor of the gradients of biases and batch-norm offsets; Mask R-CNN on TPUs took 2"
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
        return self
