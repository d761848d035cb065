"""An evaluation as training is followed: mean losses, and TensorBoard's scalars and pictures."""

import logging
from pathlib import Path

from components.coco_evaluator.beam.sample import Sample
from detection.analysis.analysis_file import Analysis
from detection.analysis.options import AnalysisOptions
from detection.coco import CocoMetrics
from detection.inference.mean_losses import mean_losses
from detection.inference.restore import read_exported_from, read_model_config
from detection.reports.tensorboard import draw_findings, write_evaluation
from schemas.artifacts import CONFIG_YAML, EXTRA_FILES
from schemas.errors import DataError

log = logging.getLogger("cocoflow.evaluator")


def losses_of(model: str, sample: Sample, *, category_ids: list[int], batch_size: int) -> dict[str, float]:
    """Mean loss terms of a model on the sample; none where it is of another tool or other categories."""
    if not _config_file(model).is_file():
        return {}
    try:
        return mean_losses(
            model,
            sample.records(),
            category_ids=category_ids,
            batch_size=batch_size,
            max_instances=read_model_config(model).model.max_instances,
        )
    except DataError as error:
        log.warning("no losses: %s", error)
        return {}


def write_tensorboard(
    folder: Path, analysis: Analysis, metrics: CocoMetrics, sample: Sample, *, step: int, options: AnalysisOptions
) -> None:
    """Writes figures, losses and the worst images, at the step of the checkpoint that was exported.

    Args:
        folder: for event files.
        analysis: its losses and worst images.
        metrics: of all images.
        sample: has the images.
        step: see `trained_steps`.
        options: how many images and boxes are drawn.

    Raises:
        DataError: the folder cannot be written.
    """
    names = {category["id"]: category["name"] for category in metrics.per_category}
    worst = analysis.worst[: options.visualizations]
    pictures = draw_findings(worst, sample.picture, names, max_boxes=options.max_boxes)
    write_evaluation(folder, step=step, metrics=metrics, losses=analysis.losses, pictures=pictures)


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
    if not _config_file(model).is_file():
        return 0
    planned = read_model_config(model).train.steps
    log.warning(
        "%s: the model does not hold the step of its checkpoint. TensorBoard's points are written at train.steps = %d, "
        "which is wrong after early stopping or for the best checkpoint. Export the model again.",
        model,
        planned,
    )
    return planned


def _config_file(model: str) -> Path:
    return Path(model, EXTRA_FILES, CONFIG_YAML)
