"""Checks that a training may resume from the checkpoints in its folder: same records, categories and settings."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detection.datasets.annotations.annotation_file import differing_categories
from detection.input_pipeline.record_index import fingerprint_records
from detection.storage.atomic import write_json
from detection.storage.files import is_file
from detection.storage.json_files import read_json
from detection.training.checkpoints.files import checkpoint_steps
from detection.training.resolve import saved_config
from schemas.artifacts import CHECKPOINTS, LABELS_JSON, RECORDS_JSON
from schemas.config.config import MODEL_WITHOUT_EFFECT, Config
from schemas.config.train.training import WITHOUT_EFFECT
from schemas.errors import DataError
from schemas.quoting import first_of

_LOGGER = logging.getLogger("cocoflow.trainer")
_LISTED = 6  # max named settings
_LENGTH = {"train.steps", "train.epochs"}  # which a training may be given more of
# They depend on it, by default.
_OF_LENGTH = {"train.schedule.hold_steps", "train.augment.scale_min", "train.augment.scale_max"}
_EXPORT = {"train.validation.export", "train.ema.use_moving_averages"}  # which of the weights are exported
_ANEW = "Train into another folder; to start from these weights, with --set train.init.checkpoint={folder}."


def require_same_data(output: Path, shards: Sequence[str], categories: Sequence[Mapping[str, Any]]) -> None:
    """Requires that the checkpoints in a folder are of the same records and categories; call before writing there.

    Args:
        output: folder of the training.
        shards: TFRecord files of the training records.
        categories: COCO categories in the order of the network's classes.

    Raises:
        DataError: they are of others.
    """
    steps = checkpoint_steps(output / CHECKPOINTS)
    if not steps:
        return
    others = []
    if is_file(output / LABELS_JSON) and (named := differing_categories(read_json(output / LABELS_JSON), categories)):
        others.append(f"categories ({named})")
    elif is_file(output / RECORDS_JSON) and read_json(output / RECORDS_JSON) != _described(shards):
        others.append("records")
    if others:
        config = saved_config(output)
        ended = config is not None and config.train.steps == steps[-1]
        raise DataError(
            f"{output}: its checkpoints belong to other {' and '.join(others)}"
            f"{', and that training was finished before' if ended else ''}. {_ANEW.format(folder=output)}"
        )


def compare_settings(output: Path, config: Config) -> None:
    """Warns of settings that differ from those of the checkpoints in a folder.

    Args:
        output: folder of the training.
        config: resolved configuration.

    Raises:
        DataError: they differ, and no step is left that would be trained with them.
    """
    steps, before = checkpoint_steps(output / CHECKPOINTS), saved_config(output)
    if not steps or before is None:
        return
    old, new = _settings(before), _settings(config)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    without = _LENGTH | _EXPORT
    if before.train.steps != config.train.steps:
        without |= _OF_LENGTH
    other = [key for key in changed if key not in without]
    listed = first_of([f"{key} = {new.get(key)} (was {old.get(key)})" for key in other], _LISTED)
    left = config.train.fixed_steps - steps[-1]
    if other and left <= 0:
        raise DataError(
            f"{output}: the training was finished before, after {steps[-1]:,} steps with other settings: {listed}. "
            f"{_ANEW.format(folder=output)}"
        )
    if other:
        _LOGGER.warning("resuming with other settings than before: %s", listed)
    elif left <= 0:
        _LOGGER.warning(
            "the training was finished before: the checkpoint has %s of %s steps, and no step is trained",
            f"{steps[-1]:,}",
            f"{config.train.fixed_steps:,}",
        )


def write_described(output: Path, shards: Sequence[str]) -> None:
    """Writes which records the checkpoints in a folder are of."""
    write_json(output / RECORDS_JSON, _described(shards))


def _described(shards: Sequence[str]) -> dict[str, str]:
    return {"records": fingerprint_records(shards)}


def _settings(config: Config) -> dict[str, Any]:
    """Returns key -> value of the settings that decide about the weights."""
    exclude = {"train": set(WITHOUT_EFFECT), "model": set(MODEL_WITHOUT_EFFECT)}
    tree = config.model_dump(mode="json", include={"train": True, "model": True}, exclude=exclude)
    found: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        else:
            found[prefix] = value

    add("", tree)
    return found
