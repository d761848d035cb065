"""Evaluates models on a split, without TFX: every file of an evaluation, and the verdict."""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from components.coco_evaluator.beam.detection_files import read_detections, write_detections
from components.coco_evaluator.beam.models_pass import MakePipeline, Measured, run_models
from components.coco_evaluator.beam.transforms import detections_folder
from components.coco_evaluator.charts import losses_of, trained_steps, write_tensorboard
from components.coco_evaluator.request import Task
from components.coco_evaluator.tfma.eval_config import complete, settings_of
from components.coco_evaluator.tfma.output import write_slices
from components.coco_evaluator.tfma.slice_figures import BASELINE, CANDIDATE
from components.coco_evaluator.tfma.slicing import empty_slicings
from components.coco_evaluator.tfma.verdict import judge_by_config
from components.coco_evaluator.thresholds import Verdict, both, judge
from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import write_analysis
from detection.analysis.findings import Analysis
from detection.analysis.options import AnalysisOptions
from detection.coco import CocoMetrics
from detection.coco.params import Settings
from detection.coco.summary import write_metrics
from detection.inference.saved_model import require_saved_model
from detection.reports.evaluation.page import write_evaluation_report
from detection.storage.atomic import write_json
from schemas.artifacts import ANALYSIS_JSON, BLESSING_JSON, DETECTIONS_JSON, LOGS, METRICS_JSON, REPORT_HTML
from schemas.errors import DataError

_WORK = ".work"  # inside the output, while it is written: storage that all workers see

# What the report calls the entries of `Task.locations`.
_FACTS = {CANDIDATE: "model", BASELINE: "compared with", "data": "examples"}

_ANY = {"id": 1, "name": "any category"}  # the only category of an analysis with use_cats false

log = logging.getLogger("cocoflow.evaluator")


class Evaluation(NamedTuple):
    """What came out.

    metrics: of the candidate, on all images.
    verdict: whether it is blessed.
    """

    metrics: CocoMetrics
    verdict: Verdict


def evaluate_models(task: Task, folder: Path, *, make_pipeline: MakePipeline) -> Evaluation:
    """Runs the models, and writes metrics, detections, analysis, report, verdict, TFMA's and TensorBoard's files.

    The verdict's file comes last: where it is, all others are whole.

    Args:
        task: what is asked for.
        folder: seen by all workers.
        make_pipeline: of the Beam pipelines.

    Raises:
        ConfigError: an `EvalConfig` that is not honoured.
        DataError: a model or a record that cannot be used, or none; a file that cannot
            be written.
    """
    config = complete(task.eval_config, has_baseline=BASELINE in task.models)
    settings = settings_of(config)
    for model in task.models.values():
        require_saved_model(model, iou_type=settings.iou_type)
    step = trained_steps(task.models[CANDIDATE])
    work = folder / _WORK
    work.mkdir(parents=True, exist_ok=True)
    try:
        measured = run_models(
            task, settings=settings, slicing=config.slicing_specs, work=work, make_pipeline=make_pipeline
        )
        if not measured.overall:
            raise DataError(f"{task.records}: no record. Evaluate on a split that has images.")
        _tell(measured)
        for sentence in empty_slicings(config.slicing_specs, measured.slices):
            log.warning("%s", sentence)
        write_metrics(folder / METRICS_JSON, measured.overall[CANDIDATE].metrics)
        analysis = _analyse(task, settings, measured, work, goal=folder / DETECTIONS_JSON)
        write_analysis(folder / ANALYSIS_JSON, analysis)
        verdict = _judge(task, config, measured, analysis, folder)
        write_evaluation_report(
            folder / REPORT_HTML,
            analysis,
            title=task.title,
            facts={_FACTS[name]: place for name, place in task.locations.items()},
            verdict=verdict,
            pictures=measured.sample.picture,
        )
        write_tensorboard(
            folder / LOGS,
            analysis,
            measured.overall[CANDIDATE].metrics,
            measured.sample,
            step=step,
            options=task.analysis,
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    before = measured.overall[BASELINE].metrics.figures if BASELINE in measured.overall else None
    write_json(folder / BLESSING_JSON, {**verdict._asdict(), "baseline": before})
    log.info("%s: %s", "blessed" if verdict.blessed else "not blessed", "; ".join(verdict.reasons))
    return Evaluation(measured.overall[CANDIDATE].metrics, verdict)


def _tell(measured: Measured) -> None:
    for part, result in measured.overall.items():
        figures = result.metrics.figures
        log.info(
            "%s: %d images, %d detections, AP %.4f, AP50 %.4f",
            part,
            result.images,
            result.detections,
            figures["AP"],
            figures["AP50"],
        )


def _analyse(task: Task, settings: Settings, measured: Measured, work: Path, *, goal: Path) -> Analysis:
    """Writes the detections, and analyses those of the sample."""
    sample = measured.sample
    found = write_detections(detections_folder(work / CANDIDATE), goal, sample.image_ids)
    before = None
    if BASELINE in measured.overall:
        before = read_detections(detections_folder(work / BASELINE), sample.image_ids)
    truth = sample.ground_truth(list(task.categories))
    if not settings.use_cats:
        truth, found, before = _pooled(truth), _of_one_category(found), _of_one_category(before)
    analysis = analyse(
        truth,
        found,
        settings=replace(settings, use_cats=True),
        total_images=measured.overall[CANDIDATE].images,
        baseline=before,
        options=_options(task.analysis, settings),
    )
    losses = {}
    if task.losses:
        ids = [category["id"] for category in task.categories]
        losses = losses_of(task.models[CANDIDATE], sample, category_ids=ids, batch_size=task.batch_size)
    # The sample's figures are near those of all images, but these are what is judged.
    figures = {part: result.metrics.figures for part, result in measured.overall.items()}
    return replace(analysis, figures=figures[CANDIDATE], before=figures.get(BASELINE, {}), losses=losses)


def _pooled(truth: dict[str, Any]) -> dict[str, Any]:
    """A COCO tree with one category in place of all, which COCOeval's useCats=0 compares as if there were one."""
    return {**truth, "categories": [_ANY], "annotations": _of_one_category(truth["annotations"])}


def _of_one_category(entries: Any) -> Any:
    return entries and [{**entry, "category_id": _ANY["id"]} for entry in entries]


def _options(options: AnalysisOptions, settings: Settings) -> AnalysisOptions:
    """Right and wrong are told apart at a threshold that is evaluated; all that TensorBoard draws is listed."""
    options = replace(options, worst=max(options.worst, options.visualizations))
    if any(abs(threshold - options.iou) < 1e-9 for threshold in settings.iou_thresholds):
        return options
    return replace(options, iou=min(settings.iou_thresholds))


def _judge(task: Task, config: Any, measured: Measured, analysis: Analysis, folder: Path) -> Verdict:
    """Judges by all thresholds, and writes TFMA's files, which tell of those of the `EvalConfig`."""
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
    verdict = judge(analysis.figures, analysis.before or None, analysis.differences, task.thresholds)
    if judged.validation is None:
        return verdict
    return judged.verdict if not task.thresholds else both(verdict, judged.verdict)
