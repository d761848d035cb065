"""Restores detectors, and their configuration and categories, from exported SavedModels."""

from pathlib import Path
from typing import Any, get_args

import tensorflow as tf

from detection.coco.validation.checks import check_categories
from detection.inference.export import ExportedFrom
from detection.inference.saved_model import SAVED_MODEL_FILE
from detection.models.detector import Detector, variables_by_path
from detection.models.registry import detector_from_config
from detection.storage.files import exists
from detection.storage.json_files import read_json
from detection.storage.literal_paths import literal_path
from detection.storage.paths import is_remote, join
from detection.storage.reading import read_text
from detection.storage.staging import local_copy
from schemas.artifacts import CONFIG_YAML, EXTRA_FILES, LABELS_JSON, TRAINING_JSON
from schemas.config.config import Config
from schemas.config.config_io import from_yaml, load_config
from schemas.config.optimization import WeightsKind
from schemas.errors import ConfigError, DataError
from schemas.serving import WEIGHTS_PART


def restore_detector(folder: str | Path) -> tuple[Detector, list[dict[str, Any]]]:
    """Builds the detector of a SavedModel that `detection.inference.export` wrote, with its weights.

    Args:
        folder: SavedModel folder.

    Returns:
        The detector, and the categories of its data set in the order of its classes.

    Raises:
        DataError: configuration, categories or weights are missing, or do not fit each other.
    """
    config = read_model_config(folder)
    categories = read_model_categories(folder)
    if categories is None:
        raise DataError(
            f"{join(folder, EXTRA_FILES, LABELS_JSON)}: cannot read the file, as it does not exist. Export or copy "
            "the model again."
        )
    detector = detector_from_config(config.model, num_classes=len(categories), precision=config.train.precision)
    local = local_copy(folder, complete=SAVED_MODEL_FILE)
    try:
        checkpoint = tf.train.Checkpoint(**{WEIGHTS_PART: variables_by_path(detector.variables)})
        checkpoint.read(literal_path(join(local, "variables", "variables"))).assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"{folder}: its weights are not those of {config.model.name}: {reason}. Export the model again."
        ) from None
    return detector, categories


def read_model_config(folder: str | Path) -> Config:
    """Reads the configuration of the run that exported a SavedModel.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = join(folder, EXTRA_FILES, CONFIG_YAML)
    try:
        return from_yaml(read_text(path), where=path) if is_remote(path) else load_config(path)
    except ConfigError as error:
        raise DataError(f"{error} It belongs to the exported model: export or copy the model again.") from None


def read_model_categories(folder: str | Path) -> list[dict[str, Any]] | None:
    """Reads the categories that a SavedModel detects, in the order of its classes.

    Args:
        folder: SavedModel folder.

    Returns:
        COCO `categories`; None for a model of another tool, without that file.

    Raises:
        DataError: the file is damaged.
    """
    path = join(folder, EXTRA_FILES, LABELS_JSON)
    if not exists(path):
        return None
    content = read_json(path)
    categories = content if isinstance(content, list) else [content]
    check_categories(categories, where=path)
    return categories


def read_exported_from(folder: str | Path) -> ExportedFrom | None:
    """Returns the checkpoint from which a SavedModel was exported.

    Args:
        folder: SavedModel folder.

    Returns:
        None for a model of another tool, or an old one without this file.

    Raises:
        DataError: the file is damaged.
    """
    path = join(folder, EXTRA_FILES, TRAINING_JSON)
    if not exists(path):
        return None
    content = read_json(path)
    values = content if isinstance(content, dict) else {}
    step = values.get("step")
    weights = next((kind for kind in get_args(WeightsKind) if kind == values.get("weights")), None)
    if type(step) is not int or not 0 <= step < 2**63 or weights is None:
        raise DataError(f"{path}: not the step and weights of an exported model. Export it again, or copy it again.")
    return ExportedFrom(step, weights)
