"""Monitoring of a training run: validation, TensorBoard summaries, profiler, non-finite steps."""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from schemas.config.section import Section
from schemas.metrics import MetricName


class ValidationConfig(Section):
    """Evaluation while training, of the weights that `train.ema` exports, on the split that `evaluate.split` names."""

    every: PositiveInt | None = Field(
        None,
        description="steps between evaluations; each evaluates a new checkpoint, the last step is always evaluated",
    )
    every_epochs: PositiveFloat | None = Field(None, description="instead of every: epochs between evaluations")
    metric: MetricName = Field("AP", description="metric that selects the best checkpoint; higher is better")
    iou_type: Literal["bbox", "segm", "keypoints"] = Field(
        "bbox", description="what is compared: boxes, or masks or keypoints of a detector that has them"
    )
    max_images: PositiveInt | None = Field(None, description="max number of images, always the same sample; none: all")
    patience: PositiveInt | None = Field(
        None, description="early stopping after this many evaluations without improvement; none: off"
    )
    min_delta: NonNegativeFloat = Field(0.0, description="min improvement that counts, for patience")
    export: Literal["auto", "best", "final"] = Field(
        "auto", description="checkpoint to export: best or last; auto: best if validation is on"
    )

    @property
    def enabled(self) -> bool:
        """True if training evaluates."""
        return self.every is not None or self.every_epochs is not None

    @property
    def exports_best(self) -> bool:
        """True if the best checkpoint is exported."""
        return self.enabled and self.export != "final"

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if self.every is not None and self.every_epochs is not None:
            raise ValueError("every and every_epochs both say how often; remove one of them")
        if not self.enabled:
            for key in ("metric", "iou_type", "max_images", "patience", "min_delta"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key} needs evaluations while training; set every, or every_epochs")
            if self.export == "best":
                raise ValueError("export = best, but nothing selects the best; set every, or every_epochs")
        if self.min_delta and self.patience is None:
            raise ValueError("min_delta is for early stopping, which is off; set patience")
        return self


class SummariesConfig(Section):
    """TensorBoard, besides the scalars of every `train.log_every` steps."""

    images_every: NonNegativeInt = Field(
        1000,
        description="steps between pictures of training images with boxes, as the network sees them; 0: none",
    )
    images: PositiveInt = Field(8, description="images per picture, at most a batch")
    gradient_norms: bool = Field(
        False,
        description="also the norm of each variable's gradient, a mean like other scalars; before clipping and the "
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
        None, description="steps done when the profiler starts, so that compiling is not profiled; none: off"
    )
    steps: PositiveInt = Field(10, description="number of steps to profile")

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if self.start_step is None:
            self.refuse(("steps",), "while start_step is none")
        return self

    @property
    def edges(self) -> tuple[int, ...]:
        """Steps done when the profiler starts and stops; () without a profile."""
        return () if self.start_step is None else (self.start_step, self.start_step + self.steps)


class NonFiniteConfig(Section):
    """Steps whose loss or gradient is NaN or infinite; none of them changes a weight."""

    policy: Literal["stop", "skip"] = Field(
        "stop",
        description="stop: the first such step ends the run; skip: its update is skipped. Its batch is saved",
    )
    max_in_a_row: PositiveInt = Field(10, description="for skip: max non-finite steps in a row, one more ends the run")

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if self.policy == "stop":
            self.refuse(("max_in_a_row",), "with policy = stop")
        return self
