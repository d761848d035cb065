"""Trains a detector: configuration and records in, checkpoints and a SavedModel out."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.models.detector import Detector
from detection.models.registry import detector_from_config
from detection.storage.atomic import write_json, write_text
from detection.storage.file_system import WorkingFolder
from detection.training.auto.data_facts import log_data_facts, require_trainable, summaries_of
from detection.training.auto.kept_images import Records, training_records
from detection.training.auto.weights_choice import with_weights
from detection.training.before_decay import go_back_before_decay, keep_before_decay
from detection.training.build_balance import ClassBalance, balance_from_config
from detection.training.build_input import batches_from_config, input_options_from_config
from detection.training.build_run import (
    MIN_COMPARED_STEPS,
    callbacks_from_config,
    check_inference_losses,
    export_checkpoint,
    validation_from_config,
)
from detection.training.build_step import (
    compiles,
    initialize_from_config,
    is_deterministic,
    state_from_config,
    train_loop_from_config,
    without_xla,
)
from detection.training.checkpoints.files import checkpoint_path
from detection.training.checkpoints.manager import Checkpoints
from detection.training.distributed.strategy import is_chief, make_strategy, on_cpu, op_determinism
from detection.training.distributed.workers import (
    chief_first,
    explain_lost_workers,
    require_same_start,
    wait_for_workers,
)
from detection.training.engine.loop import TrainLoop
from detection.training.engine.state import TrainState
from detection.training.initialization.initialize import InitReport
from detection.training.memory import explain_out_of_memory, find_batch_size
from detection.training.monitoring.callbacks import Callbacks
from detection.training.resolve import fixed_image_size, resolved, saved_config
from detection.training.resume_check import compare_settings, require_same_data, write_described
from detection.training.validation.validation import Validation
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, INIT_REPORT_JSON, LABELS_JSON, LOGS
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.config.train.training import TrainConfig
from schemas.progress import log_phase

_INITIAL_SHARE = 0.05  # of initial weights in the final EMA weights: more of them would show in the AP
_LOGGER = logging.getLogger("cocoflow.trainer")


@dataclass(frozen=True)
class _Run:
    """The arguments of `train` beside the config; `categories` by ascending id."""

    shards: Sequence[str]
    categories: Sequence[Mapping[str, Any]]
    output: Path
    validation_shards: Sequence[str]
    curve_shards: Callable[[], Sequence[str]]
    datasets: Sequence[Mapping[str, Any]]
    base_model: str | Path | None
    strategy: tf.distribute.Strategy
    detector: Detector | None
    mirror: WorkingFolder | None

    @property
    def chief(self) -> bool:
        """This process writes the run's files."""
        return is_chief(self.strategy)

    def summary_writer(self) -> tf.summary.SummaryWriter:
        """Returns the writer of the run's event files; without effect on other processes than the chief."""
        return tf.summary.create_file_writer(str(self.output / LOGS)) if self.chief else tf.summary.create_noop_writer()


def train(
    config: Config,
    *,
    shards: Sequence[str],
    categories: Sequence[Mapping[str, Any]],
    output: Path,
    validation_shards: Sequence[str] = (),
    curve_shards: Callable[[], Sequence[str]] = tuple,
    datasets: Sequence[Mapping[str, Any]] = (),
    base_model: str | Path | None = None,
    strategy: tf.distribute.Strategy | None = None,
    detector: Detector | None = None,
    mirror: WorkingFolder | None = None,
) -> None:
    """Trains a detector; resumes from the newest checkpoint in `output` if there is one.

    If XLA cannot compile something, the training continues without it.

    Args:
        config: configuration of the run; uses the sections `model` and `train`, and is saved with the model.
        shards: TFRecord files of the training records.
        categories: the data set's COCO categories (`id`, `name`).
        output: local folder for checkpoints/, logs/, saved_model/, config.yaml and categories.json; also
            validation/ with `train.validation`, init_report.json with pretrained weights, and performance.json.
        validation_shards: TFRecord files of `Config.validation_split`.
        curve_shards: as for `training_records`.
        datasets: contents of the dataset.json of each Examples artifact; the chief logs facts about them.
        base_model: local or remote SavedModel to start from, instead of `train.init.checkpoint`.
        strategy: result of `make_strategy`, if TensorFlow was used before; None: created here.
        detector: existing detector of the run for validation and export; None: built here.
        mirror: mirrors `output` to remote storage: the chief pushes after every checkpoint and
            evaluation, the other machines pull the chief's files.  The caller pushes the model.

    Raises:
        DataError: the records, a checkpoint, pretrained weights or the output folder cannot be used.
        ConfigError: invalid configuration, such as an unknown detector or an unavailable strategy.
        CocoflowError: a loss or gradient became NaN or infinite, or the memory is too small.
    """
    if strategy is None:
        strategy = make_strategy(config.train.strategy, tpu=config.train.tpu)
    ordered = sorted(categories, key=lambda category: category["id"])
    given = validation_shards, curve_shards, datasets, base_model, strategy, detector, mirror
    run = _Run(shards, ordered, output, *given)
    try:
        _train(config, run)
        return
    except tf.errors.OpError as error:
        if (slower := without_xla(config, strategy, error)) is None:
            raise
    # Outside of the block, where the error no longer holds the memory of the first attempt.
    _train(slower, run)


def _train(config: Config, run: _Run) -> None:
    require_trainable(run.datasets, config)
    if run.chief:
        require_same_data(run.output, run.shards, run.categories)
    config, records = training_records(
        config, shards=run.shards, validation_shards=run.validation_shards, curve_shards=run.curve_shards
    )
    balance = balance_from_config(config.train, records.training, run.categories)
    if run.chief:
        log_data_facts(run.datasets, config, kept=None if config.validation_split else records.validation)
    checked = config.model
    config = fixed_image_size(config, summaries_of(run.datasets), output=run.output)
    config = with_weights(config, output=run.output, base_model=run.base_model, strategy=run.strategy)
    if config.model != checked:
        run = replace(run, detector=None)  # it has another size, or its backbone is frozen
    images = len(records.training)
    config = resolved(
        config,
        records=balance.epoch_size,
        output=run.output,
        find_batch_size=lambda: find_batch_size(
            config, shards=run.shards, images=images, categories=run.categories, strategy=run.strategy
        ),
    )
    if run.chief:
        before = saved_config(run.output)
        go_back_before_decay(run.output, None if before is None else before.train, config.train)
        compare_settings(run.output, config)
    log_precision(config.train, run.strategy)
    log_pace(config.train)
    # Validation and export share one detector, built on first use.
    detector = functools.cache(
        lambda: run.detector or detector_from_config(config.model, run.categories, precision=config.train.precision)
    )
    with op_determinism(needed=is_deterministic(config.train, run.strategy)), explain_lost_workers(run.strategy):
        last_step = _train_to_last_step(config, run, records, balance, detector)
        if run.chief:
            log_phase(_LOGGER, "exporting the model")
            export_checkpoint(config, step=last_step, categories=run.categories, detector=detector(), output=run.output)
        wait_for_workers(run.strategy)


def log_precision(train_config: TrainConfig, strategy: tf.distribute.Strategy) -> None:
    """Logs precision and XLA; warns about float16 on CPUs, which emulate it."""
    _LOGGER.info("precision %s, XLA %s", train_config.precision, "on" if compiles(train_config, strategy) else "off")
    if train_config.precision == "mixed_float16" and on_cpu(strategy):
        _LOGGER.warning(
            "train.precision = mixed_float16 on a CPU takes about ten times as long as float32; set it to float32 or "
            "mixed_bfloat16"
        )


def log_pace(train_config: TrainConfig) -> None:
    """Warns about a warm-up and EMA weights for longer runs: recipes count steps, and small sets have few."""
    steps, warmup, ema = train_config.steps, train_config.schedule.warmup_steps or 0, train_config.ema
    assert steps != "auto"
    if warmup > steps / 10:
        _LOGGER.warning(
            "train.schedule.warmup_steps = %d is more than a tenth of the %d steps: remove the key for a tenth",
            warmup,
            steps,
        )
    left = ema.decay**steps
    if ema.enabled and not ema.dynamic and left > _INITIAL_SHARE:
        _LOGGER.warning(
            "train.ema.decay = %g is for longer runs: after %d steps, %.0f %% of the EMA weights are still the initial "
            "ones. Set train.ema.dynamic, or a lower decay",
            ema.decay,
            steps,
            100 * left,
        )


def _train_to_last_step(
    config: Config, run: _Run, records: Records, balance: ClassBalance, detector: Callable[[], Detector]
) -> int:
    """Builds the run from its resolved config and trains it; returns the last step, which may be an early stop."""
    categories, strategy, reader = run.categories, run.strategy, records.training
    log_phase(_LOGGER, "building the network")
    state = state_from_config(config, categories, strategy=strategy)
    validation = validation_from_config(
        config,
        records.validation,
        categories=categories,
        detector=detector,
        output=run.output,
        strategy=strategy,
        state=state,
    )
    with run.summary_writer().as_default():
        checkpoints = _checkpoints_from_config(config.train, state, run.output / CHECKPOINTS, writes=run.chief)
        start_step = _resume(checkpoints, strategy=strategy, mirror=run.mirror)
        init_report = initialize_from_config(
            config, state, categories, strategy=strategy, start_step=start_step, base_model=run.base_model
        )
        texts = [to_yaml(config, sections=("model", "train")), str(categories)]
        require_same_start(strategy, state, start_step=start_step, records=len(reader), texts=texts)
        if run.chief:
            # After the checkpoints: a configuration that does not fit them must not replace theirs.
            write_described(run.output, run.shards)
            _write_descriptions(run.output, config, categories, init_report)
        options = input_options_from_config(config, state.model, categories, class_weights=balance.class_weights)
        factors = balance.repeat_factors
        shown = {"variables": state.model.variables, "output": run.output, "writes": run.chief}
        with callbacks_from_config(
            config.train, reader, options, categories, repeat_factors=factors, **shown
        ) as callbacks:
            batches = batches_from_config(
                config.train, reader, options, repeat_factors=factors, strategy=strategy, start_step=start_step
            )
            last_step = _run_steps(
                config.train,
                batches,
                train_loop_from_config(config.train, state, strategy=strategy),
                step=start_step,
                callbacks=callbacks,
                checkpoints=checkpoints,
                validation=validation,
                after_save=functools.partial(_after_save, config.train, run),
            )
        if run.chief and last_step >= MIN_COMPARED_STEPS:
            log_phase(_LOGGER, "comparing losses in training and in inference")
            check_inference_losses(
                config,
                reader,
                options,
                repeat_factors=factors,
                replicas=strategy.num_replicas_in_sync,
                state=state,
                detector=detector(),
                path=checkpoint_path(run.output / CHECKPOINTS, last_step),
            )
    return last_step


def _checkpoints_from_config(
    train_config: TrainConfig, state: TrainState, folder: Path, *, writes: bool
) -> Checkpoints:
    """Builds the run's checkpoints: all machines read, only the chief writes."""
    return Checkpoints(
        state,
        folder,
        keep=train_config.keep_checkpoints,
        keep_every_hours=train_config.keep_checkpoint_every_n_hours,
        writes=writes,
    )


def _resume(checkpoints: Checkpoints, *, strategy: tf.distribute.Strategy, mirror: WorkingFolder | None) -> int:
    """Restores the newest checkpoint on all machines, first on the chief; returns its step, 0 without a checkpoint."""
    chief = is_chief(strategy)
    with chief_first(strategy):
        if mirror is not None and not chief:
            mirror.pull()
        step = checkpoints.restore_latest()
        if mirror is not None and chief:
            mirror.push()
    return step


def _after_save(train_config: TrainConfig, run: _Run, step: int) -> None:
    if run.chief and step == train_config.decay_start:
        keep_before_decay(run.output, step)
    if run.chief and run.mirror is not None:
        run.mirror.push()


def _write_descriptions(
    output: Path, config: Config, categories: Sequence[Mapping[str, Any]], init_report: InitReport | None
) -> None:
    """Writes the files that describe the run."""
    write_text(output / CONFIG_YAML, to_yaml(config))
    write_json(output / LABELS_JSON, categories)
    if init_report is not None:
        write_json(output / INIT_REPORT_JSON, init_report.as_json())


def _run_steps(
    train_config: TrainConfig,
    batches: tf.data.Iterator,
    train_loop: TrainLoop,
    *,
    step: int,
    callbacks: Callbacks,
    checkpoints: Checkpoints,
    validation: Validation,
    after_save: Callable[[int], None],
) -> int:
    """Trains from `step` on; returns the last step."""
    callbacks.begin(step)
    log_phase(_LOGGER, "first steps of the training")
    ends = validation.resume(step)
    while step < train_config.fixed_steps and not ends:
        # The loss of the first step alone shows later whether the training diverged.
        stop = min(next_stop(step, train_config), validation.next_step(step)) if step else 1
        with explain_out_of_memory(train_config):
            for done, report in train_loop.windows(batches, start=step, stop=stop, every=train_config.log_every):
                callbacks.after_window(report, done)
        step = stop
        decays = step == train_config.decay_start
        if decays or step == train_config.steps or step % train_config.checkpoint_every == 0 or validation.is_due(step):
            checkpoints.save(step)
            after_save(step)
        ends = validation.after(step)
        if validation.is_due(step):
            after_save(step)
    callbacks.end(step)
    return step


def next_stop(step: int, train_config: TrainConfig) -> int:
    """Returns the end of the next call of the compiled loop after `step` steps; the same on all workers.

    A call ends at every event between two calls: a picture, a histogram, a checkpoint, the start of the decay, an edge
    of the profile, the end.  Log points do not end a call: see `TrainLoop.windows`.
    """
    summaries = train_config.summaries
    histograms = summaries.gradient_histograms_every, summaries.variable_histograms_every
    every = (train_config.checkpoint_every, summaries.images_every, *histograms)
    stops = [(step // number + 1) * number for number in every if number]
    edges = [edge for edge in (*train_config.profile.edges, train_config.decay_start or 0) if edge > step]
    return min(step + train_config.steps_per_loop, train_config.fixed_steps, *stops, *edges)
