"""Evaluates models on a split, without TFX: every file of an evaluation, and the verdict."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from components.coco_evaluator.beam.detection_files import read_detections, write_detections
from components.coco_evaluator.beam.models_pass import EvaluationRequest, Measured, detections_folder, run_models
from components.coco_evaluator.beam.sample import SampleRecords
from components.coco_evaluator.measured_types import IMAGES, choose_params, count_records, require_iou_types
from components.coco_evaluator.tfma.eval_config import complete, params_of
from components.coco_evaluator.tfma.slice_metrics import BASELINE, CANDIDATE, OVERALL, describe, write_slices
from components.coco_evaluator.tfma.slicing import empty_slicings
from components.coco_evaluator.tfma.verdict import judge_by_config, without_thresholds
from components.coco_evaluator.thresholds import NO_THRESHOLD, Verdict, combine_verdicts, judge
from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import Analysis, write_analysis
from detection.coco import CocoMetrics
from detection.coco.params import Params
from detection.coco.summary import metrics_to_json
from detection.inference.formats.model_files import read_description
from detection.inference.mean_losses import mean_losses
from detection.inference.restore import is_described, read_exported_from, read_model_config
from detection.inference.serving_sample import write_serving_sample
from detection.reports.evaluation.page import write_evaluation_report
from detection.reports.tensorboard import draw_image_results, write_evaluation
from detection.storage.atomic import write_json
from detection.storage.files import remove_file, remove_folder
from detection.storage.lock import open_working_folder
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
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import ConfigError, DataError
from schemas.metrics import IouType, main_metrics, metrics_by_iou_type

_COUNTS = "counts.json"
_WORK = ".work"  # inside the output, while it is written: storage that all workers see

# Row titles of `EvaluationRequest.locations` in the report.
_FACTS = {CANDIDATE: "model", BASELINE: "compared with", "data": "examples"}

_ANY = {"id": 1, "name": "any category"}  # the only category of an analysis with use_cats false

Value = TypeVar("Value")

log = logging.getLogger("cocoflow.evaluator")


def compute_losses(model: str, sample: SampleRecords, category_ids: list[int], *, batch_size: int) -> dict[str, float]:
    """Computes mean loss terms on the sample; empty for a model of another tool or of other categories."""
    if not is_described(model) or read_description(model) is not None:  # from another tool, or without variables
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
    metrics: Sequence[CocoMetrics],
    sample: SampleRecords,
    *,
    step: int,
    options: AnalysisConfig,
) -> None:
    """Writes metrics, losses and the worst images, at the step of the checkpoint that was exported.

    The images are those of the analysis of masks, else of keypoints, if there is one.

    Args:
        folder: folder of the event files; remote ones are uploaded when they are written.
        analysis: analysis with losses and worst images.
        metrics: metrics on all images of each IoU type.
        sample: records of the images.
        step: number of training steps of the exported checkpoint; 0 of a model that does not hold it.
        options: numbers of images and boxes to draw.

    Raises:
        DataError: the folder cannot be written.
    """
    names = {category["id"]: category["name"] for category in metrics[0].per_category}
    by_type = {one.iou_type: one for one in analysis.of_all_types}
    shown = by_type.get("segm", by_type.get("keypoints", analysis))
    worst = shown.worst[: options.visualizations]
    pictures = draw_image_results(worst, sample.picture, names, max_boxes=options.max_boxes)
    with open_working_folder(folder) as mirror:
        write_evaluation(mirror.local, step=step, metrics=metrics, losses=analysis.losses, pictures=pictures)
        mirror.push()


class Evaluation(NamedTuple):
    """The result of an evaluation.

    metrics: metrics of the candidate on all images by each IoU type.
    slices: the metrics file's entries of the slices.
    verdict: whether the candidate is blessed.
    """

    metrics: list[CocoMetrics]
    slices: list[dict[str, Any]]
    verdict: Verdict


def evaluate_models(request: EvaluationRequest, folder: str | Path, *, beam_args: Sequence[str]) -> Evaluation:
    """Runs the models, and writes metrics, detections, analysis, report, verdict, TFMA's and TensorBoard's files.

    The file of the verdict is written last: if it exists, all others are complete.  What an earlier
    try left in the folder is replaced.

    Args:
        request: models, records and options.
        folder: output folder, local or remote; all workers read and write below it.
        beam_args: `run.beam_args`, the options of the Beam pipelines.

    Raises:
        ConfigError: the IoU threshold of the analysis is not evaluated.
        DataError: an invalid model or record, no record, or a file that cannot be written.
    """
    given = require_iou_types(request.models, request.config, request.eval_config)
    options = analysis_options(request.config.analysis, params_of(complete(request.eval_config)))
    exported_from = read_exported_from(request.models[CANDIDATE])
    work = join(folder, _WORK)
    _remove_leftovers(folder, work)
    try:
        params, config, measured = _measure(request, given, work, beam_args)
        metrics = [result.metrics for result in measured.overall[CANDIDATE].values()]
        slices = _slices_to_json(measured)
        write_json(join(folder, METRICS_JSON), metrics_to_json(*metrics) | {"slices": slices})
        if request.served_images:
            write_serving_sample(join(folder, SERVING_SAMPLE), measured.served)
        analysis = _analyse(request, params, options, measured, work, destination=join(folder, DETECTIONS_JSON))
        write_analysis(join(folder, ANALYSIS_JSON), analysis)
        verdict = _judge(request, config, measured, analysis, folder)
        images = measured.slices[OVERALL][CANDIDATE].images
        judged = f"judged on {images:,} images of {request.config.split}"
        checkpoint = judged if exported_from is None else f"{exported_from}; {judged}"
        write_evaluation_report(
            join(folder, REPORT_HTML),
            analysis,
            title=f"Evaluation on {request.config.split}",
            facts={_FACTS[name]: place for name, place in request.locations.items()} | {"checkpoint": checkpoint},
            slices=slices,
            verdict=verdict,
            pictures=measured.sample.picture,
        )
        write_tensorboard(
            join(folder, LOGS),
            analysis,
            metrics,
            measured.sample,
            step=0 if exported_from is None else exported_from.step,
            options=request.config.analysis,
        )
    finally:
        with contextlib.suppress(DataError):
            remove_folder(work)
    _write_verdict(folder, verdict, measured, checkpoint=checkpoint)
    return Evaluation(metrics, slices, verdict)


def _measure(
    request: EvaluationRequest, given: Mapping[str, Sequence[IouType]], work: str, beam_args: Sequence[str]
) -> tuple[list[Params], Any, Measured]:
    """Chooses the IoU types and runs the models; returns the params by type, the complete `EvalConfig`, the results."""
    counts = cache(lambda: count_records(request.records, join(work, _COUNTS), beam_args))
    params = choose_params(request, given[CANDIDATE], counts)
    config = complete(request.eval_config, has_baseline=BASELINE in request.models, iou_type=params[0].iou_type)
    measured = run_models(
        request,
        params=params,
        given=given,
        images=counts()[IMAGES] if request.images is None else request.images,
        slicing=config.slicing_specs,
        work=work,
        beam_args=beam_args,
    )
    if not measured.overall:
        raise DataError(f"{request.records}: no record. Evaluate on a split that has images.")
    _log_metrics(measured)
    for sentence in empty_slicings(config.slicing_specs, measured.slices):
        log.warning("%s", sentence)
    return params, config, measured


def _slices_to_json(measured: Measured) -> list[dict[str, Any]]:
    """Returns the slices besides that of all images: name, number of images, metrics of the candidate."""
    return [
        {
            "slice": describe(key),
            "images": models[CANDIDATE].images,
            "metrics": metrics_by_iou_type(models[CANDIDATE].metrics),
        }
        for key, models in measured.slices.items()
        if key != OVERALL
    ]


def _remove_leftovers(folder: str | Path, work: str) -> None:
    """Removes what an earlier try left: the verdict first, as it says that the rest is complete."""
    remove_file(join(folder, BLESSING_JSON))
    for leftover in (work, join(folder, LOGS)):
        remove_folder(leftover)


def _write_verdict(folder: str | Path, verdict: Verdict, measured: Measured, *, checkpoint: str) -> None:
    baseline = measured.slices[OVERALL].get(BASELINE)
    before = None if baseline is None else metrics_by_iou_type(baseline.metrics)
    write_json(join(folder, BLESSING_JSON), {**verdict._asdict(), "baseline": before, "checkpoint": checkpoint})
    log.info("%s: %s", "blessed" if verdict.blessed else "not blessed", "; ".join(verdict.reasons))


def _log_metrics(measured: Measured) -> None:
    for part, (images, metrics, _) in measured.slices[OVERALL].items():
        detections = next(iter(measured.overall[part].values())).detections
        listed = ", ".join(f"{name} {metrics[name]:.4f}" for name in main_metrics(metrics))
        log.info("%s: %s", part, f"{images:,} images, {detections:,} detections, {listed}")


def _analyse(
    request: EvaluationRequest,
    params: Sequence[Params],
    options: AnalysisConfig,
    measured: Measured,
    work: str,
    *,
    destination: str,
) -> Analysis:
    """Writes the detections, and analyses the sample by each IoU type."""
    sample = measured.sample
    detections = write_detections(detections_folder(work, CANDIDATE), destination, sample.image_ids)
    before = None
    if BASELINE in measured.overall:
        before = read_detections(detections_folder(work, BASELINE), sample.image_ids)
    ground_truth = sample.ground_truth(list(request.categories))
    if not params[0].use_cats:
        ground_truth, detections, before = (
            _pool_categories(ground_truth),
            _of_one_category(detections),
            _of_one_category(before),
        )
        # Without `use_cats`, all categories have the same sigmas, which are those of the only one here.
        params = [
            replace(one, use_cats=True, oks_sigmas=next(iter(one.sigmas_of.values()), None), sigmas_of={})
            for one in params
        ]
    analyses = []
    for one in params:
        # The verdict is on the metrics of all images, not on those of the sample.
        results = {part: by_type.get(one.iou_type) for part, by_type in measured.overall.items()}
        metrics = {part: result.metrics.by_name for part, result in results.items() if result is not None}
        analysis = analyse(
            ground_truth,
            detections,
            params=one,
            total_images=measured.slices[OVERALL][CANDIDATE].images,
            baseline=before if BASELINE in metrics else None,
            options=options,
        )
        analyses.append(replace(analysis, metrics=metrics[CANDIDATE], baseline_metrics=metrics.get(BASELINE, {})))
    losses = {}
    if request.config.losses:
        ids = [category["id"] for category in request.categories]
        losses = compute_losses(
            request.models[CANDIDATE], sample, category_ids=ids, batch_size=request.config.batch_size
        )
    return replace(analyses[0], losses=losses, others=analyses[1:])


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


def _pool_categories(ground_truth: dict[str, Any]) -> dict[str, Any]:
    """Returns a COCO tree with one category in place of all, as COCOeval's useCats=0 compares them."""
    annotations = _of_one_category(ground_truth["annotations"])
    return {**ground_truth, "categories": [_ANY], "annotations": annotations}


def _of_one_category(entries: Any) -> Any:
    return entries and [{**entry, "category_id": _ANY["id"]} for entry in entries]


def _judge(
    request: EvaluationRequest, config: Any, measured: Measured, analysis: Analysis, folder: str | Path
) -> Verdict:
    """Judges by all thresholds, and writes TFMA's files, which hold those of the `EvalConfig`."""
    overall = {part: metrics.metrics for part, metrics in measured.slices[OVERALL].items()}
    verdict = judge(
        _add_prefix(overall[CANDIDATE], analysis.iou_type),
        _add_prefix(overall[BASELINE], analysis.iou_type) if BASELINE in overall else None,
        _add_prefix(analysis.all_differences, analysis.iou_type),
        request.config.thresholds,
    )
    judged = judge_by_config(measured.slices, config)
    if judged.validation is not None:
        verdict = judged.verdict if verdict == NO_THRESHOLD else combine_verdicts(verdict, judged.verdict)
    models: Mapping[str, str] = {part: request.locations[part] for part in request.models}
    write_slices(
        folder,
        measured.slices,
        config=config,
        validation=judged.validation or without_thresholds(blessed=verdict.blessed),
        models=models,
        data=request.locations["data"],
    )
    return verdict


def _add_prefix(values: Mapping[str, Value], iou_type: str) -> dict[str, Value]:
    """Adds names such as `bbox/AP` for the metrics of the first IoU type, `AP`: thresholds take both."""
    return {**values, **{f"{iou_type}/{name}": value for name, value in values.items() if "/" not in name}}
