"""Training without a pipeline: the same conversion and the same engine, one folder."""

import hashlib
import json
import logging
import shutil
from dataclasses import asdict
from pathlib import Path

from detection.atomic_files import new_directory
from detection.coco.layouts import SplitFiles
from pipelines.console import quiet_run
from pipelines.data_files import files_of
from schemas.artifacts import DATASET_JSON, SAVED_MODEL, TRAIN_SPLIT, split_dir
from schemas.config import Config, DataConfig

_LOGGER = logging.getLogger("cocoflow.train")


def train_alone(config: Config, output: str, *, verbose: bool = False) -> Path:
    """Trains a detector on the data set's train split.

    Args:
        config: `data`, `model` and `train` count.
        output: folder; see the verb `train`.
        verbose: libraries' logs to the terminal instead of `output`/run.log.

    Returns:
        The SavedModel's folder.

    Raises:
        ConfigError: no data set is named, or see `detection.training.train.train`.
        DataError: the data cannot be used.
    """
    folder = Path(output)
    splits = {TRAIN_SPLIT: files_of(config.data, TRAIN_SPLIT)[TRAIN_SPLIT]}
    with quiet_run(folder / "run.log", verbose=verbose):
        from detection.training.train import train

        if config.data.window > 1:
            _LOGGER.warning("data.window counts in `run` only: this trains on one span")
        if config.train.init.from_previous_model:
            _LOGGER.warning("train.init.from_previous_model counts in `run` only: here no model is known")

        examples = _examples(splits, folder / "examples", config.data)
        train(
            config,
            shards=sorted(map(str, (examples / split_dir(TRAIN_SPLIT)).iterdir())),
            categories=json.loads((examples / DATASET_JSON).read_text(encoding="utf-8"))["categories"],
            output=folder,
        )
    return folder / SAVED_MODEL


def _examples(splits: dict[str, SplitFiles], folder: Path, data: DataConfig) -> Path:
    """Records of the data as it is now: those of an earlier call where nothing has changed."""
    from components.coco_example_gen.conversion import convert
    from components.coco_example_gen.fingerprint import fingerprint

    rules = json.dumps([data.on_fault.model_dump(), data.max_pixels, [asdict(files) for files in splits.values()]])
    state = fingerprint(splits.values(), data.label_map) + hashlib.sha256(rules.encode()).hexdigest()
    current = folder / hashlib.sha256(state.encode()).hexdigest()[:16]
    if not current.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        with new_directory(current) as beside:
            convert(splits, beside, policies=data.on_fault, max_pixels=data.max_pixels, label_map=data.label_map)
    return current
