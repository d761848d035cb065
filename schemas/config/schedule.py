"""The learning rate over the steps."""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from schemas.config.section import Section

# The keys that act under some names only.
_KEYS_OF = {
    "constant": set(),
    "step": {"total_steps", "boundaries", "rates", "factors"},
    "cosine": {"total_steps", "hold_steps", "end_learning_rate", "phase"},
    "polynomial": {"total_steps", "hold_steps", "end_learning_rate", "phase", "power"},
    "exponential": {"hold_steps", "end_learning_rate", "decay_steps", "decay_factor", "staircase"},
}


class ScheduleConfig(Section):
    """Learning rate: a warm-up, then what `name` says, measured from its end; all rates scale with the batch."""

    name: Literal["cosine", "constant", "step", "polynomial", "exponential"] = Field(
        "cosine", description="what the learning rate does after warm-up"
    )
    learning_rate: PositiveFloat = Field(0.08, description="peak, for a batch of reference_batch_size")
    reference_batch_size: PositiveInt | None = Field(
        64, description="rates scale with batch_size / this; none: they do not scale"
    )
    total_steps: PositiveInt | None = Field(
        None,
        description="of cosine, polynomial and step: the schedule's own length, for a run of a part of it; none: "
        "train.steps; past it cosine and polynomial stay at end_learning_rate, 0 in the OD API",
    )
    warmup_steps: NonNegativeInt | None = Field(
        None, description="none: a tenth of total_steps, or else of train.steps"
    )
    warmup_learning_rate: NonNegativeFloat = Field(0.008, description="at step 0")
    warmup: Literal["linear", "constant"] = Field(
        "linear",
        description="linear: rises to the peak; constant: stays at warmup_learning_rate until it ends, "
        "the OD API's burn-in",
    )
    scale_warmup: bool = Field(
        True, description="warmup_learning_rate scales like the peak; in google/automl's TF2 trainer it did not"
    )
    hold_steps: NonNegativeInt = Field(
        0, description="at the peak, after warm-up; of cosine, polynomial and exponential"
    )
    end_learning_rate: NonNegativeFloat = Field(
        0.0, description="of cosine and polynomial the last, of exponential the least"
    )
    power: PositiveFloat = Field(0.9, description="of polynomial: of the share of steps left")
    phase: Literal["after_warmup", "from_start"] = Field(
        "after_warmup",
        description="of cosine and polynomial: where the decay is counted from; from_start: as google/automl did, "
        "whose cosine ends early and rises again",
    )
    boundaries: tuple[PositiveInt, ...] = Field(
        (), description="of step: first steps of the rates after the peak, counted from step 0"
    )
    rates: tuple[NonNegativeFloat, ...] = Field((), description="of step: a rate for each boundary")
    factors: tuple[NonNegativeFloat, ...] = Field(
        (), description="of step: instead of rates, shares of the peak, as [0.1, 0.01]"
    )
    decay_steps: PositiveInt | None = Field(None, description="of exponential: after so many steps comes one decay")
    decay_factor: float = Field(0.95, gt=0.0, le=1.0, description="of exponential: what one decay leaves")
    staircase: bool = Field(True, description="of exponential: whole decays count, not their fractions")

    @model_validator(mode="after")
    def _keys_act(self) -> Self:
        idle = sorted(set().union(*_KEYS_OF.values()) - _KEYS_OF[self.name])
        self.refuse(idle, f"under name = {self.name}")
        if self.reference_batch_size is None:
            self.refuse(["scale_warmup"], "without reference_batch_size: nothing scales")
        if self.phase == "from_start":
            self.refuse(["hold_steps"], "under phase = from_start")
        return self

    @model_validator(mode="after")
    def _rates_are_whole(self) -> Self:
        if self.name == "step" and (
            not self.boundaries
            or bool(self.rates) == bool(self.factors)
            or len(self.boundaries) != len(self.rates or self.factors)
        ):
            raise ValueError("name = step needs boundaries, as [15000, 20000], and as many rates or else factors")
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError(f"boundaries = {list(self.boundaries)} do not increase")
        if self.name == "exponential" and self.decay_steps is None:
            raise ValueError("name = exponential needs decay_steps")
        if self.end_learning_rate > self.learning_rate:
            raise ValueError(f"end_learning_rate = {self.end_learning_rate} is above learning_rate, the peak")
        return self

    def require_fit(self, *, steps: int, warmup_steps: int) -> None:
        """Refuses parts that do not come to act in a schedule of `total_steps`, or else of `steps`, steps.

        Args:
            steps: of the run.
            warmup_steps: specified or derived.

        Raises:
            ValueError: with the key that is too late or too long.
        """
        total = self.total_steps or steps
        length = f"steps = {steps}" if self.total_steps is None else f"schedule.total_steps = {total}"
        if warmup_steps >= total:
            raise ValueError(f"schedule.warmup_steps = {warmup_steps} leaves nothing of {length}")
        if warmup_steps + self.hold_steps >= total:
            raise ValueError(
                f"schedule.hold_steps = {self.hold_steps} and a warm-up of {warmup_steps} leave nothing of {length}"
            )
        for boundary in self.boundaries:
            if not warmup_steps < boundary < total:
                raise ValueError(
                    f"schedule.boundaries: {boundary} is not between the end of warm-up, {warmup_steps}, and {length}"
                )
        if total < steps and self.phase == "from_start":
            raise ValueError(
                f"schedule.total_steps = {total} ends before steps = {steps}, which phase = from_start cannot: its "
                "cosine would rise to the peak again; use phase = after_warmup, or as many steps"
            )
