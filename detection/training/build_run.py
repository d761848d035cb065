"""Builds the callbacks, the validation and the exported model of a training run from the config."""

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.export.saved_model_export import export_saved_model
from detection.inference.mean_losses import MeanLosses
from detection.inference.restore import ChosenOn, ExportedFrom
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import InputOptions
from detection.models.detector import Detector, variables_by_path
from detection.models.registry import detector_from_config
from detection.storage.atomic import new_directory, write_json
from detection.storage.files import is_file
from detection.storage.json_files import read_json
from detection.training.build_step import changing_variables, l2_from_config, schedule_from_config
from detection.training.checkpoints.files import checkpoint_path, step_of
from detection.training.checkpoints.manager import load_weights
from detection.training.distributed.strategy import is_chief, worker_count, worker_index
from detection.training.distributed.workers import chief_value, gather_bytes
from detection.training.engine.state import TrainState
from detection.training.monitoring.callbacks import Callbacks, ProfilerWindow, TrainingPictures
from detection.training.monitoring.nonfinite import NonFiniteSteps
from detection.training.monitoring.progress import LOGGER, Window
from detection.training.monitoring.step_batches import StepBatches
from detection.training.validation.checkpoint_evaluator import CheckpointEvaluator, DetectorEvaluator
from detection.training.validation.history import BestCheckpoint
from detection.training.validation.inference_gap import explain_gap, mode_losses
from detection.training.validation.split import ALONE, Share, ValidationSplit
from detection.training.validation.validation import Validation
from schemas.artifacts import (
    BEST,
    CHECKPOINTS,
    EXTRA_FILES,
    INIT_REPORT_JSON,
    LOGS,
    PERFORMANCE_JSON,
    SAVED_MODEL,
    TRAIN_SPLIT,
    VALIDATION,
    WEIGHTS_JSON,
)
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.config.section import value_at
from schemas.config.train.training import TrainConfig

# For `check_inference_losses`: tries of fewer steps learn nothing, and it takes as long as they.
MIN_COMPARED_STEPS = 100
LOSS_BATCHES = 2  # batches of training images for `check_inference_losses`


@contextlib.contextmanager
def callbacks_from_config(
    train_config: TrainConfig,
    reader: RecordReader,
    options: InputOptions,
    categories: Sequence[Mapping[str, Any]],
    *,
    repeat_factors: npt.NDArray[np.float64] | None,
    variables: Sequence[keras.Variable],
    output: Path,
    writes: bool,
) -> Iterator[Callbacks]:
    """Yields the training callbacks; on exit, writes a profile that is still being recorded.

    Args:
        train_config: the run's configuration.
        reader: reader of the training records.
        options: options of the training input.
        categories: COCO categories, in the order of the network's classes.
        repeat_factors: float64 [N], expected repeats of each record per epoch; None: each record once.
        variables: the model's variables.
        output: output folder of the run.
        writes: this process writes pictures and profiles.
    """
    summaries = train_config.summaries
    batches = StepBatches(
        reader,
        options,
        seed=train_config.seed,
        batch_size=train_config.effective_batch_size,
        repeat_factors=repeat_factors,
    )
    pictures, profiler = None, None
    if writes and summaries.images_every:
        pictures = TrainingPictures(batches, categories, every=summaries.images_every, count=summaries.images)
    if writes and train_config.profile.edges:
        start, stop = train_config.profile.edges
        profiler = ProfilerWindow(start_step=start, stop_step=stop, logs=output / LOGS)
    with profiler or contextlib.nullcontext():
        yield Callbacks(
            total_steps=train_config.fixed_steps,
            log_every=train_config.log_every,
            histograms_every=summaries.gradient_histograms_every,
            variables_every=summaries.variable_histograms_every if writes else 0,
            variables=variables,
            window=Window(batch_size=train_config.effective_batch_size),
            nonfinite=NonFiniteSteps(batches, categories, output, writes=writes),
            pictures=pictures,
            profiler=profiler,
            performance=output / PERFORMANCE_JSON if writes else None,
        )


def validation_from_config(
    config: Config,
    reader: RecordReader | None,
    *,
    categories: Sequence[Mapping[str, Any]],
    detector: Callable[[], Detector],
    output: Path,
    strategy: tf.distribute.Strategy,
    state: TrainState,
) -> Validation:
    """Builds the validation of a training run; it does nothing if `train.validation` is off.

    Args:
        config: configuration of the run; uses `train.validation`, and `batch_size`, `losses` and `analysis` of
            `evaluate`.
        reader: reader of the records to evaluate on; None: `train.validation` is off.
        categories: COCO categories, in the order of the detector's classes.
        detector: builds the detector that checkpoints are loaded into, outside of any strategy.
        output: output folder of the run.
        strategy: the run's strategy; all its processes and devices share the images.
        state: the run's state; processes other than the chief evaluate its weights.

    Raises:
        DataError: the metric cannot be measured on the split, or a record cannot be evaluated.
    """
    validation_config = config.train.validation
    evaluator: CheckpointEvaluator | None = None
    help_evaluate: Callable[[str], object] = str
    if reader is not None:
        build = functools.partial(
            detector_evaluator_from_config,
            config,
            reader,
            categories=categories,
            detector=detector(),
            copies=detector_copies(config, categories, strategy=strategy),
            share=Share(worker_index(strategy), worker_count(strategy), functools.partial(gather_bytes, strategy)),
        )
        if is_chief(strategy):
            folder, logs = output / VALIDATION, output / LOGS / VALIDATION
            evaluator = checkpoint_evaluator_from_config(config, build(), folder=folder, logs=logs)
        else:  # the chief's checkpoints may not be on this machine
            help_evaluate = build(load=lambda path: _copy_weights(state, config, detector()))
    return Validation(
        evaluator,
        help_evaluate=help_evaluate,
        checkpoints=output / CHECKPOINTS,
        every=validation_config.fixed_every,
        last_step=config.train.fixed_steps,
        metric=config.validation_metric,
        patience=validation_config.patience,
        min_delta=validation_config.min_delta,
        agree=lambda flag: bool(chief_value(strategy, int(flag))),
    )


def checkpoint_evaluator_from_config(
    config: Config, evaluate: DetectorEvaluator, *, folder: Path, logs: Path
) -> CheckpointEvaluator:
    """Builds the `CheckpointEvaluator` of a run."""
    chosen_on = ChosenOn(config.validation_split or TRAIN_SPLIT, evaluate.num_images, config.validation_metric)
    schedule = schedule_from_config(config.train)
    return CheckpointEvaluator(
        evaluate,
        folder=folder,
        logs=logs,
        chosen_on=chosen_on,
        learning_rate=lambda step: float(schedule(tf.constant(max(step - 1, 0)))),
    )


def detector_evaluator_from_config(
    config: Config,
    reader: RecordReader,
    *,
    categories: Sequence[Mapping[str, Any]],
    detector: Detector,
    copies: Sequence[Detector] = (),
    share: Share = ALONE,
    load: Callable[[str], None] | None = None,
) -> DetectorEvaluator:
    """Builds the evaluator that computes a checkpoint's metrics and losses.

    Args:
        config: the run's configuration.
        reader: reader of the records to evaluate on.
        categories: the run's COCO categories, in the order of the detector's classes.
        detector: detector of the configuration.
        copies: copies of the detector on the other devices of this process.
        share: this process's share of the images.
        load: sets the detector's weights, given the path of a checkpoint; None: load the checkpoint.

    Raises:
        DataError: the metric cannot be computed on the split, or a record cannot be evaluated.
    """
    batch_size = config.evaluate.batch_size
    split = ValidationSplit(
        reader,
        categories=categories,
        batch_size=batch_size,
        max_images=config.train.validation.max_images,
        iou_types=config.validation_iou_types,
        given=detector.iou_types,
        metrics=config.evaluate.metrics,
        use_cats=config.evaluate.use_cats,
        oks_sigmas=config.evaluate.oks_sigmas,
        share=share,
    )
    split.require_defined(config.validation_metric)
    losses = None
    if config.evaluate.losses:
        trainable = changing_variables(config.train, detector).trainable
        losses = MeanLosses(
            detector,
            categories,
            regularization=l2_from_config(config.train, trainable),
            batch_size=batch_size,
            max_instances=config.model.max_instances,
            with_crowds=config.train.crowds == "ignore",
            copies=copies,
        )
    return DetectorEvaluator(
        detector,
        split,
        categories=categories,
        batch_size=batch_size,
        weights=config.train.ema.exported_weights,
        losses=losses,
        options=config.evaluate.analysis,
        copies=copies,
        load=load,
    )


def _copy_weights(state: TrainState, config: Config, detector: Detector) -> None:
    """Copies the exported weights (EMA or raw) of the state to a detector, like `load_weights` from a checkpoint."""
    weights = variables_by_path(state.model.variables)
    if state.ema is not None and config.train.ema.exported_weights == "ema":
        weights |= state.ema.weights
    for path, variable in variables_by_path(detector.variables).items():
        variable.assign(weights[path].numpy())


def detector_copies(
    config: Config, categories: Sequence[Mapping[str, Any]], *, strategy: tf.distribute.Strategy
) -> list[Detector]:
    """Builds a detector on each device of this process except the first; none for TPUs."""
    copies: list[Detector] = []
    if isinstance(strategy, tf.distribute.TPUStrategy):  # images are decoded, and RLEs encoded, on the host
        return copies
    for device in strategy.extended.worker_devices[1:]:
        with tf.device(device):
            copies.append(detector_from_config(config.model, categories, precision=config.train.precision))
    return copies


def check_inference_losses(
    config: Config,
    reader: RecordReader,
    options: InputOptions,
    *,
    repeat_factors: npt.NDArray[np.float64] | None,
    replicas: int,
    state: TrainState,
    detector: Detector,
    path: str,
) -> None:
    """Logs a warning, with the cause, if the trained model has much higher losses in inference than in training.

    Computes the losses of the last checkpoint in training and inference mode on LOSS_BATCHES batches of training
    images, with the batch size of a replica, and writes them to TensorBoard, under `final_loss`.

    Args:
        config: the run's configuration.
        reader: reader of the training records.
        options: options of the training input.
        repeat_factors: float64 [N], expected repeats of each record per epoch; None: each record once.
        replicas: number of replicas of the run.
        state: the run's last state; not changed.
        detector: detector of the run; its weights are replaced.
        path: the run's last checkpoint.

    Raises:
        DataError: the checkpoint cannot be read.
    """
    train_config = config.train
    batch_size = train_config.effective_batch_size // (replicas * train_config.accumulate_steps)
    batches = StepBatches(reader, options, seed=train_config.seed, batch_size=batch_size, repeat_factors=repeat_factors)
    step = step_of(path)
    losses = mode_losses(
        detector, path, batches.batches(step, step + LOSS_BATCHES), trained=state.model, ema=state.ema is not None
    )
    for mode, loss in losses._asdict().items():
        if loss is not None:
            tf.summary.scalar(f"final_loss/{mode}", loss, step=step)
    explanation = explain_gap(losses, momentum=value_at(detector.config, "batch_norm.momentum"))
    if explanation is not None:
        LOGGER.warning("%s", explanation)


def export_checkpoint(
    config: Config, *, step: int, categories: Sequence[Mapping[str, Any]], detector: Detector, output: Path
) -> None:
    """Writes the SavedModel of the run's best checkpoint or of its last, depending on `train.validation.export`.

    Args:
        config: the run's configuration, which is saved with the model.
        step: step of the run's last checkpoint.
        categories: COCO categories, in the order of the detector's classes.
        detector: detector of the run; its weights are replaced.
        output: output folder of the run; an existing SavedModel is replaced.

    Raises:
        DataError: the checkpoint is missing, or cannot be read.
    """
    path, chosen_on = checkpoint_path(output / CHECKPOINTS, step), None
    if config.train.validation.exports_best:
        best = BestCheckpoint(output / VALIDATION / BEST)
        path, chosen_on = best.path, best.chosen_on
    weights = config.train.ema.exported_weights
    exported_from = ExportedFrom(step_of(path), weights, chosen_on)
    LOGGER.info("exporting %s: the %s", path, exported_from)
    load_weights(detector, path, weights=weights)
    shutil.rmtree(output / SAVED_MODEL, ignore_errors=True)
    with new_directory(output / SAVED_MODEL) as folder:
        export_saved_model(
            detector, folder, categories=categories, config_yaml=to_yaml(config), exported_from=exported_from
        )
        if is_file(output / INIT_REPORT_JSON):
            # A pushed model includes the licence of the weights that it was trained from.
            published = read_json(output / INIT_REPORT_JSON).get("published")
            if published is not None:
                write_json(folder / EXTRA_FILES / WEIGHTS_JSON, published)
