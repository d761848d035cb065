"""Pushes a model: adds files of its evaluation, validates it, publishes it, and removes old versions."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from components.history.pushed_versions import ORIGIN_FILE, PHONE_FILE, WARMUP_FILE, whole_versions
from components.saved_model_pusher.added_files import phone_file, score_thresholds, warmup_records
from components.saved_model_pusher.publish import publish
from components.saved_model_pusher.validate import Validation, validate
from detection.analysis.analysis_file import read_analysis
from detection.inference.score_thresholds import SCORE_THRESHOLDS_FILE
from detection.inference.serving_sample import ServedImage, read_serving_sample
from detection.storage.files import is_file
from detection.storage.paths import join, name_of
from detection.storage.versions import remove_version
from schemas.artifacts import ANALYSIS_JSON, SAVED_MODEL_FILE, SERVING_SAMPLE
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
    origin: content of `ORIGIN_FILE` in the version; None: no such file.
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
    validation: result of the comparison; None: validation is off, or the version existed.
    removed: names of the old versions that were removed.
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
    validation: Validation | None = None
    compared = len(sample[: options.validation.images])

    def check(folder: Path) -> None:
        nonlocal validation
        validation = validate(
            folder,
            join(str(request.evaluation), SERVING_SAMPLE),
            images=compared,
            tolerance=options.validation.tolerance,
            timeout=options.validation.timeout,
            name=request.saved_model,
        )

    directory, keep = request.push_directory, options.keep_versions
    version = publish(request.saved_model, directory, added=added, check=check if compared else None)
    return Pushed(version, validation, () if keep is None else tuple(remove_old_versions(directory, keep=keep)))


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


def remove_old_versions(push_directory: str | Path, *, keep: int) -> list[str]:
    """Removes all complete versions but the newest, of which the highest is the one that is served.

    A local version disappears by one rename, and is deleted then.  A remote one loses
    `saved_model.pb` first.  Folders without that file are left alone.

    Args:
        push_directory: local or remote folder of versions.
        keep: number of versions that stay, at least 1.

    Returns:
        The names of the removed versions; a warning says why the others stay, as the push itself is done.
    """
    removed = []
    try:
        for number, path in list(whole_versions(push_directory).items())[:-keep]:
            remove_version(path, SAVED_MODEL_FILE)
            _LOGGER.info("removed version %d (push.keep_versions %d)", number, keep)
            removed.append(name_of(path))
    except (OSError, DataError) as error:
        _LOGGER.warning(
            "%s: cannot remove an old version: %s. Check the permissions of this folder; the new version is in place.",
            push_directory,
            error,
        )
    return removed
