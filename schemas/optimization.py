"""The update rule: optimizer, learning rate, averages, clipping."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

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
    """Gradient clipping: each gradient first, then all together; none: off."""

    per_variable_norm: PositiveFloat | None = 10.0
    global_norm: PositiveFloat | None = 10.0
