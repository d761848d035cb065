"""The section `train`: one training run."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from schemas.config.section import PatternMatch, RegularExpression, Section
from schemas.config.train.augmentation import AugmentConfig
from schemas.config.train.initialization import InitConfig
from schemas.config.train.monitoring import NonFiniteConfig, ProfileConfig, SummariesConfig, ValidationConfig
from schemas.config.train.optimization import ClipConfig, EmaConfig, OptimizerConfig
from schemas.config.train.schedule import UNITS, ScheduleConfig

# Length of a run with `steps: auto`: measured, see docs/recipes.md.
AUTO_EPOCHS = 15
AUTO_MIN_STEPS = 300
AUTO_MINUTES = 10
# Pixels of the inputs of all steps, plus STEP_PIXELS per step, in a minute of a core, for a small detector.
MINUTE_PIXELS = 70_000_000
STEP_PIXELS = 90_000  # the update of the weights takes as long as so many pixels of the input

# Scale jitter of `scale_max: auto`: measured, see docs/recipes.md.
JITTER_EPOCHS, MAX_JITTER = 300, 0.5

ClassWeights = Literal["inverse_frequency", "inverse_sqrt_frequency"] | dict[str, NonNegativeFloat]


class SamplingConfig(Section):
    """Sampling of the images of an epoch."""

    name: Literal["uniform", "repeat_factor"] = Field(
        "uniform",
        description="uniform: once; repeat_factor: images of a rare class several times, as LVIS does: "
        "max(1, sqrt(threshold / f)) times on average, where f is the fraction of images with its rarest class",
    )
    threshold: float = Field(
        0.001, gt=0.0, le=1.0, description="for repeat_factor: classes in a smaller fraction of the images are rare"
    )

    def _check_keys(self) -> None:
        self.refuse(("threshold",), "with name = uniform", when=self.name == "uniform")


class TrainConfig(Section):
    """The training run."""

    steps: PositiveInt | Literal["auto"] = Field(
        "auto", description="total number of steps, each with one update of the weights; auto: those of budget"
    )
    budget: PositiveFloat | None = Field(
        None,
        description="for steps = auto: processor minutes of a core, each of 70 million pixels, of the inputs and "
        "90,000 more per step; null: 10, or 15 epochs if these are more, but at least 300 steps",
    )
    epochs: PositiveFloat | None = Field(
        None,
        description="length of the run in epochs, instead of steps; an epoch is one image per training record, or "
        "more under sampling",
    )
    batch_size: PositiveInt | Literal["auto"] = Field(
        8,
        description="global batch size, over all replicas; auto: the largest that memory_limit, or the GPUs' memory, "
        "allows, determined by trial steps before training",
    )
    memory_limit: PositiveFloat | None = Field(
        None,
        description="for batch_size = auto: memory for training in GB (10^9 bytes), of each GPU or, on CPUs, of the "
        "process; none: TensorFlow's limit on the GPU; required on CPUs",
    )
    accumulate_steps: PositiveInt = Field(
        1,
        description="batches per step, whose gradients are summed for one update, as for one batch of batch_size * "
        "accumulate_steps images except batch norm, and class, box and mask losses of Faster and Mask R-CNN (see "
        "update_rules.md); learning rates scale with that number",
    )
    seed: NonNegativeInt = Field(
        0, description="seed of random weights, order of images, augmentation and drop-connect"
    )
    checkpoint_every: PositiveInt = Field(500, description="steps between checkpoints")
    checkpoint_every_epochs: PositiveFloat | None = Field(
        None, description="epochs between checkpoints, instead of checkpoint_every"
    )
    keep_checkpoints: PositiveInt = Field(3, description="number of newest checkpoints to keep")
    keep_checkpoint_every_n_hours: PositiveFloat | None = Field(
        None, description="also keep one older checkpoint per this many hours; none: keep no older ones"
    )
    log_every: PositiveInt = Field(
        20, description="steps between progress updates and TensorBoard scalars; scalars are means over these steps"
    )
    steps_per_loop: PositiveInt = Field(
        1,
        description="steps per call of the compiled function, 20 and more for GPUs, 100 and more for TPUs; a call "
        "logs every log point in it, and ends early if a checkpoint, evaluation, picture, histogram or profile is due",
    )
    precision: Literal["float32", "mixed_bfloat16", "bfloat16", "mixed_float16"] = Field(
        "float32", description="precision of computations; variables and losses are float32"
    )
    loss_scale: Literal["dynamic"] | PositiveFloat | None = Field(
        None,
        description="for mixed_float16: a fixed loss scale, or dynamic: steps whose gradients overflow are skipped, "
        "counted and halve the scale; none: dynamic",
    )
    loss_scale_initial: PositiveFloat = Field(2.0**15, description="initial dynamic loss scale")
    loss_scale_growth_steps: PositiveInt = Field(
        2000, description="number of steps without overflow after which the dynamic loss scale doubles"
    )
    strategy: Literal["auto", "one_device", "mirrored", "multi_worker", "tpu"] = Field(
        "auto",
        description="one_device; mirrored: all GPUs of this machine; multi_worker: the machines in TF_CONFIG or "
        "CLUSTER_SPEC; tpu; auto: the first available of TPU, several machines, several GPUs, one device",
    )
    tpu: str | None = Field(
        None,
        min_length=1,
        description="`local`, the name of a TPU in this machine's project and zone, "
        "projects/PROJECT/locations/ZONE/nodes/NAME, or a grpc:// address; none: TPU_NAME, else local",
    )
    sync_batch_norm: bool = Field(
        True,
        description="with several replicas, compute batch-norm statistics over the global batch; false: over each "
        "replica's images",
    )
    run_eagerly: bool = Field(False, description="run Python line by line without compilation, for debugging")
    jit_compile: bool | Literal["auto"] = Field("auto", description="compile with XLA; auto: except on CPUs")
    deterministic: bool | Literal["auto"] = Field(
        "auto", description="runs with equal seeds give bit-identical results; auto: on one CPU replica without XLA"
    )
    trainable: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see pattern_match: only variables whose path matches one are trainable; "
        "empty: all; the OD API's update_trainable_variables",
    )
    freeze: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see pattern_match: variables whose path matches one are frozen, batch-norm "
        "statistics included",
    )
    pattern_match: PatternMatch = Field(
        "start",
        description="for trainable, freeze, optimizer.weight_decay_exclude, optimizer.lars_exclude and init.skip: "
        "start: an expression has to match from the start of a variable's path, as in google/automl; anywhere: it may "
        "match any part, as in the OD API; the log reports the number of variables per expression",
    )
    freeze_batch_norm: Literal["none", "statistics", "all"] = Field(
        "none",
        description="for every batch norm, frozen or not: statistics: the statistics are frozen, scale and offset "
        "train, as in TPU Mask R-CNN; all: scale and offset are frozen, too",
    )
    init: InitConfig = InitConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    ema: EmaConfig = EmaConfig()
    clip: ClipConfig = ClipConfig()
    crowds: Literal["drop", "ignore"] = Field(
        "drop", description="drop: crowd regions are background; ignore: they are neither objects nor background"
    )
    sampling: SamplingConfig = SamplingConfig()
    class_weights: ClassWeights | None = Field(
        None,
        description="factor of the loss of each object, by the name of its category, 1 for others; or derived from the "
        "training records: inverse_frequency: each class has the same total weight; "
        "inverse_sqrt_frequency: the square roots of these factors; both scaled to a mean of 1 over all objects",
    )
    object_weights: bool = Field(
        False,
        description="multiply the loss of each object by the field `weight` of its annotation (records: "
        "`image/object/weight`), 1 if absent",
    )
    augment: AugmentConfig = AugmentConfig()
    validation: ValidationConfig = ValidationConfig()
    nonfinite: NonFiniteConfig = NonFiniteConfig()
    summaries: SummariesConfig = SummariesConfig()
    profile: ProfileConfig = ProfileConfig()

    @property
    def fixed_batch_size(self) -> int:
        """The global batch size of a resolved configuration; see `detection.training.resolve`."""
        assert self.batch_size != "auto"
        return self.batch_size

    @property
    def fixed_steps(self) -> int:
        """The number of steps of a resolved configuration; see `detection.training.resolve`."""
        assert self.steps != "auto"
        return self.steps

    @property
    def effective_batch_size(self) -> int:
        """Images per step, over all replicas and accumulated batches."""
        return self.fixed_batch_size * self.accumulate_steps

    @property
    def has_epochs(self) -> bool:
        """True if the length of the run or of its schedule depends on the number of images."""
        return self.steps == "auto" or self.epochs is not None or self.schedule.has_epochs

    @property
    def schedule_steps(self) -> int:
        """Steps of the schedule, which may differ from those of the run."""
        return self.schedule.total_steps or self.fixed_steps

    @property
    def warmup_steps(self) -> int:
        """Steps of warm-up, specified or derived."""
        specified = self.schedule.warmup_steps
        return self.schedule_steps // 10 if specified is None else specified

    @property
    def decay_start(self) -> int | None:
        """Step after which the learning rate decays from the peak that it has held; None: it holds none."""
        hold_steps = self.schedule.fixed_hold_steps
        return self.warmup_steps + hold_steps if hold_steps else None

    def _check_keys(self) -> None:
        if self.tpu is not None and self.strategy not in ("auto", "tpu"):
            raise ValueError(f"tpu = {self.tpu!r} and strategy = {self.strategy} are exclusive; remove one")
        if self.strategy == "one_device" and not self.sync_batch_norm:
            raise ValueError("sync_batch_norm = false requires several replicas, but strategy = one_device has one")
        if self.jit_compile is True and self.deterministic is True:
            raise ValueError(
                "jit_compile and deterministic are exclusive: XLA has no deterministic max-pooling; remove one"
            )
        if self.run_eagerly and self.jit_compile is True:
            raise ValueError(
                "run_eagerly and jit_compile are exclusive: XLA cannot compile eager execution; remove one"
            )
        self.refuse(("steps_per_loop",), "with run_eagerly, where no loop is compiled", when=self.run_eagerly)
        if self.batch_size != "auto":
            self.refuse(("memory_limit",), f"beside batch_size = {self.batch_size}; set batch_size to auto")
        patterns = (
            self.trainable,
            self.freeze,
            self.optimizer.weight_decay_exclude,
            self.optimizer.lars_exclude,
            self.optimizer.regularizers,
            self.optimizer.learning_rate_factors,
            self.init.skip,
        )
        if not any(patterns):
            self.refuse(("pattern_match",), "without trainable, freeze, expressions of optimizer or init.skip")
        self._check_lengths()
        self._check_scales()

    def _check_lengths(self) -> None:
        self.refuse(("steps",), "beside epochs; remove one of them", when=self.epochs is not None)
        self.refuse(
            ("budget",), "beside steps or epochs; remove it", when=self.steps != "auto" or self.epochs is not None
        )
        if self.checkpoint_every_epochs is not None:
            self.refuse(("checkpoint_every",), "beside checkpoint_every_epochs; remove one of them")
        start = self.profile.start_step
        if start is not None and self.steps != "auto" and start + self.profile.steps > self.steps:
            raise ValueError(
                f"profile.start_step = {start} and profile.steps = {self.profile.steps} end after steps = {self.steps}"
            )
        if self.has_epochs:
            self.schedule.require_fit_in_epochs(self.epochs)
        else:
            self.schedule.require_fit(steps=self.fixed_steps, warmup_steps=self.warmup_steps)

    def _check_scales(self) -> None:
        """Checks the learning rate and the loss scale."""
        if self.schedule.learning_rate is None and self.optimizer.name not in ("adam", "adamw"):
            raise ValueError(
                f"optimizer.name = {self.optimizer.name} has no default for schedule.learning_rate; set it, such as "
                "0.08 with schedule.reference_batch_size = 64 for sgd, google/automl's"
            )
        dynamic_keys = ("loss_scale_initial", "loss_scale_growth_steps")
        if self.precision != "mixed_float16":
            self.refuse(("loss_scale", *dynamic_keys), f"under precision = {self.precision}")
        if isinstance(self.loss_scale, float):
            self.refuse(dynamic_keys, f"beside a fixed loss_scale = {self.loss_scale}")


# Keys of `train` without effect on the trained weights: after a change of these, a killed training
# resumes, and a finished one is reused.
WITHOUT_EFFECT = frozenset(
    {
        "checkpoint_every",
        "checkpoint_every_epochs",
        "keep_checkpoints",
        "keep_checkpoint_every_n_hours",
        "log_every",
        "profile",
        "summaries",
    }
)

LENGTHS = ("steps", "epochs", "budget")  # keys of which one is set
# Keys in epochs -> the equivalent keys in steps.
STEPS_OF_EPOCHS = {
    "epochs": "steps",
    "checkpoint_every_epochs": "checkpoint_every",
    **{f"schedule.{epochs}": f"schedule.{steps}" for steps, epochs in UNITS},
    "validation.every_epochs": "validation.every",
}
