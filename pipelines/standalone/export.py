"""Exports a trained or imported model without training: SavedModel, LiteRT or ONNX."""

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from components.coco_evaluator.request import read_dataset
from detection.images.files import ImageFileError, read_file
from detection.images.inspect import inspect_image
from detection.inference.export.comparison import compare_with_saved_model, drawn_images, unlike_training
from detection.inference.export.litert import Precision, calibration_batches, convert_to_litert, sample_images
from detection.inference.export.onnx_model import convert_to_onnx
from detection.inference.export.saved_model_export import export_saved_model, write_extra_files
from detection.inference.export.serving_module import ServingModule
from detection.inference.model_files import FILE_NAMES, FileDetector, ModelDescription, write_model_file
from detection.inference.restore import TrainedDetector, load_trained
from detection.inference.saved_model import SignatureDetector
from detection.inference.score_curves import SCORE_CURVES_FILE, ScoreCurves
from detection.models.registry import detector_from_config
from detection.storage.atomic import new_directory
from detection.storage.files import is_file
from detection.storage.paths import is_remote, join, name_of, parent
from detection.storage.tfrecord import find_shards
from detection.types import EncodedImage
from detection.weights.locate import CheckpointChoice, locate_model
from pipelines.folders import output_folder
from pipelines.standalone.predict import find_images
from pipelines.standalone.score_calibration import ScoreCalibration, fit_score_curves
from pipelines.standalone.to_examples import data_as_examples
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.config.config import Config
from schemas.config.config_io import load_config, to_yaml
from schemas.config.issues import MAX_PIXELS
from schemas.config.train.optimization import WeightsChoice
from schemas.errors import ConfigError, DataError
from schemas.quoting import one_line

Format = Literal["saved-model", "litert", "onnx"]

_EXACT_FLOATS = 2**24  # float32 holds every whole number up to here
_SAMPLE_IMAGES = 8  # on which a file is compared, at most
_CHECKED_IMAGES, _BATCH = 24, 8  # of the calibration, that are compared with the training
# Keys whose change leaves the meaning of the weights as it is.
_CHANGEABLE = ("model.postprocess", "model.image_size", "model.resize", "train.precision")


class Calibration(NamedTuple):
    """Images that an int8 model is calibrated on.

    data: folder of Examples, or of another data set.
    split: name of its split.
    images: max number of images.
    """

    data: str
    split: str
    images: int


class ExportOptions(NamedTuple):
    """Options of an export.

    format: kind of model to write.
    weights: see `load_trained`.
    batch_size: images per call; None: any for a SavedModel and ONNX, 1 for LiteRT.
    nms: False: boxes and scores of all anchors instead of detections.
    od_api_outputs: see `ServingModule`.
    precision: of the network of a LiteRT file.
    calibration: images for int8.
    assignments: `--set` assignments on top of the model's configuration.
    checkpoint: checkpoint of a training to export; see `checkpoint_of_training`.
    sample_images: image files and folders of images, on which a LiteRT or ONNX file is compared with the
        SavedModel; none: some of the calibration's, or drawn ones.
    score_calibration: images that scores are calibrated on; None: scores as they are.
    """

    format: Format = "saved-model"
    weights: WeightsChoice = "auto"
    batch_size: int | None = None
    nms: bool = True
    od_api_outputs: bool = False
    precision: Precision = "float32"
    calibration: Calibration | None = None
    assignments: Sequence[str] = ()
    checkpoint: CheckpointChoice = None
    sample_images: Sequence[str] = ()
    score_calibration: ScoreCalibration | None = None


def export_model(model: str, output: str, options: ExportOptions) -> str:
    """Exports a model to a folder that appears whole.

    Args:
        model: see `locate_model` and `load_trained`.
        output: folder, new or empty, local or remote.
        options: what to write.

    Returns:
        Lines: what was exported, the differences of a file from the SavedModel, and warnings.

    Raises:
        ConfigError: options that do not fit each other, a key that an export does not change, or
            a package of ONNX that is not installed.
        DataError: the model or the calibration data cannot be read, or the folder cannot be written.
        CocoflowError: the model cannot be converted.
    """
    _check(options)
    if options.score_calibration is not None and not options.nms:
        raise ConfigError(
            "--calibrate with --no-nms: the scores of detections are calibrated, and without non-maximum suppression "
            "there are none. Remove one of the two flags."
        )
    marker = SAVED_MODEL_FILE if options.format == "saved-model" else FILE_NAMES[options.format]
    notes: list[str] = []
    with _new_output(output, last=marker) as folder:
        source = locate_model(model, options.checkpoint)
        trained = _with_changes(load_trained(source, weights=options.weights), options)
        if options.format == "saved-model":
            _require_od_api_outputs(trained, options)
        else:
            _require_crops(trained, options)
        curves = None
        if options.score_calibration is not None:
            curves, notes = fit_score_curves(trained, options.score_calibration, model=source)
        elif is_file(join(source, SCORE_CURVES_FILE)):
            notes = ["the scores of --model are calibrated, those of this export are not: add --calibrate DIR"]
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
            notes += _write_file(trained, folder, options, curves)
    return "\n".join([_sentence(trained, options), *notes])


def _check(options: ExportOptions) -> None:
    """Refuses flags that do not fit the format.

    Raises:
        ConfigError: the first such flag.
    """
    if options.batch_size is not None and options.batch_size < 1:
        raise ConfigError(f"--batch-size {options.batch_size}: pass at least 1.")
    if options.format != "litert" and options.precision != "float32":
        raise ConfigError(
            f"--precision {options.precision}: for --format litert. The network of a SavedModel computes in "
            "train.precision (--set train.precision=mixed_bfloat16), that of ONNX in float32."
        )
    if options.format != "saved-model" and options.od_api_outputs:
        raise ConfigError("--od-api-outputs: for --format saved-model; remove it.")
    if options.precision == "int8" and options.calibration is None:
        raise ConfigError(
            "--precision int8 needs --calibration-data DIR: Examples or a data set, on whose images the ranges of the "
            "activations are measured."
        )
    if options.precision != "int8" and options.calibration is not None:
        raise ConfigError("--calibration-data: for --precision int8; remove it.")
    if options.sample_images and (options.format == "saved-model" or not options.nms):
        raise ConfigError(
            "--sample-images: for --format litert or onnx with non-maximum suppression, whose detections are compared "
            "with those of the SavedModel; remove it."
        )
    if options.calibration is not None and options.calibration.images < 1:
        raise ConfigError(f"--calibration-images {options.calibration.images}: pass at least 1.")
    for assignment in options.assignments:
        key = assignment.partition("=")[0]
        if not any(key == known or key.startswith(f"{known}.") for known in _CHANGEABLE):
            raise ConfigError(f"--set {key}: an export does not change it, but only {', '.join(_CHANGEABLE)}.")


@contextlib.contextmanager
def _new_output(output: str, *, last: str) -> Iterator[Path]:
    """Yields a local folder that becomes `output`, with its marker last, when the block ends."""
    if is_remote(output):
        with new_directory(output, last=[last]) as folder:
            yield folder
        return
    with output_folder(output, last=last) as local:
        yield Path(local)


def _with_changes(trained: TrainedDetector, options: ExportOptions) -> TrainedDetector:
    """Builds the detector anew if the options change its configuration, with the same weights."""
    files = options.format != "saved-model"
    # The converters know no bfloat16.
    assignments = [*options.assignments, *(["train.precision=float32"] if files else [])]
    config = load_config("--set", assignments, text=to_yaml(trained.config))
    if config == trained.config:
        return trained
    detector = detector_from_config(config.model, num_classes=len(trained.categories), precision=config.train.precision)
    for variable, old in zip(detector.variables, trained.detector.variables, strict=True):
        variable.assign(old.value)
    return trained._replace(detector=detector, config=config)


def _require_crops(trained: TrainedDetector, options: ExportOptions) -> None:
    """Refuses masks in the size of the image for a model file, which does not see the image but the resized input.

    Raises:
        ConfigError: such masks.
    """
    form = trained.detector.mask_output
    if options.nms and form != "crops":
        raise ConfigError(
            f"--format {options.format} with model.postprocess.mask_output = {form}: a model file gets the resized "
            "image, and does not know the size of the image whose masks these would be. Add --set "
            "model.postprocess.mask_output=crops, or export a SavedModel."
        )


def _require_od_api_outputs(trained: TrainedDetector, options: ExportOptions) -> None:
    """Refuses `od_api_outputs` for values that are no float32 numbers.

    Raises:
        ConfigError: masks that are not crops, or category ids beyond the whole numbers of float32.
    """
    if not options.od_api_outputs:
        return
    if options.nms and trained.detector.mask_output != "crops":
        raise ConfigError(
            f"--od-api-outputs with model.postprocess.mask_output = {trained.detector.mask_output}: the API's masks "
            "are crops. Add --set model.postprocess.mask_output=crops."
        )
    largest = max(category["id"] for category in trained.categories)
    if largest > _EXACT_FLOATS:
        raise ConfigError(
            f"--od-api-outputs: the category id {largest} is not exact in float32, whose whole numbers end at "
            f"{_EXACT_FLOATS}. Export without the flag."
        )


def _write_file(
    trained: TrainedDetector, folder: Path, options: ExportOptions, curves: ScoreCurves | None
) -> list[str]:
    """Writes a LiteRT or ONNX file with its descriptions; returns notes for the user."""
    batch_size = options.batch_size or (1 if options.format == "litert" else None)
    module = ServingModule(
        trained.detector,
        trained.categories,
        batch_size=batch_size,
        nms=options.nms,
        curves=None if curves is None else curves.curves,
    )
    int8 = options.precision == "int8"
    description = ModelDescription(
        format="litert" if options.format == "litert" else "onnx",
        precision=options.precision,
        batch_size=batch_size,
        image_size=trained.detector.image_size,
        resizing=trained.detector.resizing,
        dtype="uint8" if int8 else "float32",
        padding=trained.detector.pixel_mean,
        nms=options.nms,
        masks=trained.detector.mask_size > 0 and options.nms,
        calibrated=curves is not None,
    )
    notes, images = [], _read_images(options.sample_images)
    if options.format == "onnx":
        content = convert_to_onnx(module)
    elif options.calibration is None:
        content = convert_to_litert(module, precision=options.precision)
    else:
        with _calibration_shards(options.calibration) as shards:
            batches = functools.partial(calibration_batches, shards, detector=trained.detector)
            calibration = batches(count=options.calibration.images, batch_size=batch_size or 1)
            content = convert_to_litert(module, precision=options.precision, calibration=calibration)
            images = images or sample_images(shards, _SAMPLE_IMAGES)
            if _trains_statistics(trained.config):
                notes += unlike_training(trained.detector, batches(count=_CHECKED_IMAGES, batch_size=_BATCH)())
    write_extra_files(
        folder,
        categories=trained.categories,
        config_yaml=to_yaml(trained.config),
        exported_from=trained.exported_from,
        score_curves=curves,
    )
    write_model_file(folder, content, description)
    return [*_differences(trained, folder, options, curves, images), *notes]


def _differences(
    trained: TrainedDetector,
    folder: Path,
    options: ExportOptions,
    curves: ScoreCurves | None,
    images: Sequence[EncodedImage],
) -> list[str]:
    """Compares the written file with the SavedModel of the detector; no detections are not compared."""
    if not options.nms:
        return []
    try:
        file = FileDetector(folder=folder, batch_size=1)
    except ConfigError as error:  # the runtime is not installed
        return [f"not compared with the SavedModel: {error}"]
    module = ServingModule(trained.detector, trained.categories, curves=None if curves is None else curves.curves)
    saved_model = SignatureDetector(module.serve_encoded, batch_size=1)
    images = images or drawn_images(trained.detector.image_size)
    return [str(compare_with_saved_model(file, saved_model, images))]


def _read_images(sources: Sequence[str]) -> list[EncodedImage]:
    """Reads the first images among files and folders of images.

    Raises:
        DataError: there is no image, or one that cannot be read.
    """
    images = []
    for number, path in enumerate(find_images(sources)[:_SAMPLE_IMAGES] if sources else ()):
        try:
            file = inspect_image(read_file(parent(path), name_of(path), max_pixels=MAX_PIXELS), max_pixels=MAX_PIXELS)
        except ImageFileError as error:
            raise DataError(f"{one_line(path)}: {error.message}") from None
        images.append(EncodedImage(number, path, file.data, file.height, file.width))
    return images


def _trains_statistics(config: Config) -> bool:
    """Returns whether batch norm's statistics are those of the training images."""
    return config.train.freeze_batch_norm == "none" and not config.train.freeze and not config.train.trainable


@contextlib.contextmanager
def _calibration_shards(calibration: Calibration) -> Iterator[list[str]]:
    """Yields the TFRecord files with the images of the calibration."""
    config = load_config(None, [f"data.root={json.dumps(calibration.data)}"])
    with data_as_examples(config, calibration.data, split=calibration.split) as root:
        yield find_shards(read_dataset(root, calibration.split).records)


def _sentence(trained: TrainedDetector, options: ExportOptions) -> str:
    origin = trained.exported_from
    weights = "" if origin is None else f", the {origin}"
    size = "any number of images" if options.batch_size is None else f"{options.batch_size} images"
    if options.format == "litert":
        size = f"{options.batch_size or 1} images, {options.precision}"
    raw = "" if options.nms else ", without non-maximum suppression"
    raw += ", outputs of the Object Detection API" if options.od_api_outputs else ""
    return f"{options.format} of {trained.config.model.name}{weights}: {size} per call{raw}"
