"""Finding the weights that a path means."""

import re
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from detection.storage.literal_paths import literal_path
from schemas.artifacts import CHECKPOINTS, EXTRA_FILES, LABELS_JSON, VALIDATION
from schemas.errors import DataError

_MODEL_FILE = "saved_model.pb"
_INDEX = ".index"


class Located(NamedTuple):
    """Files of weights.

    prefix: of a TensorFlow checkpoint: `<prefix>.index` exists.
    labels: file of the categories that the weights were trained for, or None.
    """

    prefix: Path
    labels: Path | None


def locate_weights(path: str | Path) -> Located:
    """The weights that `path` means.

    Args:
        path: a checkpoint (with or without `.index`); a folder of checkpoints, of which
            the newest counts; the output of `train` or a pipeline's `ModelRun`, likewise;
            a SavedModel, or a folder of one, as a pipeline's `Model` is.

    Raises:
        DataError: nothing of that is there, or several SavedModels.
    """
    given = Path(path)
    prefix = given.with_name(given.name.removesuffix(_INDEX))
    if _is_checkpoint(prefix):
        return Located(prefix, _labels_beside(prefix))
    if (given / _MODEL_FILE).is_file():
        return _of_saved_model(given)
    newest = _newest_checkpoint(given / CHECKPOINTS) or _newest_checkpoint(given)
    if newest is not None:
        return Located(newest, _labels_beside(newest))
    models = sorted(file.parent for file in given.glob(f"*/{_MODEL_FILE}"))
    if len(models) > 1:
        raise DataError(f"{given}: holds several models: {', '.join(model.name for model in models)}. Name one.")
    if models:
        return _of_saved_model(models[0])
    raise DataError(
        f"{given}: {'no weights are there' if given.exists() else 'no such file or folder'}. "
        "Name a checkpoint (.../ckpt-500), a folder of checkpoints, the output of `train`, or a SavedModel."
    )


def _of_saved_model(folder: Path) -> Located:
    prefix = folder / "variables" / "variables"
    if not _is_checkpoint(prefix):
        raise DataError(f"{folder}: a SavedModel without variables. Name one that was exported after training.")
    return Located(prefix, _existing(folder / EXTRA_FILES / LABELS_JSON))


def _newest_checkpoint(folder: Path) -> Path | None:
    """The one that TensorFlow's list names; without a list that holds, the one of the highest number."""
    literal = literal_path(folder)
    listed = tf.train.latest_checkpoint(literal) if folder.is_dir() else None
    if listed is not None:
        return Path(listed.replace(literal, str(folder), 1))
    return max((file.with_suffix("") for file in folder.glob(f"*{_INDEX}")), key=_number, default=None)


def _number(prefix: Path) -> tuple[int, str]:
    digits = re.search(r"(\d+)$", prefix.name)
    return int(digits[1]) if digits else -1, prefix.name


def _labels_beside(prefix: Path) -> Path | None:
    """Categories beside the checkpoint, or in the output of `train` that it lies in."""
    ours = (CHECKPOINTS, VALIDATION)
    folders = [prefix.parent, *(folder.parent for folder in list(prefix.parents)[:2] if folder.name in ours)]
    return next(filter(None, (_existing(folder / LABELS_JSON) for folder in folders)), None)


def _is_checkpoint(prefix: Path) -> bool:
    return prefix.with_name(prefix.name + _INDEX).is_file()


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None
