"""Locating the weight files that a path means, and a fingerprint of their content."""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from detection.storage.literal_paths import literal_path
from schemas.artifacts import CHECKPOINTS, EXTRA_FILES, LABELS_JSON, VALIDATION
from schemas.errors import DataError

_MODEL_FILE = "saved_model.pb"
_INDEX = ".index"


class WeightFiles(NamedTuple):
    """Files of weights.

    prefix: prefix of a TensorFlow checkpoint: `<prefix>.index` exists.
    labels: file of the categories that the weights were trained for, or None.
    """

    prefix: Path
    labels: Path | None


def locate_weights(path: str | Path) -> WeightFiles:
    """Finds the weights that `path` means.

    Args:
        path: a checkpoint (with or without `.index`); the newest checkpoint of a folder, of
            the output of `train` or of a pipeline's `ModelRun`; a SavedModel, or a folder
            with one, such as a pipeline's `Model`.

    Raises:
        DataError: the path has no weights, or several SavedModels.
    """
    given = Path(path)
    prefix = given.with_name(given.name.removesuffix(_INDEX))
    if _is_checkpoint(prefix):
        return WeightFiles(prefix, _labels_beside(prefix))
    if (given / _MODEL_FILE).is_file():
        return _of_saved_model(given)
    newest = _newest_checkpoint(given / CHECKPOINTS) or _newest_checkpoint(given)
    if newest is not None:
        return WeightFiles(newest, _labels_beside(newest))
    models = sorted(file.parent for file in given.glob(f"*/{_MODEL_FILE}"))
    if len(models) > 1:
        raise DataError(f"{given}: holds several models: {', '.join(model.name for model in models)}. Name one.")
    if models:
        return _of_saved_model(models[0])
    raise DataError(
        f"{given}: {'it holds no weights' if given.exists() else 'no such file or folder'}. "
        "Name a checkpoint (.../ckpt-500), a folder of checkpoints, the output of `train`, or a SavedModel."
    )


def _of_saved_model(folder: Path) -> WeightFiles:
    prefix = folder / "variables" / "variables"
    if not _is_checkpoint(prefix):
        raise DataError(f"{folder}: a SavedModel without variables. Name one that was exported after training.")
    return WeightFiles(prefix, _existing(folder / EXTRA_FILES / LABELS_JSON))


def _newest_checkpoint(folder: Path) -> Path | None:
    """Returns the checkpoint that TensorFlow's list names; without a valid list, the one of the highest number."""
    literal = literal_path(folder)
    listed = tf.train.latest_checkpoint(literal) if folder.is_dir() else None
    if listed is not None:
        return Path(listed.replace(literal, str(folder), 1))
    return max((file.with_suffix("") for file in folder.glob(f"*{_INDEX}")), key=_number, default=None)


def _number(prefix: Path) -> tuple[int, str]:
    digits = re.search(r"(\d+)$", prefix.name)
    return int(digits[1]) if digits else -1, prefix.name


def _labels_beside(prefix: Path) -> Path | None:
    """Finds the categories beside the checkpoint, or in the output of `train` around it."""
    ours = (CHECKPOINTS, VALIDATION)
    folders = [prefix.parent, *(folder.parent for folder in list(prefix.parents)[:2] if folder.name in ours)]
    return next(filter(None, (_existing(folder / LABELS_JSON) for folder in folders)), None)


def _is_checkpoint(prefix: Path) -> bool:
    return prefix.with_name(prefix.name + _INDEX).is_file()


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def weights_fingerprint(*, checkpoint: str | None, backbone_weights: str | None) -> str:
    """Computes a fingerprint of the present content of the two paths.

    Args:
        checkpoint: see `locate_weights`; its index is read, which has a checksum of every
            variable.
        backbone_weights: a file, or the name of weights that never change.

    Raises:
        DataError: `checkpoint` has no weights.
    """
    digest = hashlib.sha256()
    if checkpoint is not None:
        located = locate_weights(checkpoint)
        digest.update(located.prefix.with_name(located.prefix.name + ".index").read_bytes())
        if located.labels is not None:
            digest.update(located.labels.read_bytes())
    if backbone_weights is not None and Path(backbone_weights).is_file():
        with Path(backbone_weights).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
