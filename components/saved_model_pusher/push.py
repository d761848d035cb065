"""A checked push: the model with what its evaluation adds, validated, published, and old versions removed."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from components.saved_model_pusher.phone_file import phone_file
from components.saved_model_pusher.publish import publish
from components.saved_model_pusher.pushed_versions import ORIGIN_FILE, PHONE_FILE, WARMUP_FILE
from components.saved_model_pusher.retention import remove_old_versions
from components.saved_model_pusher.validate import Validation, validate
from components.saved_model_pusher.warmup import warmup_records
from detection.analysis.analysis_file import Analysis, OperatingPoint, read_analysis
from detection.inference.restore import is_described, read_model_categories
from detection.inference.score_thresholds import (
    SCORE_THRESHOLDS_FILE,
    CategoryThreshold,
    ScoreThresholds,
    Threshold,
)
from detection.inference.serving_sample import ServedImage, read_serving_sample
from detection.storage.files import is_file
from detection.storage.paths import join, parent
from schemas.artifacts import ANALYSIS_JSON, SERVING_SAMPLE
from schemas.config.config import PushConfig
from schemas.errors import DataError

_LOGGER = logging.getLogger("cocoflow.pusher")


@dataclass(frozen=True)
class PushRequest:
    """A model to push.

    saved_model: folder of the SavedModel.
    push_directory: folder of the versions.
    evaluation: folder of the model's ModelEvaluation; None: the model was not evaluated, so it is pushed as
        it is, without validation.
    options: options of the push; `directory` has no effect.
    score_thresholds: the pushed model gets the score thresholds of the evaluation.
    origin: content of `ORIGIN_FILE` in the version; None: there is none.
    """

    saved_model: str
    push_directory: str
    evaluation: str | None
    options: PushConfig
    score_thresholds: bool = True
    origin: Mapping[str, str] | None = None


class Pushed(NamedTuple):
    """A push.

    version: path of the version.
    validation: what was compared; None: nothing, as validation is off, or the version was there already.
    removed: paths of the old versions that were removed.
    """

    version: str
    validation: Validation | None
    removed: tuple[str, ...] = ()


def push(request: PushRequest) -> Pushed:
    """Validates a model, publishes it, and removes old versions.

    Raises:
        RefusedModelError: the model does not serve what was evaluated.
        DataError: no model or no sample of its evaluation, or the folder cannot be written.
    """
    options, sample = request.options, _read_sample(request)
    added = {}
    if request.origin is not None:
        added[ORIGIN_FILE] = json.dumps(request.origin).encode()
    if sample and options.warmup_requests:
        images = [image.encoded for image in sample[: options.warmup_requests]]
        added[WARMUP_FILE] = warmup_records(request.saved_model, images)
    if request.evaluation is not None and request.score_thresholds:
        analysis = read_analysis(join(request.evaluation, ANALYSIS_JSON))
        added[SCORE_THRESHOLDS_FILE] = score_thresholds(analysis, request.saved_model).as_bytes()
    if options.mediapipe is not None:
        images = [image.encoded for image in sample]
        added[PHONE_FILE] = phone_file(request.saved_model, options.mediapipe, images)
    done: list[Validation] = []
    check = partial(_validate, request=request, images=len(sample[: options.validation.images]), done=done)
    version = publish(request.saved_model, request.push_directory, added=added, check=check if sample else None)
    removed = () if options.keep_versions is None else _remove_old(parent(version), options.keep_versions)
    return Pushed(version, done[0] if done else None, removed)


def score_thresholds(analysis: Analysis, model: str | Path) -> ScoreThresholds:
    """Returns the score thresholds of the highest F1.

    Args:
        analysis: analysis of the model's detections.
        model: the model, whose categories get a threshold.
    """
    rows = {(category.id, category.name): category.best for category in analysis.categories}
    known = read_model_categories(model) if is_described(model) else None
    # An analysis without categories (use_cats false) has a row of its own, whose name is none of the model's.
    names = list(rows) if known is None else [(one["id"], str(one.get("name", one["id"]))) for one in known]
    return ScoreThresholds(
        iou_type=analysis.iou_type,
        iou=analysis.iou,
        images=analysis.sample.images,
        overall=_threshold(analysis.operating_point),
        categories=[CategoryThreshold(id_, name, _threshold(rows.get((id_, name)))) for id_, name in names],
    )


def _threshold(point: OperatingPoint | None) -> Threshold | None:
    return None if point is None else Threshold(point.score, point.precision, point.recall, point.f1)


def _read_sample(request: PushRequest) -> Sequence[ServedImage]:
    if not request.options.sample_images:
        return []
    if request.evaluation is None:
        _LOGGER.warning("no evaluation: the model is pushed without validation and warm-up requests")
        return []
    path = join(request.evaluation, SERVING_SAMPLE)
    if not is_file(path):
        raise DataError(
            f"{path}: missing, so the model cannot be validated before its push. Run the evaluator again, or set "
            "push.validation.images and push.warmup_requests to 0."
        )
    return read_serving_sample(path)


def _validate(folder: Path, *, request: PushRequest, images: int, done: list[Validation]) -> None:
    """Validates a staged version, and notes the result."""
    options = request.options.validation
    if images:
        done.append(
            validate(
                folder,
                join(str(request.evaluation), SERVING_SAMPLE),
                images=images,
                tolerance=options.tolerance,
                timeout=options.timeout,
                name=request.saved_model,
            )
        )


def _remove_old(push_directory: str, keep: int) -> tuple[str, ...]:
    try:
        return tuple(remove_old_versions(push_directory, keep=keep))
    except DataError as error:  # the push itself is done
        _LOGGER.warning("%s", error)
        return ()
