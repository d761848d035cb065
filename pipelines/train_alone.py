"""Training without a pipeline: the same conversion and the same engine, one folder."""

import hashlib
import json
import logging
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from detection.atomic_files import new_directory
from detection.coco.layouts import SplitFiles
from detection.training.cluster import cluster_from_environment
from pipelines.console import quiet_run
from pipelines.data_files import files_of
from schemas.artifacts import DATASET_JSON, SAVED_MODEL, TRAIN_SPLIT, split_dir
from schemas.config import Config, DataConfig
from schemas.errors import CocoflowError

_LOGGER = logging.getLogger("cocoflow.train")
_PATIENCE_SECONDS = 3600.0  # as long as TensorFlow waits for machines to meet


def train_alone(config: Config, output: str, *, verbose: bool = False) -> Path:
    """Trains a detector on the data set's train split.

    Args:
        config: `data`, `model` and `train` count; with `train.validation` also `evaluate`'s split and batch size.
        output: folder; see the verb `train`.
        verbose: libraries' logs to the terminal instead of `output`/run.log.

    Returns:
        The SavedModel's folder.

    Raises:
        ConfigError: no data set is named, or see `detection.training.train.train`.
        DataError: the data cannot be used.
        CocoflowError: on several machines, the chief makes no records; see also `train`.
    """
    folder = Path(output)
    leads = _leads(config)
    names = [TRAIN_SPLIT, *([config.evaluate.split] if config.train.validation.enabled else [])]
    files = files_of(config.data, *names)
    splits = {name: files[name] for name in names}
    with quiet_run(folder / "run.log", verbose=verbose or not leads):
        from detection.training.train import train

        if config.data.window > 1:
            _LOGGER.warning("data.window counts in `run` only: this trains on one span")
        if config.train.init.from_previous_model:
            _LOGGER.warning("train.init.from_previous_model counts in `run` only: here no model is known")

        examples = _records_folder(splits, folder / "examples", config.data)
        if leads:
            _make_records(splits, examples, config.data)
        else:
            _wait_for_records(examples)
        train(
            config,
            shards=_shards(examples, TRAIN_SPLIT),
            validation_shards=_shards(examples, config.evaluate.split) if config.train.validation.enabled else [],
            categories=json.loads((examples / DATASET_JSON).read_text(encoding="utf-8"))["categories"],
            output=folder,
        )
    return folder / SAVED_MODEL


def _shards(examples: Path, split: str) -> list[str]:
    return sorted(map(str, (examples / split_dir(split)).iterdir()))


def _leads(config: Config) -> bool:
    """Whether this process makes the records and writes run.log: of several machines, the chief does."""
    if config.train.strategy not in ("auto", "multi_worker"):
        return True
    cluster = cluster_from_environment(os.environ)
    return cluster is None or cluster.is_chief


def _records_folder(splits: dict[str, SplitFiles], folder: Path, data: DataConfig) -> Path:
    """Where records of the data as it is now lie, or are to lie."""
    from components.coco_example_gen.fingerprint import fingerprint

    rules = json.dumps([data.on_fault.model_dump(), data.max_pixels, [asdict(files) for files in splits.values()]])
    state = fingerprint(splits.values(), data.label_map) + hashlib.sha256(rules.encode()).hexdigest()
    return folder / hashlib.sha256(state.encode()).hexdigest()[:16]


def _make_records(splits: dict[str, SplitFiles], goal: Path, data: DataConfig) -> None:
    """Makes the records, unless an earlier call did and nothing has changed; others of the folder go."""
    from components.coco_example_gen.conversion import convert

    if goal.is_dir():
        return
    shutil.rmtree(goal.parent, ignore_errors=True)
    with new_directory(goal) as beside:
        convert(splits, beside, policies=data.on_fault, max_pixels=data.max_pixels, label_map=data.label_map)


def _wait_for_records(folder: Path) -> None:
    """Waits until the chief has made the records.

    Raises:
        CocoflowError: they do not come.
    """
    _LOGGER.info("waiting for the chief's records in %s", folder)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not folder.is_dir():
        if time.monotonic() > deadline:
            raise CocoflowError(
                f"{folder}: the chief has not made the records there. See its log; all machines need to see the same "
                "data and the same output folder, under the same paths."
            )
        time.sleep(1.0)
