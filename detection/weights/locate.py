"""Locating the weight files that a path means, and a fingerprint of their content."""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from detection.storage import paths
from detection.storage.files import exists, glob, is_dir, is_file
from detection.storage.literal_paths import literal_path
from detection.storage.paths import is_remote, join, name_of, parent
from detection.storage.reading import read_bytes
from detection.storage.staging import local_copy
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, EXTRA_FILES, LABELS_JSON, VALIDATION
from schemas.errors import DataError

_MODEL_FILE = "saved_model.pb"
_INDEX = ".index"
_STATE_FILE = "checkpoint"


class WeightFiles(NamedTuple):
    """Files of weights, local or remote.

    prefix: prefix of a TensorFlow checkpoint: `<prefix>.index` exists.
    labels: file of the categories that the weights were trained for, or None.
    config: file of the configuration of that training, or None.
    saved_model: folder of the SavedModel whose weights they are, or None.
    """

    prefix: str
    labels: str | None
    config: str | None = None
    saved_model: str | None = None


def local_prefix(prefix: str) -> str:
    """Returns the prefix of a checkpoint with the same files on a local disk.

    Raises:
        DataError: see `local_copy`.
    """
    if not is_remote(prefix):
        return prefix
    name = paths.escape(name_of(prefix))
    return join(local_copy(parent(prefix), only=[f"{name}{_INDEX}", f"{name}.data-*"]), name_of(prefix))


def locate_weights(path: str | Path) -> WeightFiles:
    """Finds the weights that `path` means.

    Args:
        path: a checkpoint (with or without `.index`); the newest checkpoint of a folder, of
            the output of `train` or of a pipeline's `ModelRun`; a SavedModel, or a folder
            with one, such as a pipeline's `Model`.

    Raises:
        DataError: the path has no weights, or several SavedModels.
    """
    given = str(path).rstrip("/") if is_remote(path) else str(Path(path))
    prefix = given.removesuffix(_INDEX)
    if _is_checkpoint(prefix):
        return _of_checkpoint(prefix)
    if is_file(join(given, _MODEL_FILE)):
        return _of_saved_model(given)
    newest = _newest_checkpoint(join(given, CHECKPOINTS)) or _newest_checkpoint(given)
    if newest is not None:
        return _of_checkpoint(newest)
    models = [parent(file) for file in glob(join(paths.escape(given), "*", _MODEL_FILE))]
    if len(models) > 1:
        raise DataError(f"{given}: holds several models: {', '.join(map(name_of, models))}. Name one.")
    if models:
        return _of_saved_model(models[0])
    raise DataError(
        f"{given}: {'it holds no weights' if exists(given) else 'no such file or folder'}. "
        "Name a checkpoint (.../ckpt-500), a folder of checkpoints, the output of `train`, or a SavedModel."
    )


def _of_saved_model(folder: str) -> WeightFiles:
    prefix = join(folder, "variables", "variables")
    if not _is_checkpoint(prefix):
        raise DataError(f"{folder}: a SavedModel without variables. Name one that was exported after training.")
    labels, config = (_existing(join(folder, EXTRA_FILES, name)) for name in (LABELS_JSON, CONFIG_YAML))
    return WeightFiles(prefix, labels, config, folder)


def _newest_checkpoint(folder: str) -> str | None:
    """Returns the checkpoint that TensorFlow's list names; without a valid list, the one of the highest number."""
    if not is_dir(folder):
        return None
    # TensorFlow looks whether the index is there, which is small.
    literal = literal_path(local_copy(folder, only=[_STATE_FILE, f"*{_INDEX}"]))
    listed = tf.train.latest_checkpoint(literal)
    if listed is not None:
        return str(listed).replace(literal, folder, 1)
    indices = (file.removesuffix(_INDEX) for file in glob(join(paths.escape(folder), f"*{_INDEX}")))
    return max(indices, key=_number, default=None)


def _number(prefix: str) -> tuple[int, str]:
    name = name_of(prefix)
    digits = re.search(r"(\d+)$", name)
    return int(digits[1]) if digits else -1, name


def _of_checkpoint(prefix: str) -> WeightFiles:
    """Finds the descriptions beside the checkpoint, or in the output of `train` around it."""
    ours = (CHECKPOINTS, VALIDATION)
    around = (parent(prefix), parent(parent(prefix)))
    folders = [around[0], *(parent(folder) for folder in around if name_of(folder) in ours)]
    labels, config = (
        next(filter(None, (_existing(join(folder, name)) for folder in folders)), None)
        for name in (LABELS_JSON, CONFIG_YAML)
    )
    return WeightFiles(prefix, labels, config)


def _is_checkpoint(prefix: str) -> bool:
    return is_file(f"{prefix}{_INDEX}")


def _existing(path: str) -> str | None:
    return path if is_file(path) else None


def weights_fingerprint(*, checkpoint: str | None, backbone_weights: str | None) -> str:
    """Computes a fingerprint of the present content of the two paths.

    Args:
        checkpoint: see `locate_weights`; its index is read, which has a checksum of every
            variable.
        backbone_weights: a file, or the name of weights that never change.

    Raises:
        ConfigError: a path is not supported.
        DataError: `checkpoint` has no weights.
    """
    digest = hashlib.sha256()
    if checkpoint is not None:
        paths.require_supported(checkpoint, "train.init.checkpoint")
        located = locate_weights(checkpoint)
        digest.update(read_bytes(f"{located.prefix}{_INDEX}"))
        if located.labels is not None:
            digest.update(read_bytes(located.labels))
    if backbone_weights is not None:
        paths.require_supported(backbone_weights, "model.backbone_weights")
    if backbone_weights is not None and is_file(backbone_weights):
        with local_copy(backbone_weights).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
