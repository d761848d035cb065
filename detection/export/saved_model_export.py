"""Exports detectors as SavedModels that need only TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.inference.formats.score_curves import SCORE_CURVES_FILE, ScoreCurves
from detection.inference.formats.serving_module import ServingModule
from detection.inference.restore import ExportedFrom
from detection.models.detector import Detector
from detection.storage.atomic import write_bytes, write_text
from detection.storage.checksums import write_checksums
from schemas.artifacts import CONFIG_YAML, EXPORTED_FROM_JSON, EXTRA_FILES, LABELS_JSON
from schemas.errors import disk_refusals_explained


def export_saved_model(
    detector: Detector,
    folder: Path,
    *,
    categories: Sequence[Mapping[str, Any]],
    config_yaml: str,
    exported_from: ExportedFrom | None = None,
    batch_size: int | None = None,
    nms: bool = True,
    od_api_outputs: bool = False,
    score_curves: ScoreCurves | None = None,
) -> None:
    """Writes a SavedModel with the signatures of `ServingModule`.

    Args:
        detector: detector with the weights to save.
        folder: empty folder.
        categories: categories of the data set, in the order of the network's classes.
        config_yaml: configuration of the run.
        exported_from: checkpoint of these weights; None: unknown.
        batch_size: as for `ServingModule`.
        nms: as for `ServingModule`.
        od_api_outputs: as for `ServingModule`.
        score_curves: calibration of the scores; None: scores are not calibrated.

    Raises:
        CocoflowError: the disk is full or read-only.
    """
    module = ServingModule(
        detector, categories, batch_size=batch_size, nms=nms, od_api_outputs=od_api_outputs, curves=score_curves
    )
    advice = (
        "The checkpoints are kept. Free space, or make the disk writable, and repeat the command: it exports without "
        "training again."
    )
    with disk_refusals_explained("the SavedModel", advice=advice):
        tf.saved_model.save(module, str(folder), signatures=module.signatures)
    write_checksums(folder)
    write_extra_files(
        folder, categories=categories, config_yaml=config_yaml, exported_from=exported_from, score_curves=score_curves
    )


def write_extra_files(
    folder: Path,
    *,
    categories: Sequence[Mapping[str, Any]],
    config_yaml: str,
    exported_from: ExportedFrom | None,
    score_curves: ScoreCurves | None = None,
) -> None:
    """Writes the description of a model to `assets.extra/`, so that every copy contains it.

    Args:
        folder: folder of an exported model.
        categories: as for `export_saved_model`.
        config_yaml: as for `export_saved_model`.
        exported_from: as for `export_saved_model`.
        score_curves: as for `export_saved_model`.
    """
    write_text(folder / EXTRA_FILES / CONFIG_YAML, config_yaml)
    write_text(folder / EXTRA_FILES / LABELS_JSON, json.dumps(list(categories), indent=2) + "\n")
    if exported_from is not None:
        write_text(folder / EXTRA_FILES / EXPORTED_FROM_JSON, json.dumps(exported_from.as_json()) + "\n")
    if score_curves is not None:
        write_bytes(folder / SCORE_CURVES_FILE, score_curves.as_bytes())
