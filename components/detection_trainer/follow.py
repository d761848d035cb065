"""Following a training run from another process: each new checkpoint evaluated, the best one kept."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from components.coco_example_gen.to_examples import data_as_examples
from detection.config_files import read_config
from detection.datasets.annotations.annotation_file import differing_categories
from detection.storage.files import is_dir, is_file
from detection.storage.json_files import read_json
from detection.storage.lock import lock_folder, open_working_folder
from detection.storage.paths import join, parent, relative, require_supported
from detection.storage.tfrecord import find_shards
from detection.training.auto.kept_images import training_records
from detection.training.build_run import (
    checkpoint_evaluator_from_config,
    detector_evaluator_from_config,
    detector_from_config,
)
from detection.training.checkpoints.files import INDEX_FILES, checkpoint_steps
from detection.training.validation.follow import COPIES, Patience, follow_checkpoints
from detection.training.validation.history import has_stalled, read_history
from schemas.artifacts import (
    BEST,
    CHECKPOINTS,
    CONFIG_YAML,
    HISTORY_JSON,
    LABELS_JSON,
    METRICS_JSON,
    TRAIN_SPLIT,
    VALIDATION,
)
from schemas.config.config import Config
from schemas.config.train.monitoring import AUTO_SPLIT
from schemas.errors import DataError
from schemas.metrics import IouType

_UPLOADED_LAST = (f"{BEST}/{INDEX_FILES}", f"{BEST}/{METRICS_JSON}", HISTORY_JSON)  # each after the files that it names


class Followed(NamedTuple):
    """Result of following a run.

    ended: whether the run's last checkpoint was evaluated; else the time was over.
    evaluated: number of evaluated checkpoints, including those of earlier calls.
    best: path of the best checkpoint.
    metrics: metrics of the best checkpoint, by name.
    iou_type: first IoU type, whose metrics have no prefix.
    """

    ended: bool
    evaluated: int
    best: str
    metrics: dict[str, float]
    iou_type: IouType


def follow_run(
    checkpoints: str,
    *,
    data: str,
    output: str,
    patience: Patience,
    every_one: bool = False,
    assignments: Sequence[str] = (),
) -> Followed:
    """Follows a run until its last checkpoint is evaluated, or nothing new comes for too long.

    Args:
        checkpoints: local or remote folder of the run's checkpoints; may not exist yet.
        data: folder of an `Examples` artifact, or of another data set.
        output: local or remote folder for the history, the best checkpoint and TensorBoard's files.
        patience: limit of the time without a new checkpoint.
        every_one: evaluate all checkpoints in their order, not only the newest.
        assignments: `--set` assignments on top of the run's configuration.

    Raises:
        ConfigError: an invalid assignment, or a path that is not supported.
        DataError: no checkpoint was written; the data cannot be used, or has other categories than the run.
        CocoflowError: another process uses `output`.
    """
    require_supported(output, "--output")
    run = parent(checkpoints)
    _wait_for_begin(checkpoints, patience)
    config = _configuration(run, data, assignments)
    split, labels = config.validation_split or TRAIN_SPLIT, join(run, LABELS_JSON)
    with (
        lock_folder(output, instead="name another folder with --output") as use,
        open_working_folder(output, last=_UPLOADED_LAST, exclude=[f"{COPIES}/*"], use=use) as working,
        data_as_examples(config, data, split=split, check=lambda known: _categories(labels, known, data)) as dataset,
    ):
        categories = _categories(labels, dataset.categories, data)
        shards = find_shards(dataset.records)
        named = shards if config.validation_split else ()
        reader = training_records(config, shards=shards, validation_shards=named)[1].validation
        assert reader is not None  # `_configuration` turns validation on
        detector = detector_from_config(config.model, categories, precision=config.train.precision)
        evaluate = detector_evaluator_from_config(config, reader, categories=categories, detector=detector)
        evaluator = checkpoint_evaluator_from_config(config, evaluate, folder=working.local, logs=working.local)
        ended = follow_checkpoints(
            checkpoints,
            evaluator,
            folder=working.local,
            is_last=lambda step: _is_last(step, run),
            patience=patience,
            every_one=every_one,
            after_evaluation=working.push,
        )
        working.push()
        history = evaluator.history()
        if not history:
            raise DataError(f"{checkpoints}: no checkpoint could be evaluated; the messages above say why.")
        best = join(working.path, relative(evaluator.best.path, working.local))
        return Followed(ended, len(history), best, evaluator.best.metrics, config.evaluate.first_iou_type)


def checkpoints_of(given: str) -> str:
    """Returns the folder of checkpoints: `given` itself, or that in a run's output folder.

    Raises:
        ConfigError: the path is not supported.
    """
    require_supported(given, "--checkpoints")
    inside = join(given, CHECKPOINTS)
    return inside if is_dir(inside) else given


def _wait_for_begin(folder: str, patience: Patience) -> None:
    while not (checkpoint_steps(folder) and is_file(join(parent(folder), CONFIG_YAML))):
        if not patience.wait():
            raise DataError(
                f"{folder}: no checkpoint with a {CONFIG_YAML} above it has come. Check --checkpoints, it is the "
                "folder `checkpoints` that training writes, and train.checkpoint_every; --timeout waits longer."
            )
    patience.renew()


def _configuration(run: str, data: str, assignments: Sequence[str]) -> Config:
    """Reads the run's configuration, with this data set instead of its own.

    A run without validation was trained on all training images, so that none of them can be kept.
    """
    path = join(run, CONFIG_YAML)
    # Keys of the run's data do not apply to this folder.
    own = [f"data.root={json.dumps(data)}", "data.splits={}", "data.window=1", "data.span=null", "data.version=null"]
    if read_config(path, key="--checkpoints").train.validation.enabled:
        return read_config(path, [*own, *assignments])
    own.append("train.validation.every=1")  # its other keys count here
    config = read_config(path, [*own, *assignments])
    if config.train.validation.split == AUTO_SPLIT:
        own.append(f"train.validation.split={json.dumps(config.evaluate.split)}")
    return read_config(path, [*own, *assignments])


def _categories(labels: str, categories: Sequence[Mapping[str, Any]], data: str) -> list[Mapping[str, Any]]:
    """Returns the run's categories, in the order of the detector's classes.

    Args:
        labels: the run's file of categories, which may not exist.
        categories: categories of the data set.
        data: the data set's folder.

    Raises:
        DataError: the run and the data set have different categories.
    """
    if not is_file(labels):
        return sorted(categories, key=lambda category: category["id"])
    own = list(read_json(labels))
    listed = differing_categories(own, categories)
    if listed:
        raise DataError(
            f"{data}: its categories are not those of the run ({labels}): {listed}. "
            "Follow with the data set that the run was given, or one of the same categories."
        )
    return own


def _is_last(step: int, run: str) -> bool:
    # Read again each time: a run may be started again with more steps.
    config = read_config(join(run, CONFIG_YAML), key="--checkpoints")
    train_config = config.train
    if step >= train_config.fixed_steps:
        return True
    validation = train_config.validation
    if validation.patience is None:
        return False
    values = [entry.metrics[config.validation_metric] for entry in read_history(join(run, VALIDATION, HISTORY_JSON))]
    return has_stalled(values, patience=validation.patience, min_delta=validation.min_delta)
