"""Exports detectors as SavedModels that need only TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import tensorflow as tf
from pydantic import Field

from detection.inference.export.serving_module import ServingModule
from detection.inference.score_curves import SCORE_CURVES_FILE, ScoreCurves
from detection.models.detector import Detector
from detection.storage.atomic import write_bytes, write_text
from detection.storage.checksums import write_checksums
from schemas.artifacts import CONFIG_YAML, EXPORTED_FROM_JSON, EXTRA_FILES, LABELS_JSON, TRAIN_SPLIT
from schemas.config.train.optimization import WeightsKind
from schemas.errors import disk_refusals_explained


class ChosenOn(NamedTuple):
    """Images that the best checkpoint of a training was selected on.

    split: name of the split; `train`: a part of it excluded from training.
    images: number of images.
    metric: metric of the selection.
    """

    split: str
    images: int
    metric: str

    def __str__(self) -> str:
        part = "training images that were not trained on" if self.split == TRAIN_SPLIT else f"images of {self.split}"
        return f"chosen by {self.metric} on {self.images:,} {part}"

    @classmethod
    def from_json(cls, content: Any) -> Self | None:
        """Reads the result of `_asdict` from a JSON file; None: the content is invalid."""
        values = content if isinstance(content, dict) else {}
        split, images, metric = (values.get(name) for name in cls._fields)
        if isinstance(split, str) and isinstance(images, int) and isinstance(metric, str):
            return cls(split, images, metric)
        return None


class ExportedFrom(NamedTuple):
    """The checkpoint of an exported SavedModel.

    step: number of training steps.
    weights: `ema`: the EMA weights; `raw`: the weights that the optimizer updated.
    chosen_on: images that the checkpoint was selected on; None: not a best checkpoint.
    """

    step: Annotated[int, Field(ge=0, lt=2**63, strict=True)]
    weights: WeightsKind
    chosen_on: ChosenOn | None = None

    def __str__(self) -> str:
        weights = f"{self.weights} weights of step {self.step:,}"
        return weights if self.chosen_on is None else f"{weights}, {self.chosen_on}"

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `schemas.artifacts.EXPORTED_FROM_JSON`."""
        chosen_on = {"chosen_on": self.chosen_on._asdict()} if self.chosen_on else {}
        return {"step": self.step, "weights": self.weights, **chosen_on}


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
