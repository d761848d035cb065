"""The section `train.schedule`: the learning rate as a function of the step."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from schemas.config.section import Section

# Default peak for Adam and AdamW; measured, see docs/recipes.md.
ADAM_LEARNING_RATE = 0.002
# End of `hold_steps: auto`, as a fraction of the schedule; measured, see docs/recipes.md.
AUTO_HOLD_END = 0.7

# Keys of some schedules.
_TOTAL, _HOLD = {"total_steps", "total_epochs"}, {"hold_steps", "hold_epochs"}
_KEYS_OF = {
    "constant": set(),
    "step": {*_TOTAL, "boundaries", "boundaries_epochs", "rates", "factors"},
    "cosine": {*_TOTAL, *_HOLD, "end_learning_rate", "phase"},
    "polynomial": {*_TOTAL, *_HOLD, "end_learning_rate", "phase", "power"},
    "exponential": {*_HOLD, "end_learning_rate", "decay_steps", "decay_epochs", "decay_factor", "staircase"},
}
# Pairs of keys for the same length: in steps, in epochs.
UNITS = (
    ("total_steps", "total_epochs"),
    ("warmup_steps", "warmup_epochs"),
    ("hold_steps", "hold_epochs"),
    ("boundaries", "boundaries_epochs"),
    ("decay_steps", "decay_epochs"),
)


class ScheduleConfig(Section):
    """Learning rate: a warm-up, followed by the schedule `name`."""

    name: Literal["cosine", "constant", "step", "polynomial", "exponential"] = Field(
        "cosine", description="schedule after warm-up"
    )
    learning_rate: PositiveFloat | None = Field(
        None,
        description="peak learning rate, for a batch of reference_batch_size; none, for adam and adamw: 0.002, "
        "0.003 for an EfficientDet, 0.001 for a D-FINE, 0.0001 for a detector whose batch norms have fixed statistics",
    )
    reference_batch_size: PositiveInt | None = Field(
        None,
        description="multiply all learning rates by batch_size / reference_batch_size, as usual for sgd (64 in "
        "google/automl); none: no scaling",
    )
    total_steps: PositiveInt | None = Field(
        None,
        description="for cosine, polynomial and step: length of the schedule, if it differs from train.steps; none: "
        "train.steps; after it, cosine and polynomial stay at end_learning_rate (0 in the OD API)",
    )
    total_epochs: PositiveFloat | None = Field(None, description="total_steps in epochs, instead")
    warmup_steps: NonNegativeInt | None = Field(
        None, description="steps of warm-up; none: a tenth of total_steps or train.steps"
    )
    warmup_epochs: NonNegativeFloat | None = Field(
        None, description="epochs of warm-up, instead of warmup_steps; 1 in google/automl"
    )
    warmup_learning_rate: NonNegativeFloat = Field(0.0, description="learning rate at step 0")
    warmup: Literal["linear", "constant"] = Field(
        "linear",
        description="linear: the learning rate rises to the peak; constant: it stays at warmup_learning_rate, or at "
        "the peak if that is 0, until warm-up ends, the OD API's burn-in",
    )
    scale_warmup: bool = Field(
        True,
        description="scale warmup_learning_rate by the batch size, like the peak; google/automl's TF2 trainer does not",
    )
    hold_steps: NonNegativeInt | Literal["auto"] = Field(
        "auto",
        description="for cosine, polynomial and exponential: steps at the peak after warm-up; auto: for cosine with "
        "phase = after_warmup, up to 0.7 of total_steps or train.steps, else 0",
    )
    hold_epochs: NonNegativeFloat | None = Field(None, description="hold_steps in epochs, instead")
    end_learning_rate: NonNegativeFloat = Field(
        0.0, description="final learning rate of cosine and polynomial, min of exponential"
    )
    power: PositiveFloat = Field(0.9, description="for polynomial: power of the fraction of steps left")
    phase: Literal["after_warmup", "from_start"] = Field(
        "after_warmup",
        description="for cosine and polynomial: start of the decay; from_start: as in google/automl, whose cosine "
        "ends early and rises again",
    )
    boundaries: tuple[PositiveInt, ...] = Field(
        (), description="for step: steps, counted from 0, at which the learning rate changes"
    )
    boundaries_epochs: tuple[PositiveFloat, ...] = Field(
        (), description="for step: boundaries in epochs, instead; [200, 250] of 300 in google/automl"
    )
    rates: tuple[NonNegativeFloat, ...] = Field((), description="for step: learning rate from each boundary on")
    factors: tuple[NonNegativeFloat, ...] = Field(
        (), description="for step: fractions of the peak, such as [0.1, 0.01], instead of rates"
    )
    decay_steps: PositiveInt | None = Field(None, description="for exponential: steps per decay")
    decay_epochs: PositiveFloat | None = Field(None, description="for exponential: epochs per decay, instead")
    decay_factor: float = Field(0.95, gt=0.0, le=1.0, description="for exponential: factor per decay")
    staircase: bool = Field(True, description="for exponential: decay once per decay_steps, not continuously")

    def _check_keys(self) -> None:
        idle = sorted(set().union(*_KEYS_OF.values()) - _KEYS_OF[self.name])
        if self.hold_steps == 0:  # as every other schedule does
            idle = [key for key in idle if key != "hold_steps"]
        self.refuse(idle, f"under name = {self.name}")
        if self.reference_batch_size is None:
            self.refuse(["scale_warmup"], "without reference_batch_size: nothing scales")
        holds = ["hold_epochs", *(["hold_steps"] if self.hold_steps else [])]
        self.refuse(holds, "under phase = from_start", when=self.phase == "from_start")
        for steps, epochs in UNITS:
            if getattr(self, epochs) not in (None, ()):
                self.refuse([steps], f"beside {epochs}; remove one of them")
        boundaries = self.boundaries or self.boundaries_epochs
        if self.name == "step" and (
            not boundaries
            or bool(self.rates) == bool(self.factors)
            or len(boundaries) != len(self.rates or self.factors)
        ):
            raise ValueError(
                "name = step needs boundaries, as [15000, 20000], or boundaries_epochs, and as many rates or else "
                "factors"
            )
        if list(boundaries) != sorted(set(boundaries)):
            key = "boundaries" if self.boundaries else "boundaries_epochs"
            raise ValueError(f"{key} = {list(boundaries)} do not increase")
        if self.name == "exponential" and self.decay_steps is None and self.decay_epochs is None:
            raise ValueError("name = exponential needs decay_steps or decay_epochs")
        if self.learning_rate is not None and self.end_learning_rate > self.learning_rate:
            raise ValueError(f"end_learning_rate = {self.end_learning_rate} is above learning_rate, the peak")

    @property
    def peak(self) -> float:
        """The peak learning rate of a resolved configuration; see `detection.training.resolve`."""
        assert self.learning_rate is not None
        return self.learning_rate

    @property
    def fixed_hold_steps(self) -> int:
        """Steps at the peak of a resolved configuration, 0 for a schedule without them."""
        return 0 if self.hold_steps == "auto" else self.hold_steps

    @property
    def holds(self) -> bool:
        """True if `hold_steps: auto` are some steps."""
        return self.name == "cosine" and self.phase == "after_warmup" and self.hold_epochs is None

    @property
    def has_epochs(self) -> bool:
        """True if a length is in epochs."""
        return any(getattr(self, epochs) not in (None, ()) for _, epochs in UNITS)

    def require_fit_in_epochs(self, epochs: float | None) -> None:
        """Refuses lengths in epochs beyond the end of the schedule, if its length is also in epochs.

        Args:
            epochs: epochs of the run; None: the run has a number of steps.

        Raises:
            ValueError: a key is too late or too long.
        """
        total = self.total_epochs if self.total_steps is None and self.total_epochs else epochs
        if total is None or self.total_steps is not None:
            return
        length = f"epochs = {total:g}" if self.total_epochs is None else f"schedule.total_epochs = {total:g}"
        ends = {"warmup_epochs": (self.warmup_epochs or 0.0,), "boundaries_epochs": self.boundaries_epochs}
        ends["hold_epochs"] = ((self.hold_epochs or 0.0) + (self.warmup_epochs or 0.0),)
        for key, values in ends.items():
            if max(values, default=0.0) >= total:
                raise ValueError(f"schedule.{key} does not end before {length}")

    def require_fit(self, *, steps: int, warmup_steps: int) -> None:
        """Refuses parts without effect in a schedule of `total_steps` steps, or `steps` if unset.

        Args:
            steps: steps of the run.
            warmup_steps: steps of warm-up, specified or derived.

        Raises:
            ValueError: a key is too late or too long.
        """
        total = self.total_steps or steps
        length = f"steps = {steps}" if self.total_steps is None else f"schedule.total_steps = {total}"
        if warmup_steps >= total:
            raise ValueError(f"schedule.warmup_steps = {warmup_steps} is not below {length}")
        if warmup_steps + self.fixed_hold_steps >= total:
            raise ValueError(
                f"schedule.hold_steps = {self.hold_steps} and warm-up = {warmup_steps} are together not below {length}"
            )
        for boundary in self.boundaries:
            if not warmup_steps < boundary < total:
                raise ValueError(
                    f"schedule.boundaries: {boundary} is not between the end of warm-up, {warmup_steps}, and {length}"
                )
        if total < steps and self.phase == "from_start":
            raise ValueError(
                f"schedule.total_steps = {total} ends before steps = {steps}, which phase = from_start does not "
                "support: its cosine would rise again; use phase = after_warmup, or as many steps"
            )
