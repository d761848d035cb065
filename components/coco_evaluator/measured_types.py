"""Chooses the IoU types of an evaluation and their params, from the configuration, the models and the records."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import apache_beam as beam

from components.beam.pipelines import make_pipeline
from components.coco_evaluator.beam.models_pass import EvaluationRequest, read_records
from components.coco_evaluator.tfma.eval_config import check_our_metrics
from components.coco_evaluator.tfma.metric_options import MetricOptions
from detection.coco.iou_types import choose_iou_types, count_annotations, missing_types
from detection.coco.keypoint_sigmas import fit_keypoints
from detection.coco.params import Params
from detection.inference.detectors import model_iou_types
from detection.inference.results import lacks_output
from detection.input_pipeline.evaluation_records import parse_record
from detection.storage.atomic import write_json
from detection.storage.json_files import read_json
from schemas.config.evaluate import EvaluateConfig
from schemas.metrics import IouType

IMAGES = "images"

log = logging.getLogger("cocoflow.evaluator")


def count_records(records: str, path: str, beam_args: Sequence[str]) -> Counter[str]:
    """Returns numbers of annotations by what can be compared of them, and under `IMAGES` that of images.

    Args:
        records: folder or pattern of the TFRecord files.
        path: path of a file for this alone, which a worker writes.
        beam_args: `run.beam_args`, the options of the Beam pipeline.
    """
    with make_pipeline(beam_args) as pipeline:
        (
            pipeline
            | "Read" >> read_records(records)
            | "Count" >> beam.Map(_count)
            | "Sum" >> beam.CombineGlobally(partial(sum, start=Counter()))
            | "Write" >> beam.Map(partial(write_json, path))
        )
    return Counter(read_json(path))


def _count(record: bytes) -> Counter[str]:
    return count_annotations(parse_record(record).annotations) + Counter({IMAGES: 1})


def require_iou_types(
    models: Mapping[str, str], config: EvaluateConfig, eval_config: Any | None
) -> dict[str, tuple[IouType, ...]]:
    """Requires that models give what the configuration requests.

    Args:
        models: model folder by part in the evaluation.
        config: options of the evaluation.
        eval_config: `tfma.EvalConfig`; None: no such config.

    Returns:
        The IoU types by which each model's detections can be evaluated.

    Raises:
        DataError: no model, or a model without masks or keypoints that are requested.
    """
    given = {part: model_iou_types(model) for part, model in models.items()}
    requested = [*_read_options(eval_config).named_iou_types, *(config.iou_types or ())]
    for part, iou_types in given.items():
        for iou_type in requested:
            if iou_type not in iou_types:
                raise lacks_output(iou_type, where=models[part])
    return given


def choose_params(
    request: EvaluationRequest, given: Sequence[IouType], counts: Callable[[], Counter[str]]
) -> list[Params]:
    """Chooses the params of each IoU type to evaluate; the first type is that of metrics without a prefix.

    It is that of the `EvalConfig`, if its metrics name one; their other options hold for all types.

    Args:
        request: the evaluation.
        given: IoU types by which the candidate's detections can be evaluated.
        counts: returns what `count_records` counts; called if the configuration leaves the types open.
    """
    options = _read_options(request.eval_config)
    chosen = choose_iou_types(request.config.iou_types, given=given, count=counts)
    if request.config.iou_types is None and len(given) > 1:
        for sentence in missing_types(counts(), chosen, given=given):
            log.warning("%s", sentence)
    metrics = dict.fromkeys([*options.metrics, *request.config.metrics])
    sigmas = options.oks_sigmas or request.config.oks_sigmas
    use_cats = options.use_cats and request.config.use_cats
    options = options.model_copy(update={"metrics": tuple(metrics), "oks_sigmas": sigmas, "use_cats": use_cats})
    ordered = dict.fromkeys([*options.named_iou_types, *chosen])
    types = [iou_type for iou_type in ordered if not (options.lvis and iou_type == "keypoints")]
    return [fit_keypoints(options.params(iou_type), request.categories) for iou_type in types]


def _read_options(eval_config: Any | None) -> MetricOptions:
    return MetricOptions() if eval_config is None else check_our_metrics(eval_config, "EvalConfig")
