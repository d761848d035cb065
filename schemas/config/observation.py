"""What a training run shows of itself: TensorBoard, profiler, and what is done about steps that are not finite."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from schemas.config.section import Section


class SummariesConfig(Section):
    """TensorBoard, besides the scalars of every `train.log_every` steps."""

    images_every: NonNegativeInt = Field(
        1000,
        description="steps between pictures of training images, as the network sees them, with boxes; 0: none",
    )
    images: PositiveInt = Field(8, description="images in such a picture, at most those of a batch")
    gradient_norms: bool = Field(
        False,
        description="also the norm of each variable's gradient, a mean as the other scalars; before clipping and the "
        "bias multiplier. Part of the OD API's summarize_gradients",
    )
    gradient_histograms_every: NonNegativeInt = Field(
        0,
        description="steps between histograms of each variable's gradient in that step, before clipping and the bias "
        "multiplier; 0: none. Part of the OD API's summarize_gradients",
    )

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if not self.images_every:
            self.refuse(("images",), "while images_every = 0")
        return self


class ProfileConfig(Section):
    """TensorFlow's profiler over some steps, for TensorBoard."""

    start_step: PositiveInt | None = Field(
        None, description="steps done when it starts, so that it leaves compiling out; none: off"
    )
    steps: PositiveInt = Field(10, description="steps that it looks at")

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if self.start_step is None:
            self.refuse(("steps",), "while start_step is none")
        return self


class NonFiniteConfig(Section):
    """Steps whose loss or gradient is NaN or infinite; none of them changes a weight."""

    policy: Literal["stop", "skip"] = Field(
        "stop", description="stop: the first one ends the run; skip: it is left out. Its batch is saved for inspection"
    )
    max_in_a_row: PositiveInt = Field(10, description="for skip: one more than so many in a row end the run")

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if self.policy == "stop":
            self.refuse(("max_in_a_row",), "with policy = stop")
        return self
