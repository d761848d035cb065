"""Keeps a part of the training images for choosing the checkpoint, without training on them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple

from detection.datasets.annotations.packed_entries import unpack_entries
from detection.datasets.groups import group_of, is_pattern
from detection.datasets.sampling import key_hash
from detection.input_pipeline.record_classes import read_features
from detection.input_pipeline.record_reader import RecordReader
from detection.storage import files, paths
from detection.storage.json_files import read_json
from schemas import features
from schemas.artifacts import GROUPS_JSON
from schemas.config.config import Config
from schemas.config.train.monitoring import ValidationConfig
from schemas.errors import ConfigError, DataError

_LOGGER = logging.getLogger("cocoflow.trainer")
_THREADS = 16  # they mostly wait for storage
_MIN_IMAGES = 10  # with fewer kept images, `train.validation.every: auto` disables validation
_MIN_TO_CHOOSE = 50  # with fewer, the differences between their APs are noise: they choose no checkpoint
_MOST_OF_CURVE = 100  # images of another split that show how a training goes


class Records(NamedTuple):
    """Records of a training run.

    training: records to train on.
    validation: records for choosing the checkpoint; None: no validation.
    pictures: number of pictures in `validation`, of which it may have copies.
    """

    training: RecordReader
    validation: RecordReader | None
    pictures: int = 0


def divide(
    reader: RecordReader, fraction: float, rule: str = "", joined: Mapping[str, str] = MappingProxyType({})
) -> Records:
    """Keeps the records whose group has a hash below `fraction`: copies stay together, added images change no other.

    If several records have the same id, such as in several spans, one is kept and the others are dropped.

    Args:
        reader: all records.
        fraction: fraction of the records to keep, 0 < fraction < 1.
        rule: `data.group`.
        joined: name of a group -> the group that its pixels belong to.

    Returns:
        `validation` is None if no record is kept.

    Raises:
        DataError: all records are kept; or a record is damaged or not a `tf.train.Example`.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        read = list(pool.map(lambda number: _id_and_group(reader, number, rule), range(len(reader))))
    ids = [image_id for image_id, _ in read]
    # A different hash from the one that may have selected `eval` from the same images.
    groups = [joined.get(group, group) for _, group in read]
    kept = [key_hash(f"validation {group}") < fraction * 2**64 for group in groups]
    if all(kept):
        raise DataError(
            f"train.validation: all {len(ids)} training images would be kept to choose the checkpoint, and none "
            "trained on. Add images, or set train.validation.split=eval."
        )
    first = {image_id: number for number, image_id in reversed(list(enumerate(ids))) if kept[number]}
    training = reader.select([number for number, is_kept in enumerate(kept) if not is_kept])
    pictures = len({groups[number] for number in first.values()})
    return Records(training, reader.select(sorted(first.values())) if first else None, pictures)


def _id_and_group(reader: RecordReader, number: int, rule: str) -> tuple[str, str]:
    """Returns the id of a record's image, and the name of its group; records of other tools may lack a file name."""
    values = read_features(reader, number)
    image_id, name = (
        b"".join(values[key].bytes_list.value).decode(errors="replace") if key in values else ""
        for key in (features.SOURCE_ID, features.FILENAME)
    )
    image: dict[str, Any] = {"file_name": name or image_id}
    if rule and not is_pattern(rule) and features.COCO in values:
        image, _ = unpack_entries(values[features.COCO].bytes_list.value[0])
    return image_id, group_of(image, rule)


def _joined(shards: Sequence[str]) -> dict[str, str]:
    """Reads which groups are one by their pixels, from the Examples artifacts of the shards."""
    joined: dict[str, str] = {}
    for folder in dict.fromkeys(paths.parent(paths.parent(shard)) for shard in shards):
        file = paths.join(folder, GROUPS_JSON)
        if files.is_file(file):
            for groups in read_json(file).values():
                joined |= groups
    return joined


def training_records(
    config: Config,
    *,
    shards: Sequence[str],
    validation_shards: Sequence[str],
    curve_shards: Callable[[], Sequence[str]] = tuple,
) -> tuple[Config, Records]:
    """Opens the records of a training run, and keeps a part of them if `train.validation` needs it.

    Args:
        config: the run's configuration.
        shards: TFRecord files of the training split.
        validation_shards: TFRecord files of `Config.validation_split`; empty: no such split.
        curve_shards: returns the TFRecord files of `Config.curve_split`, only called if they are needed; empty: no such
            split.

    Returns:
        The records; and the configuration.  If too few images would be kept for `every: auto`, none are, validation is
        on the curve's records, or off without them, and the last checkpoint is exported.

    Raises:
        ConfigError: the named split has no records.
        DataError: no image is kept, but validation is required; or a record cannot be read.
    """
    reader, validation = RecordReader(shards), config.train.validation
    if not validation.enabled:
        return config, Records(reader, None)
    if config.validation_split is not None:
        if not validation_shards:
            raise ConfigError(
                f"train.validation: the split {config.validation_split!r} has no records. "
                "Add this split to the data set, or change train.validation.split."
            )
        validating = RecordReader(validation_shards)
        if validation.is_open and len(validating) < _MIN_TO_CHOOSE:
            config = _with_validation(config, validation.model_copy(update={"export": "final"}))
        return config, Records(reader, validating)
    records = divide(reader, validation.fraction, config.data.group or "", _joined(shards))
    count = len(records.validation or ())
    needed = _MIN_TO_CHOOSE if validation.is_open else _MIN_IMAGES
    if validation.every == "auto" and records.pictures < needed:
        others = curve_shards() if config.curve_split else ()
        shown = config.curve_split if others else None
        _LOGGER.info(
            "train.validation: %d of %s training images are too few to choose a checkpoint: training on all of them, "
            "and exporting the last one. %s",
            records.pictures,
            f"{len(reader):,}",
            f"AP on {shown} shows whether it still rises, and chooses nothing"
            if shown
            else "To see whether AP still rises, set train.validation.split=eval",
        )
        config = _with_validation(config, _curve(validation, shown))
        return config, Records(reader, RecordReader(others) if shown else None)
    if not count:
        raise DataError(
            f"train.validation: no image of {len(reader)} is kept to choose the checkpoint. Raise "
            "train.validation.fraction, or set train.validation.split=eval."
        )
    _LOGGER.info(
        "train.validation: %s of %s training images are kept to choose the checkpoint, and not trained on",
        f"{count:,}",
        f"{len(reader):,}",
    )
    return config, records


def _curve(given: ValidationConfig, split: str | None) -> ValidationConfig:
    """Returns evaluations of a split that choose nothing; None: no evaluations."""
    if split is None:
        return ValidationConfig()
    most = given.max_images or _MOST_OF_CURVE
    return ValidationConfig(every="auto", split=split, metric=given.metric, max_images=most, export="final")


def _with_validation(config: Config, validation: ValidationConfig) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"validation": validation})})
