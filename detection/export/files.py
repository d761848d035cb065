"""Writes detectors as LiteRT, ONNX and MediaPipe files, and compares the files with the SavedModel."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detection.datasets.examples import OpenSplit
from detection.export.comparison import compare_with_saved_model, compare_with_training, draw_images
from detection.export.litert import convert_to_litert, evenly_spaced_images, input_batches
from detection.export.mediapipe_model import convert_to_mediapipe, require_mediapipe
from detection.export.model_description import write_model_file
from detection.export.onnx_model import convert_to_onnx
from detection.export.options import ExportOptions
from detection.export.saved_model_export import write_extra_files
from detection.images.finding import find_images
from detection.inference.formats.model_files import FileDetector, ModelDescription
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.formats.score_curves import ScoreCurves
from detection.inference.formats.serving_module import ServingModule
from detection.inference.predict import load_image
from detection.inference.restore import TrainedDetector
from detection.storage.tfrecord import find_shards
from detection.types import EncodedImage
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.errors import ConfigError
from schemas.progress import log_phase

_LOGGER = logging.getLogger("cocoflow.export")
_SHOWN = 0.3  # score from which applications show a detection
_SAMPLE_IMAGES = 8  # max images of the comparison
_CHECKED_IMAGES, _BATCH = 24, 8  # calibration images that are compared with the training


def require_format(trained: TrainedDetector, options: ExportOptions) -> None:
    """Requires a detector that a file of this format supports.

    Raises:
        ConfigError: full-size masks, for which a model file lacks the image size; or see `require_mediapipe`.
    """
    form = trained.detector.capabilities.mask_output
    if options.format != "mediapipe" and options.nms and form != "crops":
        raise ConfigError(
            f"--format {options.format} with model.postprocess.mask_output = {form}: a model file receives "
            "the resized image and cannot return masks in the size of the original. Add --set "
            "model.postprocess.mask_output=crops, or export a SavedModel."
        )
    if options.format == "mediapipe":
        require_mediapipe(trained.detector, options.delegate, what="--format mediapipe")


def write_file(
    trained: TrainedDetector,
    folder: Path,
    options: ExportOptions,
    *,
    expected: TrainedDetector,
    curves: ScoreCurves | None,
    open_split: OpenSplit,
) -> list[str]:
    """Writes a LiteRT, ONNX or MediaPipe file with its descriptions.

    Args:
        trained: detector to write.
        folder: empty local folder.
        options: options of the export, with the format of a file.
        expected: detector whose SavedModel the file is compared with.
        curves: calibration of the scores; None: scores are not calibrated.
        open_split: opens the calibration images.

    Returns:
        Notes for the user: the differences of the file from the SavedModel, and warnings.

    Raises:
        ConfigError: the format does not support the detector, or a package for ONNX is not installed.
        DataError: an image or the calibration data cannot be read, or the folder cannot be written.
        CocoflowError: the detector cannot be converted.
    """
    mediapipe = options.format == "mediapipe"
    int8 = options.precision == "int8"
    options = options._replace(batch_size=options.batch_size or (None if options.format == "onnx" else 1))
    assert options.format != "saved-model"
    description = ModelDescription(
        format=options.format,
        precision=options.precision,
        shape=(options.batch_size, *trained.detector.image_size, 3),
        resizing=trained.detector.resizing,
        dtype="uint8" if int8 else "float32",
        padding=trained.detector.pixel_mean,
        nms=options.nms,
        masks=trained.detector.capabilities.mask_size > 0 and options.nms and not mediapipe,
        keypoints=trained.detector.capabilities.keypoints and options.nms and not mediapipe,
        delegate=options.delegate if mediapipe else None,
        calibrated=curves is not None,
    )
    paths = find_images(options.sample_images)[:_SAMPLE_IMAGES] if options.sample_images else []
    notes, images = [], [load_image(number, path) for number, path in enumerate(paths)]
    if options.calibration is None:
        content = _convert(trained, options, curves)
    else:
        with open_split(options.calibration.data, split=options.calibration.split) as dataset:
            shards = find_shards(dataset.records)

            def batches(count: int, batch_size: int) -> Iterator[npt.NDArray[np.uint8]]:
                encoded = (image.encoded for image in evenly_spaced_images(shards, count))
                return input_batches(encoded, detector=trained.detector, batch_size=batch_size)

            content = _convert(trained, options, curves, batches(options.calibration.images, options.batch_size or 1))
            images = images or list(evenly_spaced_images(shards, _SAMPLE_IMAGES))
            if _trains_statistics(trained.config):
                notes += compare_with_training(trained.detector, batches(_CHECKED_IMAGES, _BATCH))
    write_extra_files(
        folder,
        categories=trained.categories,
        config_yaml=to_yaml(trained.config),
        exported_from=trained.exported_from,
        score_curves=curves,
    )
    write_model_file(folder, content, description)
    return [*_compare(expected, folder, options, curves, images), *notes]


def _convert(
    trained: TrainedDetector,
    options: ExportOptions,
    curves: ScoreCurves | None,
    calibration: Iterable[npt.NDArray[np.uint8]] = (),
) -> bytes:
    if options.format == "mediapipe":
        return convert_to_mediapipe(
            trained.detector,
            trained.categories,
            delegate=options.delegate,
            precision=options.precision,
            calibration=calibration,
            description=f"Object detector, {trained.exported_from or trained.config.model.name}.",
            curves=curves,
        )
    module = ServingModule(
        trained.detector, trained.categories, batch_size=options.batch_size, nms=options.nms, curves=curves
    )
    if options.format == "onnx":
        return convert_to_onnx(module)
    return convert_to_litert(module, precision=options.precision, calibration=calibration)


def _compare(
    expected: TrainedDetector,
    folder: Path,
    options: ExportOptions,
    curves: ScoreCurves | None,
    images: Sequence[EncodedImage],
) -> list[str]:
    """Compares the written file with the SavedModel of a detector; raw outputs are not compared."""
    if not options.nms:
        return []
    log_phase(_LOGGER, "comparing the file with the SavedModel")
    try:
        file = FileDetector(folder=folder, batch_size=1, as_mediapipe=options.format == "mediapipe")
    except ConfigError as error:  # the runtime is not installed
        return [f"not compared with the SavedModel: {error}"]
    module = ServingModule(expected.detector, expected.categories, curves=curves)
    saved_model = SignatureDetector(module.serve_encoded, batch_size=1)
    images = images or draw_images(expected.detector.image_size)
    if options.format != "mediapipe":
        return [str(compare_with_saved_model(file, saved_model, images))]
    compared = compare_with_saved_model(file, saved_model, images, min_score=_SHOWN)
    rules = "run as by MediaPipe (its resizing, integer boxes)"
    mode = expected.detector.resizing.mode
    if mode != "stretch":
        rules += f", on stretched images instead of those of the training (resized by {mode})"
    return [f"{rules}, and {compared}"]


def _trains_statistics(config: Config) -> bool:
    """Returns whether batch norm learns its statistics from the training images."""
    return config.train.freeze_batch_norm == "none" and not config.train.freeze and not config.train.trainable
