"""An evaluation as training is followed: mean losses, and TensorBoard's scalars and pictures."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from components.coco_evaluator.sample import Sample
from detection.coco import CocoMetrics
from detection.coco.analysis.findings import Analysis
from detection.coco.tensorboard import side_by_side, write_scalars_and_images
from detection.drawing import Picture, eight_bit_rgb
from detection.exported import read_exported_from
from detection.mean_losses import mean_losses
from schemas.artifacts import CONFIG_YAML, EXTRA_FILES
from schemas.config_io import from_yaml
from schemas.errors import DataError

_PICTURES = 10

log = logging.getLogger("cocoflow.evaluator")


def losses_of(model: str, sample: Sample, *, category_ids: list[int], batch_size: int) -> dict[str, float]:
    """Mean loss terms of a model on the sample; none where it is of another tool or other categories."""
    if not _config_file(model).is_file():
        return {}
    try:
        return mean_losses(model, sample.records(), category_ids=category_ids, batch_size=batch_size)
    except DataError as error:
        log.warning("no losses: %s", error)
        return {}


def write_tensorboard(folder: Path, analysis: Analysis, metrics: CocoMetrics, sample: Sample, *, step: int) -> None:
    """Writes figures, losses and the worst images, at the step of the checkpoint that was exported.

    Args:
        folder: for event files.
        analysis: its losses and worst images.
        metrics: of all images.
        sample: has the images.
        step: see `trained_steps`.

    Raises:
        DataError: the folder cannot be written.
    """
    names = {category["id"]: category["name"] for category in metrics.per_category}
    write_scalars_and_images(
        folder,
        step=step,
        figures=metrics.figures,
        iou_type=metrics.iou_type,
        max_dets=metrics.max_dets,
        per_category={category["name"]: category["AP"] for category in metrics.per_category},
        losses=analysis.losses,
        pictures=list(_pictures(analysis, sample, names)),
    )


def trained_steps(model: str) -> int:
    """The step of the checkpoint that a model was exported from.

    Args:
        model: SavedModel folder.  For a model that does not hold its step, as they were
            exported before, the planned number of steps is taken, with a warning; for a
            model of another tool 0.

    Raises:
        DataError: the model's step or configuration cannot be read.
    """
    exported_from = read_exported_from(model)
    if exported_from is not None:
        return exported_from.step
    config = _config_file(model)
    if not config.is_file():
        return 0
    planned = from_yaml(config.read_text(encoding="utf-8")).train.steps
    log.warning(
        "%s: the model does not hold the step of its checkpoint. TensorBoard's points are written at train.steps = %d, "
        "which is wrong after early stopping or for the best checkpoint. Export the model again.",
        model,
        planned,
    )
    return planned


def _pictures(analysis: Analysis, sample: Sample, names: dict[int, str]) -> Iterator[Picture]:
    for found in analysis.worst[:_PICTURES]:
        image = sample.picture(found.image_id)
        if image is not None:
            yield side_by_side(np.asarray(eight_bit_rgb(image)), found, names)


def _config_file(model: str) -> Path:
    return Path(model, EXTRA_FILES, CONFIG_YAML)
