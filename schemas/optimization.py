"""The update rule: optimizer, learning rate, averages, clipping."""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from schemas.section import Section


class OptimizerConfig(Section):
    """The update rule."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="sgd's momentum, Adam's beta_1")
    nesterov: bool = False
    weight_decay: NonNegativeFloat = Field(
        4e-5,
        description="L2 on kernels, not biases or batch norm: in the loss for sgd and adam, decoupled for adamw",
    )


class ScheduleConfig(Section):
    """Learning rate: linear warm-up, then cosine to zero, measured from the end of warm-up."""

    name: Literal["cosine", "constant"] = "cosine"
    learning_rate: PositiveFloat = Field(0.08, description="peak, for a batch of reference_batch_size")
    reference_batch_size: PositiveInt | None = Field(
        64, description="peak and warm-up start scale with batch_size / this; none: they do not scale"
    )
    warmup_steps: NonNegativeInt | None = Field(None, description="none: a tenth of train.steps")
    warmup_learning_rate: NonNegativeFloat = Field(0.008, description="at step 0, scales like the peak")


class EmaConfig(Section):
    """Moving average of the weights; evaluation and export use it."""

    enabled: bool = True
    decay: float = Field(0.9998, ge=0.0, lt=1.0)
    dynamic: bool = Field(True, description="min(decay, (1 + step) / (10 + step))")
    include_batch_norm: bool = Field(True, description="average batch-norm statistics as well")


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
