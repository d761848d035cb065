"""Locates the weight files at a path, and computes a fingerprint of their content."""

import contextlib
import hashlib
import logging
import re
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from detection.storage import paths
from detection.storage.checksums import sha256
from detection.storage.files import exists, glob, is_file, list_files, local_copy, read_bytes, read_text
from detection.storage.json_files import read_json
from detection.storage.paths import join, name_of, normalized, parent
from detection.storage.versions import newest_version
from schemas.artifacts import (
    ARTIFACTS,
    BEST,
    CHECKPOINTS,
    CONFIG_YAML,
    EXPORTED_FROM_JSON,
    EXTRA_FILES,
    LABELS_JSON,
    METRICS_JSON,
    PUSHED_MODELS,
    SAVED_MODEL,
    SAVED_MODEL_FILE,
    SUMMARY_JSON,
    VALIDATION,
)
from schemas.config.config_io import from_yaml
from schemas.errors import ConfigError, DataError

_LOGGER = logging.getLogger("cocoflow.model")
CheckpointChoice = Literal["newest", "best"] | int | None  # argument of `checkpoint_of_training`

_INDEX = ".index"
_STATE_FILE = "checkpoint"
_NEWEST = re.compile(r'^model_checkpoint_path: "([^"]*)"', re.MULTILINE)


class WeightFiles(NamedTuple):
    """Files of weights, local or remote.

    prefix: prefix of a TensorFlow checkpoint: `<prefix>.index` exists.
    labels: file with the categories of the weights, or None.
    config: file with the configuration of the training, or None.
    saved_model: folder of the SavedModel with these weights, or None.
    """

    prefix: str
    labels: str | None
    config: str | None = None
    saved_model: str | None = None


def local_prefix(prefix: str) -> str:
    """Returns the prefix of a local copy of a checkpoint's files.

    Raises:
        DataError: the files cannot be copied.
    """
    name = paths.escape(name_of(prefix))
    return join(local_copy(parent(prefix), only=[f"{name}{_INDEX}", f"{name}.data-*"]), name_of(prefix))


def locate_weights(path: str | Path) -> WeightFiles:
    """Finds the weights at `path`.

    Args:
        path: a checkpoint (with or without `.index`); the output of `train` or a pipeline's `ModelRun`, as in
            `checkpoint_of_training`; the newest checkpoint of another folder; a SavedModel, or a folder
            with one, such as a pipeline's `Model`; the newest version of a push directory, or that of a `run.root`.

    Raises:
        DataError: the path has no weights, or several SavedModels.
    """
    given = normalized(path)
    prefix = given.removesuffix(_INDEX)
    if _is_checkpoint(prefix):
        return _of_checkpoint(prefix)
    if is_file(join(given, SAVED_MODEL_FILE)):
        return _of_saved_model(given)
    checkpoint = checkpoint_of_training(given) or _newest_checkpoint(given)
    if checkpoint is not None:
        return _of_checkpoint(checkpoint)
    version = _newest_pushed(given)
    if version is not None:
        return _of_saved_model(version)
    models = [parent(file) for file in glob(join(paths.escape(given), "*", SAVED_MODEL_FILE))]
    if len(models) > 1:
        raise DataError(f"{given}: has several models: {', '.join(map(name_of, models))}. Specify one.")
    if models:
        return _of_saved_model(models[0])
    raise DataError(
        f"{given}: {'no weights' if exists(given) else 'no such file or folder'}. "
        "Specify a checkpoint (.../ckpt-500), a folder of checkpoints, the output of `train`, or a SavedModel."
    )


def locate_model(path: str | Path, choice: CheckpointChoice = None) -> str:
    """Returns the model at `path`, and logs it if the path has several.

    Args:
        path: output of a training, as in `checkpoint_of_training`; a push directory or a `run.root`, for the newest
            pushed version; or a model.
        choice: checkpoint of a training, as in `checkpoint_of_training`.

    Raises:
        DataError: there is no such checkpoint, or the runs of a `run.root` have pushed no model.
    """
    checkpoint = checkpoint_of_training(path, choice)
    if checkpoint is None and choice is not None:
        raise DataError(f"{path}: not the output of a training, so --checkpoint {choice} does not apply. Remove it.")
    model = checkpoint or _newest_pushed(path)
    if model is not None:
        _LOGGER.info("using the model %s", model)
    return model or str(path)


def _newest_pushed(path: str | Path) -> str | None:
    """Returns the newest version of a push directory, or of the runs below a `run.root`; None: it is neither.

    Raises:
        DataError: runs below `path` have pushed no model.
    """
    if version := newest_version(path, SAVED_MODEL_FILE):
        return version
    if not is_file(join(path, SUMMARY_JSON)):
        return newest_version(join(path, PUSHED_MODELS), SAVED_MODEL_FILE)
    configuration = join(path, CONFIG_YAML)
    configured = from_yaml(read_text(configuration), where=configuration).push.directory
    if version := newest_version(configured or join(path, PUSHED_MODELS), SAVED_MODEL_FILE):
        return version
    trained = glob(join(paths.escape(str(path)), ARTIFACTS, "*", "model_run", "*"))
    advice = f" To run the model that was not blessed, pass {max(trained, key=_number)}." if trained else ""
    raise DataError(f"{path}: its runs have pushed no model: {join(path, SUMMARY_JSON)} has the reasons.{advice}")


def checkpoint_of_training(path: str | Path, choice: CheckpointChoice = None) -> str | None:
    """Finds a checkpoint in the output of a training.

    Args:
        path: output of `train`, a pipeline's `ModelRun`, or the folder `checkpoints` in one of them.
        choice: `newest`; `best`: the best one of `train.validation`, the newest without one; a step; or None: the
            checkpoint that the training exported.  Before the export: the best one so far if the training exports
            the best, else the newest.

    Returns:
    Prefix of the checkpoint; None: `path` is not the output of a training, or has no checkpoint.

    Raises:
        DataError: no checkpoint of this step.
    """
    given = normalized(path)
    run = parent(given) if name_of(given) == CHECKPOINTS else given
    checkpoints, best = join(run, CHECKPOINTS), join(run, VALIDATION, BEST)
    newest = _newest_checkpoint(checkpoints)
    if newest is None or choice == "newest":
        return newest
    if isinstance(choice, int):
        return _of_step(choice, checkpoints, best) or _refuse_step(given, choice, checkpoints, best)
    exported = _json_field(join(run, SAVED_MODEL, EXTRA_FILES, EXPORTED_FROM_JSON), "step") if choice is None else None
    chosen = None if exported is None else _of_step(exported, best, checkpoints)
    if chosen is None and (choice == "best" or _exports_best(run)):
        # After a kill, there may be another checkpoint beside the one in the metrics file.
        chosen = _of_step(_json_field(join(best, METRICS_JSON), "step"), best)
    return chosen or newest


def _of_step(step: int | None, *folders: str) -> str | None:
    """Returns the checkpoint of a step in the first folder that has one."""
    return next(filter(_is_checkpoint, (join(folder, f"ckpt-{step}") for folder in folders)), None)


def _refuse_step(given: str, step: int, *folders: str) -> NoReturn:
    files = (file for folder in folders for file in glob(join(paths.escape(folder), f"*{_INDEX}")))
    steps = sorted({_number(file.removesuffix(_INDEX))[0] for file in files})
    raise DataError(f"{given}: no checkpoint of step {step}; steps are {', '.join(map(str, steps))}.")


def _exports_best(run: str) -> bool:
    """Returns whether a training exports its best checkpoint; True without a readable configuration."""
    with contextlib.suppress(ConfigError, DataError):
        path = join(run, CONFIG_YAML)
        return from_yaml(read_text(path), where=path).train.validation.exports_best
    return True


def _json_field(path: str, name: str) -> int | None:
    """Reads an integer of a JSON file; None: there is no such file or integer."""
    content = read_json(path) if is_file(path) else None
    value = content.get(name) if isinstance(content, dict) else None
    return value if isinstance(value, int) else None


def _of_saved_model(folder: str) -> WeightFiles:
    prefix = join(folder, "variables", "variables")
    if not _is_checkpoint(prefix):
        raise DataError(f"{folder}: a SavedModel without variables. Specify one that was exported after training.")
    labels, config = (_existing(join(folder, EXTRA_FILES, name)) for name in (LABELS_JSON, CONFIG_YAML))
    return WeightFiles(prefix, labels, config, folder)


def _newest_checkpoint(folder: str) -> str | None:
    """Returns the newest checkpoint in TensorFlow's state file; without a valid file, the one with the highest step."""
    names = list_files(folder)
    there = {name.removesuffix(_INDEX) for name in names if name.endswith(_INDEX)}
    listed = _listed_newest(join(folder, _STATE_FILE)) if there and _STATE_FILE in names else None
    name = listed if listed in there else max(there, key=_number, default=None)
    return None if name is None else join(folder, name)


def _listed_newest(path: str) -> str | None:
    """Returns the name of the newest checkpoint in TensorFlow's state file.

    `tf.train.latest_checkpoint` fails on a state file truncated by a kill or a full disk, and accesses the
    file system of any path in it.
    """
    if not is_file(path):  # such as a pipe
        return None
    with contextlib.suppress(DataError):  # not text
        named = _NEWEST.search(read_text(path))
        return None if named is None else name_of(named[1])
    return None


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
    """Computes a fingerprint of the current content of the two paths.

    Args:
        checkpoint: path of weights; the fingerprint uses its index, which has a checksum of every
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
        digest.update(bytes.fromhex(sha256(local_copy(backbone_weights))))
    return digest.hexdigest()[:16]
