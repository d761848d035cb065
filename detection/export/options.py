"""Options of an export and their compatibility."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from detection.export.litert import Precision
from detection.export.score_calibration import ScoreCalibration
from detection.inference.formats.file_runtimes import Delegate
from detection.weights.locate import CheckpointChoice
from schemas.config.train.optimization import WeightsChoice
from schemas.errors import ConfigError

Format = Literal["saved-model", "litert", "onnx", "mediapipe"]  # all but the first are `FileFormat`s

# Keys that can change without retraining.
_CHANGEABLE = ("model.postprocess", "model.image_size", "model.resize", "train.precision")


class Calibration(NamedTuple):
    """Calibration images for int8.

    data: folder of Examples, or of another data set.
    split: name of the split.
    images: max number of images.
    """

    data: str
    split: str
    images: int


class ExportOptions(NamedTuple):
    """Options of an export.

    format: kind of model to write.
    weights: as for `load_trained`.
    batch_size: images per call; None: any for a SavedModel and ONNX, 1 for LiteRT and MediaPipe.
    nms: False: boxes and scores of all anchors instead of detections.
    od_api_outputs: as for `ServingModule`.
    precision: precision of the network in a LiteRT or MediaPipe file.
    delegate: hardware for a MediaPipe file.
    calibration: calibration images for int8.
    assignments: `--set` assignments on top of the model's configuration.
    checkpoint: checkpoint of a training to export, as for `checkpoint_of_training`.
    sample_images: image files and folders for the comparison of a file with the SavedModel; empty: calibration
        images, or drawn images.
    score_calibration: images for the calibration of scores; None: scores are not calibrated.
    """

    format: Format = "saved-model"
    weights: WeightsChoice = "auto"
    batch_size: int | None = None
    nms: bool = True
    od_api_outputs: bool = False
    precision: Precision = "float32"
    delegate: Delegate = "cpu"
    calibration: Calibration | None = None
    assignments: Sequence[str] = ()
    checkpoint: CheckpointChoice = None
    sample_images: Sequence[str] = ()
    score_calibration: ScoreCalibration | None = None


def check_options(options: ExportOptions) -> None:
    """Refuses flags that are incompatible with the format or with each other.

    Raises:
        ConfigError: an incompatible flag.
    """
    for is_wrong, message in _refusals(options):
        if is_wrong:
            raise ConfigError(message)
    for assignment in options.assignments:
        key = assignment.partition("=")[0]
        if not any(key == known or key.startswith(f"{known}.") for known in _CHANGEABLE):
            raise ConfigError(f"--set {key}: an export cannot change it; it can change {', '.join(_CHANGEABLE)}.")


def _refusals(options: ExportOptions) -> Iterator[tuple[bool, str]]:
    """Yields pairs (whether the options are invalid, message)."""
    saved_model, mediapipe = options.format == "saved-model", options.format == "mediapipe"
    batch_size, calibration, int8 = options.batch_size, options.calibration, options.precision == "int8"
    yield batch_size is not None and batch_size < 1, f"--batch-size {batch_size}: pass at least 1."
    yield (
        options.format not in ("litert", "mediapipe") and options.precision != "float32",
        f"--precision {options.precision}: for --format litert and mediapipe. The network of a SavedModel computes in "
        "train.precision (--set train.precision=mixed_bfloat16), that of ONNX in float32.",
    )
    yield (not saved_model and options.od_api_outputs, "--od-api-outputs: for --format saved-model; remove it.")
    yield (
        not mediapipe and options.delegate != "cpu",
        f"--delegate {options.delegate}: for --format mediapipe; remove it.",
    )
    yield (
        mediapipe and not options.nms,
        "--no-nms with --format mediapipe: use --delegate gpu; MediaPipe then suppresses the boxes.",
    )
    yield (
        mediapipe and batch_size not in (None, 1),
        f"--batch-size {batch_size}: MediaPipe runs one image per call; remove it.",
    )
    yield (
        int8 and calibration is None,
        "--precision int8 requires --calibration-data DIR: Examples or a data set with images to measure the ranges of "
        "the activations.",
    )
    yield not int8 and calibration is not None, "--calibration-data: for --precision int8; remove it."
    yield (
        bool(options.sample_images) and (saved_model or not options.nms),
        "--sample-images: for --format litert, onnx or mediapipe with non-maximum suppression, whose detections are "
        "compared with those of the SavedModel; remove it.",
    )
    yield (
        options.score_calibration is not None and not options.nms,
        "--calibrate with --no-nms: the scores of detections are calibrated, and without non-maximum suppression there "
        "are no detections. Remove one of the two flags.",
    )
    yield (
        options.score_calibration is not None and options.delegate == "gpu",
        "--calibrate with --delegate gpu: MediaPipe does not calibrate the scores of boxes that it suppresses itself. "
        "Remove one of the two flags.",
    )
    if calibration is not None:
        yield calibration.images < 1, f"--calibration-images {calibration.images}: pass at least 1."
