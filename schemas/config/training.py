"""The section `train`: one training run."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from schemas.config.augmentation import AugmentConfig
from schemas.config.initialization import InitConfig
from schemas.config.monitoring import NonFiniteConfig, ProfileConfig, SummariesConfig, ValidationConfig
from schemas.config.optimization import ClipConfig, EmaConfig, OptimizerConfig
from schemas.config.schedule import ScheduleConfig
from schemas.config.section import PatternMatch, RegularExpression, Section


class TrainConfig(Section):
    """The training run."""

    steps: PositiveInt = Field(1000, description="steps of the whole run, each of one global batch")
    batch_size: PositiveInt = Field(8, description="global batch size, over all replicas")
    seed: NonNegativeInt = Field(0, description="seed of random weights, order, augmentation and drop-connect")
    checkpoint_every: PositiveInt = Field(500, description="steps between checkpoints")
    keep_checkpoints: PositiveInt = Field(3, description="number of newest checkpoints to keep")
    keep_checkpoint_every_n_hours: PositiveFloat | None = Field(
        None, description="of the older ones, keep one per this many hours; none: keep none"
    )
    log_every: PositiveInt = Field(
        20, description="steps between progress updates and TensorBoard scalars, which are means over these steps"
    )
    steps_per_loop: PositiveInt = Field(
        1,
        description="steps inside one call of the compiled function; it may span several log points, each of which "
        "is logged, and ends early if a checkpoint, evaluation, picture, histogram or profile is due; 20 and more "
        "for GPUs, 100 and more for TPUs",
    )
    precision: Literal["float32", "mixed_bfloat16", "bfloat16", "mixed_float16"] = Field(
        "float32", description="precision of the network's arithmetic; variables and losses stay float32"
    )
    loss_scale: Literal["dynamic"] | PositiveFloat | None = Field(
        None,
        description="for mixed_float16: a number, or dynamic: steps whose gradients overflow are skipped, counted and "
        "halve the scale; none: dynamic",
    )
    loss_scale_initial: PositiveFloat = Field(2.0**15, description="initial dynamic loss scale")
    loss_scale_growth_steps: PositiveInt = Field(
        2000, description="a dynamic loss scale doubles after this many steps without overflow"
    )
    strategy: Literal["auto", "one_device", "mirrored", "multi_worker", "tpu"] = Field(
        "auto",
        description="one_device; mirrored: all GPUs of this machine; multi_worker: the machines in TF_CONFIG or "
        "CLUSTER_SPEC; tpu; auto: the first available of TPU, several machines, several GPUs, one device",
    )
    tpu: str | None = Field(
        None, min_length=1, description="local, a TPU's name or a grpc:// address; none: TPU_NAME, else local"
    )
    sync_batch_norm: bool = Field(
        True,
        description="with several replicas, batch-norm statistics come from the global batch, not from each replica's",
    )
    run_eagerly: bool = Field(False, description="for debugging: compile nothing, Python runs line by line")
    jit_compile: bool | Literal["auto"] = Field("auto", description="XLA; auto: except on CPUs")
    deterministic: bool | Literal["auto"] = Field(
        "auto", description="equal seeds give equal bits; auto: on one CPU replica without XLA"
    )
    trainable: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see pattern_match: only variables whose path matches one train; empty: all; "
        "the OD API's update_trainable_variables",
    )
    freeze: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see pattern_match: variables whose path matches one are frozen, "
        "batch-norm statistics included, so that a frozen backbone does not change",
    )
    pattern_match: PatternMatch = Field(
        "start",
        description="for trainable, freeze, optimizer.weight_decay_exclude, optimizer.lars_exclude and init.skip; "
        "start: an expression has to match from the start of a variable's path, as in google/automl; anywhere: in any "
        "part of it, as in the OD API; the log reports how many variables each expression matches",
    )
    freeze_batch_norm: Literal["none", "statistics", "all"] = Field(
        "none",
        description="for every batch norm, frozen or not: statistics: scale and offset train, the statistics are "
        "frozen, as in Mask R-CNN on TPUs; all: scale and offset are frozen, too",
    )
    init: InitConfig = InitConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    ema: EmaConfig = EmaConfig()
    clip: ClipConfig = ClipConfig()
    crowds: Literal["drop", "ignore"] = Field(
        "drop", description="crowd regions: drop: as if absent; ignore: neither objects nor background"
    )
    augment: AugmentConfig = AugmentConfig()
    validation: ValidationConfig = ValidationConfig()
    nonfinite: NonFiniteConfig = NonFiniteConfig()
    summaries: SummariesConfig = SummariesConfig()
    profile: ProfileConfig = ProfileConfig()

    @property
    def schedule_steps(self) -> int:
        """Steps of the whole schedule, of which the run may do a part, or more."""
        return self.schedule.total_steps or self.steps

    @property
    def warmup_steps(self) -> int:
        """Steps of warm-up, specified or derived."""
        specified = self.schedule.warmup_steps
        return self.schedule_steps // 10 if specified is None else specified

    @model_validator(mode="after")
    def _strategy_is_one(self) -> Self:
        if self.tpu is not None and self.strategy not in ("auto", "tpu"):
            raise ValueError(f"tpu = {self.tpu!r} and strategy = {self.strategy} exclude each other")
        if self.strategy == "one_device" and not self.sync_batch_norm:
            raise ValueError("sync_batch_norm = false needs several replicas, but strategy = one_device has one")
        return self

    @model_validator(mode="after")
    def _xla_is_not_deterministic(self) -> Self:
        if self.jit_compile is True and self.deterministic is True:
            raise ValueError("jit_compile and deterministic exclude each other: XLA lacks a deterministic max-pooling")
        return self

    @model_validator(mode="after")
    def _nothing_compiles_eagerly(self) -> Self:
        if self.run_eagerly and self.jit_compile is True:
            raise ValueError("run_eagerly and jit_compile exclude each other: XLA compiles what would run eagerly")
        if self.run_eagerly:
            self.refuse(("steps_per_loop",), "with run_eagerly, where no loop is compiled")
        return self

    @model_validator(mode="after")
    def _profile_fits(self) -> Self:
        start = self.profile.start_step
        if start is not None and start + self.profile.steps > self.steps:
            raise ValueError(
                f"profile.start_step = {start} and profile.steps = {self.profile.steps} end after steps = {self.steps}"
            )
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        self.schedule.require_fit(steps=self.steps, warmup_steps=self.warmup_steps)
        return self

    @model_validator(mode="after")
    def _something_is_matched(self) -> Self:
        patterns = (
            self.trainable,
            self.freeze,
            self.optimizer.weight_decay_exclude,
            self.optimizer.lars_exclude,
            self.init.skip,
        )
        if not any(patterns):
            self.refuse(("pattern_match",), "without trainable, freeze, an exclude key of optimizer or init.skip")
        return self

    @model_validator(mode="after")
    def _only_float16_scales_its_loss(self) -> Self:
        dynamic_keys = ("loss_scale_initial", "loss_scale_growth_steps")
        if self.precision != "mixed_float16":
            self.refuse(("loss_scale", *dynamic_keys), f"under precision = {self.precision}")
        if isinstance(self.loss_scale, float):
            self.refuse(dynamic_keys, f"beside a fixed loss_scale = {self.loss_scale}")
        return self


# Keys of `train` without effect on the trained weights: after a change of these, a killed training
# resumes, and the result of a finished one is reused.
WITHOUT_EFFECT = frozenset(
    {"checkpoint_every", "keep_checkpoints", "keep_checkpoint_every_n_hours", "log_every", "profile", "summaries"}
)
