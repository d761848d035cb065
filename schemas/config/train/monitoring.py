"""Monitoring of a training run: validation, TensorBoard summaries, profiler, non-finite steps."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from schemas.artifacts import TRAIN_SPLIT
from schemas.config.section import Section
from schemas.metrics import MetricName

AUTO_SPLIT = "auto"


class ValidationConfig(Section):
    """Evaluation during training of the weights that `train.ema` exports; selects the best checkpoint."""

    every: PositiveInt | Literal["auto"] | None = Field(
        None,
        description="steps between evaluations; each evaluation writes a checkpoint; the last step is always "
        "evaluated; auto: a quarter of the run; if split = auto would keep fewer than 50 training images, none are "
        "kept, eval shows whether the metric still rises, and the last checkpoint is exported",
    )
    every_epochs: PositiveFloat | None = Field(None, description="epochs between evaluations, instead of every")
    split: str = Field(
        AUTO_SPLIT,
        description="split to evaluate on; auto: eval if `evaluate.split` is another split, else a part of the "
        "training images, by hash of the image id, excluded from training: images that select the checkpoint do not "
        "judge it",
    )
    fraction: float = Field(0.1, gt=0.0, lt=1.0, description="fraction of the training images to use for split: auto")
    metric: MetricName = Field(
        "AP",
        description="metric for the best checkpoint; higher is better; AP is that of the first of "
        "`evaluate.iou_types`, segm/AP that of masks",
    )
    max_images: PositiveInt | None = Field(
        None, description="max number of images to evaluate, always the same sample; none: all"
    )
    patience: PositiveInt | None = Field(
        None, description="number of evaluations without improvement before training stops early; none: off"
    )
    min_delta: NonNegativeFloat = Field(
        0.0, description="min change of the metric that counts as improvement, for patience"
    )
    export: Literal["auto", "best", "final"] = Field(
        "auto", description="checkpoint to export: the best or the final one; auto: the best if validation is on"
    )

    @property
    def enabled(self) -> bool:
        """True if training evaluates."""
        return self.every is not None or self.every_epochs is not None

    @property
    def is_open(self) -> bool:
        """True if the data decide whether to evaluate, on which images, and whether the best checkpoint is exported."""
        return (self.every, self.split, self.export, self.patience) == ("auto", AUTO_SPLIT, "auto", None)

    @property
    def fixed_every(self) -> int | None:
        """Steps between evaluations, for a configuration without `auto`."""
        assert self.every != "auto"
        return self.every

    @property
    def exports_best(self) -> bool:
        """True if the best checkpoint is exported."""
        return self.enabled and self.export != "final"

    def _check_keys(self) -> None:
        if self.every is not None and self.every_epochs is not None:
            raise ValueError("every and every_epochs are exclusive; remove one of them")
        if self.split == TRAIN_SPLIT:
            raise ValueError(
                "split = train: training images cannot select a checkpoint; auto excludes a part of them from training"
            )
        self.refuse(["fraction"], f"beside split = {self.split}; remove one", when=self.split != AUTO_SPLIT)
        if not self.enabled:
            keys = ("split", "fraction", "metric", "max_images", "patience", "min_delta")
            self.refuse(keys, "without evaluations during training; set every, or every_epochs")
            if self.export == "best":
                raise ValueError("export = best, but nothing selects the best; set every, or every_epochs")
        self.refuse(["min_delta"], "without early stopping; set patience", when=self.patience is None)


class SummariesConfig(Section):
    """TensorBoard summaries, besides the scalars every `train.log_every` steps."""

    images_every: NonNegativeInt = Field(
        1000, description="steps between pictures of augmented training images with their boxes; 0: none"
    )
    images: PositiveInt = Field(8, description="max images per picture; at most a batch")
    gradient_norms: bool = Field(
        False,
        description="also write the gradient norm of each variable, a mean like other scalars, before clipping and "
        "the bias multiplier; the OD API's summarize_gradients writes it after clipping",
    )
    gradient_histograms_every: NonNegativeInt = Field(
        0,
        description="steps between histograms of each variable's gradient, before clipping and the bias multiplier; "
        "0: none; the OD API's summarize_gradients writes them after clipping",
    )
    variable_histograms_every: NonNegativeInt = Field(
        0, description="steps between histograms of each variable's values, as ModelVars/ in the OD API; 0: none"
    )

    def _check_keys(self) -> None:
        self.refuse(("images",), "while images_every = 0", when=not self.images_every)


class ProfileConfig(Section):
    """TensorFlow's profiler, for TensorBoard."""

    start_step: PositiveInt | None = Field(
        None, description="number of steps before the profiler starts, so that compilation is not profiled; none: off"
    )
    steps: PositiveInt = Field(10, description="number of steps to profile")

    def _check_keys(self) -> None:
        self.refuse(("steps",), "while start_step is none", when=self.start_step is None)

    @property
    def edges(self) -> tuple[int, ...]:
        """Numbers of completed steps at the start and stop of the profiler; () without a profile."""
        return () if self.start_step is None else (self.start_step, self.start_step + self.steps)


class NonFiniteConfig(Section):
    """Steps whose loss or gradient is NaN or infinite; they do not change weights."""

    policy: Literal["stop", "skip"] = Field(
        "stop",
        description="stop: the first non-finite step stops the run; skip: its update is skipped; the batch is "
        "saved, at most 5 per run",
    )
    max_in_a_row: PositiveInt = Field(10, description="for skip: max non-finite steps in a row; one more stops the run")

    def _check_keys(self) -> None:
        self.refuse(("max_in_a_row",), "with policy = stop", when=self.policy == "stop")
