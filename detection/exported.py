"""An exported SavedModel back to the detector that it was made of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import tensorflow as tf

from detection.coco.checks import check_categories
from detection.coco.json_files import cannot_read, read_json
from detection.export import ExportedFrom
from detection.models.detector import Detector
from detection.training.build import detector_from_config
from detection.training.state import variables_by_path
from schemas.artifacts import CONFIG_YAML, EXTRA_FILES, LABELS_JSON, TRAINING_JSON
from schemas.config_io import from_yaml
from schemas.errors import DataError
from schemas.optimization import WeightsKind
from schemas.serving import WEIGHTS_PART


def restore_detector(folder: str | Path) -> tuple[Detector, list[Mapping[str, Any]]]:
    """Builds the detector of a SavedModel that `detection.export` wrote, with its weights.

    Args:
        folder: the SavedModel.

    Returns:
        The detector, and the data set's categories in the order of its classes.

    Raises:
        DataError: the folder lacks its configuration, categories or weights, or they do not fit each other.
    """
    extra = Path(folder, EXTRA_FILES)
    config = from_yaml(_read(extra / CONFIG_YAML))
    categories = read_json(extra / LABELS_JSON)
    check_categories(categories if isinstance(categories, list) else [categories], where=str(extra / LABELS_JSON))
    detector = detector_from_config(config.model, num_classes=len(categories), precision=config.train.precision)
    try:
        checkpoint = tf.train.Checkpoint(**{WEIGHTS_PART: variables_by_path(detector.variables)})
        checkpoint.read(str(Path(folder, "variables", "variables"))).assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"{folder}: its weights are not those of {config.model.name}: {reason}. Export the model again."
        ) from None
    return detector, categories


def read_exported_from(folder: str | Path) -> ExportedFrom | None:
    """The checkpoint that a SavedModel was exported from.

    Args:
        folder: the SavedModel.

    Returns:
        None for a model of another tool, or one that was exported before models kept their step.

    Raises:
        DataError: the file is not as `detection.export` writes it.
    """
    path = Path(folder, EXTRA_FILES, TRAINING_JSON)
    if not path.exists():
        return None
    content = read_json(path)
    told = content if isinstance(content, dict) else {}
    step = told.get("step")
    weights = next((kind for kind in get_args(WeightsKind) if kind == told.get("weights")), None)
    if type(step) is not int or not 0 <= step < 2**63 or weights is None:
        raise DataError(f"{path}: not the step and weights of an exported model. Export it again, or copy it again.")
    return ExportedFrom(step, weights)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise cannot_read(path, error) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file ({error}). Export the model again.") from None
