"""The whole training story: configuration and records in, checkpoints and a SavedModel out."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.input_pipeline.record_reader import RecordReader
from detection.storage.atomic import write_json, write_text
from detection.training.build import (
    batches_from_config,
    initialize_from_config,
    is_deterministic,
    state_from_config,
    train_loop_from_config,
)
from detection.training.build_watch import next_stop, watch_from_config
from detection.training.checkpoints.manager import Checkpoints
from detection.training.distributed.determinism import op_determinism
from detection.training.distributed.same_start import require_same_start
from detection.training.distributed.strategy import is_chief, make_strategy
from detection.training.distributed.workers import chief_first, chief_value, lost_workers_explained, wait_for_workers
from detection.training.engine.loop import TrainLoop
from detection.training.initialization.report import InitReport
from detection.training.monitoring.watch import Watch
from detection.training.validation.build import export_checkpoint, validation_from_config
from detection.training.validation.validation import Validation
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, INIT_REPORT_JSON, LABELS_JSON, LOGS, SAVED_MODEL
from schemas.config.config import Config
from schemas.config.config_io import sections_to_yaml, to_yaml
from schemas.config.training import TrainConfig


def train(
    config: Config,
    *,
    shards: Sequence[str],
    categories: Sequence[Mapping[str, Any]],
    output: Path,
    validation_shards: Sequence[str] = (),
    base_model: Path | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> None:
    """Trains a detector, going on from the newest checkpoint in `output` if there is one.

    Args:
        config: `model` and `train` say what to do; all of it is saved beside the model.
        shards: TFRecord files of the training records.
        categories: the data set's categories (`id`, `name`).
        output: receives checkpoints/, logs/, saved_model/, config.yaml, categories.json,
            with `train.validation` validation/, and where the first weights came from elsewhere, init_report.json.
        validation_shards: TFRecord files of the split that `train.validation` evaluates on.
        base_model: SavedModel to start from, which goes before `train.init.checkpoint`.
        strategy: that `make_strategy` made, where TensorFlow had work to do before; None: is made here.

    Raises:
        DataError: the records, a checkpoint, weights to start from or the output folder cannot be used.
        ConfigError: unknown detector, a strategy that is not there, and the like.
        CocoflowError: a loss or gradient became NaN or infinite.
    """
    reader = RecordReader(shards)
    categories = sorted(categories, key=lambda category: category["id"])
    if strategy is None:
        strategy = make_strategy(config.train.strategy, tpu=config.train.tpu)
    with contextlib.ExitStack() as stack:
        stack.enter_context(op_determinism(needed=is_deterministic(config.train, strategy)))
        state = state_from_config(config, num_classes=len(categories), strategy=strategy)
        chief = is_chief(strategy)
        validation = validation_from_config(
            config,
            shards=validation_shards,
            categories=categories,
            training_records=len(reader),
            output=output,
            chief=chief,
            agree=lambda flag: bool(chief_value(strategy, int(flag))),
        )
        stack.enter_context(lost_workers_explained(strategy))
        stack.enter_context(_summary_writer(output / LOGS, writes=chief).as_default())
        # All machines read the output folder, the chief alone writes there.
        checkpoints = Checkpoints(
            state,
            output / CHECKPOINTS,
            keep=config.train.keep_checkpoints,
            keep_every_hours=config.train.keep_checkpoint_every_n_hours,
            writes=chief,
        )
        with chief_first(strategy):
            start_step = checkpoints.restore_latest()
        init_report = initialize_from_config(
            config, state, categories, strategy=strategy, start_step=start_step, base_model=base_model
        )
        words = [sections_to_yaml(config, ["model", "train"]), str(categories)]
        require_same_start(strategy, state, start_step=start_step, records=len(reader), words=words)
        if chief:
            # Only now: a configuration that the checkpoints refuse must not replace theirs.
            _write_facts(output, config, categories, init_report)
        last_step = _run_steps(
            config.train,
            batches_from_config(config, state.model, reader, categories, strategy=strategy, start_step=start_step),
            train_loop_from_config(config.train, state, strategy=strategy),
            step=start_step,
            watch=watch_from_config(config, state.model, reader, categories, output=output, stack=stack, writes=chief),
            checkpoints=checkpoints,
            validation=validation,
        )
        if chief:
            export_checkpoint(config, step=last_step, categories=categories, output=output, goal=output / SAVED_MODEL)
        wait_for_workers(strategy)


def _summary_writer(logs: Path, *, writes: bool) -> tf.summary.SummaryWriter:
    return tf.summary.create_file_writer(str(logs)) if writes else tf.summary.create_noop_writer()


def _write_facts(
    output: Path, config: Config, categories: Sequence[Mapping[str, Any]], init_report: InitReport | None
) -> None:
    """What somebody who finds the folder needs to know."""
    write_text(output / CONFIG_YAML, to_yaml(config))
    write_json(output / LABELS_JSON, categories)
    if init_report is not None:
        write_json(output / INIT_REPORT_JSON, init_report.as_json())


def _run_steps(
    settings: TrainConfig,
    batches: tf.data.Iterator,
    train_loop: TrainLoop,
    *,
    step: int,
    watch: Watch,
    checkpoints: Checkpoints,
    validation: Validation,
) -> int:
    """Trains from `step` on; returns the step that it came to."""
    watch.begin(step)
    ends = validation.resume(step)
    while step < settings.steps and not ends:
        stop = min(next_stop(step, settings), validation.next_step(step))
        for done, report in train_loop.windows(batches, start=step, stop=stop, every=settings.log_every):
            watch.see(report, done)
        step = stop
        if step == settings.steps or step % settings.checkpoint_every == 0 or validation.is_due(step):
            checkpoints.save(step)
        ends = validation.after(step)
    watch.end(step)
    return step
