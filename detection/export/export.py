"""Exports a trained or imported model as a SavedModel or a file."""

import logging
from pathlib import Path

from detection.datasets.examples import OpenSplit
from detection.export.files import require_format, write_file
from detection.export.options import ExportOptions, check_options
from detection.export.saved_model_export import export_saved_model
from detection.export.score_calibration import fit_score_curves
from detection.inference.formats.file_runtimes import Delegate
from detection.inference.formats.model_files import FILE_NAMES
from detection.inference.formats.score_curves import SCORE_CURVES_FILE
from detection.inference.restore import TrainedDetector, load_trained, with_config
from detection.models.detector import variable_bytes
from detection.pretrained.detectors import find_model
from detection.storage.files import is_file
from detection.storage.outputs import output_folder, require_room
from detection.storage.paths import join
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.config.config_io import load_config, to_yaml
from schemas.errors import ConfigError
from schemas.progress import log_phase
from schemas.quoting import one_line

_HARDWARE: dict[Delegate, str] = {"cpu": "CPUs", "gpu": "GPUs", "coral": "Coral"}
_LOGGER = logging.getLogger("cocoflow.export")
_EXACT_FLOATS = 2**24  # all integers up to here are exact in float32


def export_model(model: str, output: str, options: ExportOptions, open_split: OpenSplit) -> str:
    """Exports a model to a folder, which is created complete or not at all.

    Args:
        model: see `find_model` and `load_trained`.
        output: folder, new or empty, local or remote.
        options: what to write.
        open_split: opens the images for a calibration.

    Returns:
        Lines: the exported model, the differences of a file from the SavedModel, and warnings.

    Raises:
        ConfigError: incompatible options, a key that an export does not change, or a missing
            package for ONNX.
        DataError: the model or the calibration data cannot be read, or the folder cannot be written.
        CocoflowError: the model cannot be converted, or the disk has no room for its weights.
    """
    check_options(options)
    marker = SAVED_MODEL_FILE if options.format == "saved-model" else FILE_NAMES[options.format]
    notes: list[str] = []
    with output_folder(output, last=marker, shared=False) as new:
        folder = Path(new)
        log_phase(_LOGGER, f"reading {one_line(model)}")
        location = find_model(model, options.checkpoint)
        source = load_trained(location, weights=options.weights)
        require_room(
            output,
            variable_bytes(source.detector.variables),
            advice="Free space, or choose another folder with --output.",
        )
        trained = _apply_changes(source, options)
        if options.format == "saved-model":
            _require_od_api_outputs(trained, options)
        else:
            require_format(trained, options)
        curves = None
        if options.score_calibration is not None:
            log_phase(_LOGGER, "calibrating the scores")
            curves, notes = fit_score_curves(trained, options.score_calibration, model=location, open_split=open_split)
        elif is_file(join(location, SCORE_CURVES_FILE)):
            notes = ["the scores of --model are calibrated, those of this export are not: add --calibrate DIR"]
        log_phase(_LOGGER, f"converting to {options.format}")
        if options.format == "saved-model":
            export_saved_model(
                trained.detector,
                folder,
                categories=trained.categories,
                config_yaml=to_yaml(trained.config),
                exported_from=trained.exported_from,
                batch_size=options.batch_size,
                nms=options.nms,
                od_api_outputs=options.od_api_outputs,
                score_curves=curves,
            )
        else:
            expected = _apply_changes(source, options._replace(assignments=_without_resize(options)))
            notes += write_file(trained, folder, options, expected=expected, curves=curves, open_split=open_split)
    return "\n".join([_summarize(trained, options), *notes])


def _apply_changes(trained: TrainedDetector, options: ExportOptions) -> TrainedDetector:
    """Builds the detector again, with the same weights, if the options change its configuration."""
    files = options.format != "saved-model"
    # The converters do not support bfloat16.
    assignments = [*options.assignments, *(["train.precision=float32"] if files else [])]
    return with_config(trained, load_config("--set", assignments, text=to_yaml(trained.config)))


def _without_resize(options: ExportOptions) -> list[str]:
    """Returns the assignments without resizing: a MediaPipe file is compared with the model as trained."""
    kept = options.format != "mediapipe"
    return [assignment for assignment in options.assignments if kept or not assignment.startswith("model.resize.")]


def _require_od_api_outputs(trained: TrainedDetector, options: ExportOptions) -> None:
    """Refuses `od_api_outputs` for values that float32 cannot represent.

    Raises:
        ConfigError: masks that are not crops, or category ids that are not exact in float32.
    """
    if not options.od_api_outputs:
        return
    if options.nms and (form := trained.detector.capabilities.mask_output) != "crops":
        raise ConfigError(
            f"--od-api-outputs with model.postprocess.mask_output = {form}: the API's masks are crops. Add "
            "--set model.postprocess.mask_output=crops."
        )
    largest = max(category["id"] for category in trained.categories)
    if largest > _EXACT_FLOATS:
        raise ConfigError(
            f"--od-api-outputs: the category id {largest} is above {_EXACT_FLOATS}, up to which integers are exact "
            f"in float32. Export without the flag."
        )


def _summarize(trained: TrainedDetector, options: ExportOptions) -> str:
    origin = trained.exported_from
    weights = "" if origin is None else f", the {origin}"
    precision = f"{options.precision}, " if options.format in ("litert", "mediapipe") else ""
    hardware = f"for {_HARDWARE[options.delegate]}, " if options.format == "mediapipe" else ""
    count = options.batch_size or (1 if precision else None)
    size = "any number of images" if count is None else "1 image" if count == 1 else f"{count} images"
    raw = "" if options.nms else ", without non-maximum suppression"
    raw += ", outputs of the Object Detection API" if options.od_api_outputs else ""
    return f"{options.format} of {trained.config.model.name}{weights}: {precision}{hardware}{size} per call{raw}"
