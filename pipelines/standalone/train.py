"""Training without a pipeline: the same conversion and the same engine, one folder."""

import hashlib
import json
import logging
import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

from detection.datasets.importers.label_map import read_dataset_file
from detection.datasets.layouts import SplitFiles
from detection.storage.atomic import new_directory
from detection.storage.lock import Use, exclusive_use
from detection.training.distributed.cluster import cluster_from_environment
from pipelines.console import quiet_run
from pipelines.dataset_files import files_of
from pipelines.folders import scratch_tempdir
from pipelines.runs.start_check import check_train
from schemas.artifacts import DATASET_JSON, SAVED_MODEL, TRAIN_SPLIT, split_dir
from schemas.config.config import Config, DataConfig
from schemas.errors import DataError

_LOGGER = logging.getLogger("cocoflow.train")


def train_alone(config: Config, output: str, *, verbose: bool = False) -> Path:
    """Trains a detector on the data set's train split.

    Args:
        config: `data`, `model` and `train` count; with `train.validation` also `evaluate`'s split and batch size.
        output: folder; see the command `train`.
        verbose: libraries' logs to the terminal instead of `output`/run.log.

    Returns:
        The SavedModel's folder.

    Raises:
        ConfigError: no data set is named, or see `detection.training.train.train`.
        DataError: the data cannot be used.
        CocoflowError: another process uses the folder; see `detection.training.train.train`.
    """
    folder = Path(output)
    leads = _leads(config)
    names = [TRAIN_SPLIT, *([config.evaluate.split] if config.train.validation.enabled else [])]
    files = files_of(config.data, *names)
    splits = {name: files[name] for name in names}
    with _held(folder) if leads else nullcontext(), quiet_run(folder / "run.log", verbose=verbose or not leads):
        from detection.training.distributed.strategy import make_strategy
        from detection.training.distributed.workers import chief_first, lost_workers_explained
        from detection.training.train import train

        if config.data.window > 1:
            _LOGGER.warning("data.window counts in `run` only: this trains on one span")
        if config.train.init.from_previous_model:
            _LOGGER.warning("train.init.from_previous_model counts in `run` only: here no model is known")

        # First of all: once TensorFlow has done anything, machines can meet no more.
        strategy = make_strategy(config.train.strategy, tpu=config.train.tpu)
        detector = None
        with lost_workers_explained(strategy), chief_first(strategy):
            if leads:
                detector = check_train(config, splits, folder, strategy)
            examples = _examples(splits, folder / "examples", config.data, makes=leads)
        train(
            config,
            shards=_shards(examples, TRAIN_SPLIT),
            validation_shards=_shards(examples, config.evaluate.split) if config.train.validation.enabled else [],
            categories=read_dataset_file(examples / DATASET_JSON)["categories"],
            output=folder,
            strategy=strategy,
            detector=detector,
        )
    return folder / SAVED_MODEL


def _held(folder: Path) -> AbstractContextManager[Use]:
    """Several machines of one training share the folder: the one that writes holds it for all."""
    return exclusive_use(folder, instead="name another folder with --output")


def _shards(examples: Path, split: str) -> list[str]:
    return sorted(map(str, (examples / split_dir(split)).iterdir()))


def _leads(config: Config) -> bool:
    """Whether this process makes the records and writes run.log: of several machines, the chief does."""
    if config.train.strategy not in ("auto", "multi_worker"):
        return True
    cluster = cluster_from_environment(os.environ)
    return cluster is None or cluster.is_chief


def _examples(splits: dict[str, SplitFiles], folder: Path, data: DataConfig, *, makes: bool) -> Path:
    """Records of the data as it is now: those of an earlier call where nothing has changed.

    Args:
        splits: files of the data set.
        folder: of all records.
        data: how to convert.
        makes: whether this process makes them; otherwise they are there.

    Raises:
        DataError: they are not, or the data cannot be used.
    """
    from components.coco_example_gen.sources import fingerprint

    rules = json.dumps([data.on_fault.model_dump(), data.max_pixels, [asdict(files) for files in splits.values()]])
    state = fingerprint(splits.values(), data.label_map) + hashlib.sha256(rules.encode()).hexdigest()
    current = folder / hashlib.sha256(state.encode()).hexdigest()[:16]
    if makes and not current.is_dir():
        from components.coco_example_gen.conversion import convert

        shutil.rmtree(folder, ignore_errors=True)
        with new_directory(current) as beside, scratch_tempdir():
            convert(splits, beside, policies=data.on_fault, max_pixels=data.max_pixels, label_map=data.label_map)
    if not current.is_dir():
        raise DataError(
            f"{current}: the chief's records are not there. All machines need to see the same data and the same "
            "output folder, under the same paths."
        )
    return current
