"""Evaluates models on a split, without TFX: every file of an evaluation, and the verdict."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from components.coco_evaluator.beam.detection_files import read_detections, write_detections
from components.coco_evaluator.beam.evaluate import detections_folder
from components.coco_evaluator.beam.models_pass import MakePipeline, Measured, run_models
from components.coco_evaluator.beam.sample import SampleRecords
from components.coco_evaluator.request import Task
from components.coco_evaluator.tfma.eval_config import complete, params_of
from components.coco_evaluator.tfma.slice_metrics import BASELINE, CANDIDATE, write_slices
from components.coco_evaluator.tfma.slicing import empty_slicings
from components.coco_evaluator.tfma.verdict import judge_by_config
from components.coco_evaluator.thresholds import NO_THRESHOLD, Verdict, both, judge
from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import Analysis, write_analysis
from detection.coco import CocoMetrics
from detection.coco.params import Params
from detection.coco.summary import write_metrics
from detection.inference.detectors import require_model
from detection.inference.mean_losses import mean_losses
from detection.inference.model_files import read_description
from detection.inference.restore import is_described, read_exported_from, read_model_config
from detection.inference.serving_sample import write_serving_sample
from detection.reports.evaluation.page import write_evaluation_report
from detection.reports.tensorboard import draw_image_results, write_evaluation
from detection.storage.atomic import write_json
from detection.storage.files import remove_file, remove_folder
from detection.storage.mirror import working_folder
from detection.storage.paths import join
from schemas.artifacts import (
    ANALYSIS_JSON,
    BLESSING_JSON,
    DETECTIONS_JSON,
    LOGS,
    METRICS_JSON,
    REPORT_HTML,
    SERVING_SAMPLE,
)
from schemas.config.config import AnalysisConfig
from schemas.errors import ConfigError, DataError

_WORK = ".work"  # inside the output, while it is written: storage that all workers see

# What the report calls the entries of `Task.locations`.
_FACTS = {CANDIDATE: "model", BASELINE: "compared with", "data": "examples"}

_ANY = {"id": 1, "name": "any category"}  # the only category of an analysis with use_cats false

log = logging.getLogger("cocoflow.evaluator")


def losses_of(model: str, sample: SampleRecords, *, category_ids: list[int], batch_size: int) -> dict[str, float]:
    """Computes mean loss terms on the sample; empty for a model of another tool or of other categories."""
    if not is_described(model) or read_description(model) is not None:  # of another tool, or without variables
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
    folder: str | Path,
    analysis: Analysis,
    metrics: CocoMetrics,
    sample: SampleRecords,
    *,
    step: int,
    options: AnalysisConfig,
) -> None:
    """Writes metrics, losses and the worst images, at the step of the checkpoint that was exported.

    Args:
        folder: folder of the event files; remote ones are uploaded when they are written.
        analysis: analysis with losses and worst images.
        metrics: metrics on all images.
        sample: records of the images.
        step: see `trained_steps`.
        options: numbers of images and boxes to draw.

    Raises:
        DataError: the folder cannot be written.
    """
    names = {category["id"]: category["name"] for category in metrics.per_category}
    worst = analysis.worst[: options.visualizations]
    pictures = draw_image_results(worst, sample.picture, names, max_boxes=options.max_boxes)
    with working_folder(folder) as mirror:
        write_evaluation(mirror.local, step=step, metrics=metrics, losses=analysis.losses, pictures=pictures)
        mirror.push()


def trained_steps(model: str) -> int:
    """Returns the step of the checkpoint that a model was exported from.

    Args:
        model: SavedModel folder.  For a model without its step, as exported by earlier
            versions, this is the planned number of steps, with a warning; for a model of
            another tool 0.

    Raises:
        DataError: the model's step or configuration cannot be read.
    """
    exported_from = read_exported_from(model)
    if exported_from is not None:
        return exported_from.step
    if not is_described(model):
        return 0
    planned = read_model_config(model).train.fixed_steps
    log.warning(
        "%s: the model does not hold the step of its checkpoint. TensorBoard's points are written at train.steps = %d, "
        "which is wrong after early stopping or for the best checkpoint. Export the model again.",
        model,
        planned,
    )
    return planned


class Evaluation(NamedTuple):
    """The result of an evaluation.

    metrics: metrics of the candidate on all images.
    verdict: whether the candidate is blessed.
    """

    metrics: CocoMetrics
    verdict: Verdict


def evaluate_models(task: Task, folder: str | Path, *, make_pipeline: MakePipeline) -> Evaluation:
    """Runs the models, and writes metrics, detections, analysis, report, verdict, TFMA's and TensorBoard's files.

    The file of the verdict is written last: if it exists, all others are complete.  What an earlier
    try left in the folder is replaced.

    Args:
        task: models, records and options.
        folder: output folder, local or remote; all workers read and write below it.
        make_pipeline: makes a Beam pipeline.

    Raises:
        ConfigError: see `analysis_options`.
        DataError: an invalid model or record, no record, or a file that cannot be written.
    """
    config = complete(task.eval_config, has_baseline=BASELINE in task.models, iou_type=task.config.iou_type)
    params = params_of(config)
    options = analysis_options(task.config.analysis, params)
    for model in task.models.values():
        require_model(model, iou_type=params.iou_type)
    step = trained_steps(task.models[CANDIDATE])
    work = join(folder, _WORK)
    _remove_leftovers(folder, work)
    try:
        measured = run_models(task, params=params, slicing=config.slicing_specs, work=work, make_pipeline=make_pipeline)
        if not measured.overall:
            raise DataError(f"{task.records}: no record. Evaluate on a split that has images.")
        _log_metrics(measured)
        for sentence in empty_slicings(config.slicing_specs, measured.slices):
            log.warning("%s", sentence)
        write_metrics(join(folder, METRICS_JSON), measured.overall[CANDIDATE].metrics)
        if task.served_images:
            write_serving_sample(join(folder, SERVING_SAMPLE), measured.served)
        analysis = _analyse(task, params, options, measured, work, destination=join(folder, DETECTIONS_JSON))
        write_analysis(join(folder, ANALYSIS_JSON), analysis)
        verdict = _judge(task, config, measured, analysis, folder)
        write_evaluation_report(
            join(folder, REPORT_HTML),
            analysis,
            title=task.title,
            facts={_FACTS[name]: place for name, place in task.locations.items()},
            verdict=verdict,
            pictures=measured.sample.picture,
        )
        write_tensorboard(
            join(folder, LOGS),
            analysis,
            measured.overall[CANDIDATE].metrics,
            measured.sample,
            step=step,
            options=task.config.analysis,
        )
    finally:
        with contextlib.suppress(DataError):
            remove_folder(work)
    _write_verdict(folder, verdict, measured)
    return Evaluation(measured.overall[CANDIDATE].metrics, verdict)


def _remove_leftovers(folder: str | Path, work: str) -> None:
    """Removes what an earlier try left: the verdict first, as it says that the rest is complete."""
    remove_file(join(folder, BLESSING_JSON))
    for leftover in (work, join(folder, LOGS)):
        remove_folder(leftover)


def _write_verdict(folder: str | Path, verdict: Verdict, measured: Measured) -> None:
    before = measured.overall[BASELINE].metrics.by_name if BASELINE in measured.overall else None
    write_json(join(folder, BLESSING_JSON), {**verdict._asdict(), "baseline": before})
    log.info("%s: %s", "blessed" if verdict.blessed else "not blessed", "; ".join(verdict.reasons))


def _log_metrics(measured: Measured) -> None:
    for part, result in measured.overall.items():
        metrics = result.metrics.by_name
        log.info(
            "%s: %d images, %d detections, AP %.4f, AP50 %.4f",
            part,
            result.images,
            result.detections,
            metrics["AP"],
            metrics["AP50"],
        )


def _analyse(
    task: Task, params: Params, options: AnalysisConfig, measured: Measured, work: str, *, destination: str
) -> Analysis:
    """Writes the detections, and analyses the sample."""
    sample = measured.sample
    detections = write_detections(detections_folder(join(work, CANDIDATE)), destination, sample.image_ids)
    before = None
    if BASELINE in measured.overall:
        before = read_detections(detections_folder(join(work, BASELINE)), sample.image_ids)
    ground_truth = sample.ground_truth(list(task.categories))
    if not params.use_cats:
        ground_truth, detections, before = _pooled(ground_truth), _of_one_category(detections), _of_one_category(before)
    analysis = analyse(
        ground_truth,
        detections,
        params=replace(params, use_cats=True),
        total_images=measured.overall[CANDIDATE].images,
        baseline=before,
        options=options,
    )
    losses = {}
    if task.config.losses:
        ids = [category["id"] for category in task.categories]
        losses = losses_of(task.models[CANDIDATE], sample, category_ids=ids, batch_size=task.config.batch_size)
    # The verdict is on the metrics of all images, not on those of the sample.
    metrics = {part: result.metrics.by_name for part, result in measured.overall.items()}
    return replace(analysis, metrics=metrics[CANDIDATE], baseline_metrics=metrics.get(BASELINE, {}), losses=losses)


def analysis_options(options: AnalysisConfig, params: Params) -> AnalysisConfig:
    """Fits the options of the analysis to the evaluation; all images that TensorBoard draws are listed.

    Raises:
        ConfigError: an IoU threshold other than the default that is not evaluated.
    """
    changes: dict[str, Any] = {"worst": max(options.worst, options.visualizations)}
    if not any(abs(threshold - options.iou) < 1e-9 for threshold in params.iou_thresholds):
        if options.iou != AnalysisConfig().iou:
            known = ", ".join(f"{threshold:g}" for threshold in params.iou_thresholds)
            raise ConfigError(f"evaluate.analysis.iou {options.iou}: choose one of the evaluation's: {known}.")
        changes["iou"] = min(params.iou_thresholds)
    return options.model_copy(update=changes)


def _pooled(ground_truth: dict[str, Any]) -> dict[str, Any]:
    """Returns a COCO tree with one category in place of all, as COCOeval's useCats=0 compares them."""
    annotations = _of_one_category(ground_truth["annotations"])
    return {**ground_truth, "categories": [_ANY], "annotations": annotations}


def _of_one_category(entries: Any) -> Any:
    return entries and [{**entry, "category_id": _ANY["id"]} for entry in entries]


def _judge(task: Task, config: Any, measured: Measured, analysis: Analysis, folder: str | Path) -> Verdict:
    """Judges by all thresholds, and writes TFMA's files, which hold those of the `EvalConfig`."""
    judged = judge_by_config(measured.slices, config)
    models: Mapping[str, str] = {part: task.locations[part] for part in task.models}
    write_slices(
        folder,
        measured.slices,
        config=config,
        validation=judged.validation,
        models=models,
        data=task.locations["data"],
    )
    verdict = judge(analysis.metrics, analysis.baseline_metrics or None, analysis.differences, task.config.thresholds)
    if judged.validation is None:
        return verdict
    return judged.verdict if verdict == NO_THRESHOLD else both(verdict, judged.verdict)
