"""The file for MediaPipe Tasks that a pushed version holds beside its SavedModel."""

from collections.abc import Sequence
from pathlib import Path

from schemas.config.config import PhonePrecision
from schemas.errors import DataError


def phone_file(saved_model: str | Path, precision: PhonePrecision, images: Sequence[bytes]) -> bytes:
    """Converts a SavedModel of a detector for the CPUs of phones.

    Args:
        saved_model: its folder, local or remote.
        precision: of the network.
        images: encoded images, on which int8 is calibrated.

    Raises:
        ConfigError: MediaPipe cannot run the detector as it was trained.
        DataError: the model cannot be read, or int8 has no images.
        CocoflowError: the detector cannot be converted.
    """
    from detection.inference.export.litert import input_batches
    from detection.inference.export.mediapipe import convert_to_mediapipe
    from detection.inference.restore import load_trained, with_config

    if precision == "int8" and not images:
        raise DataError(
            "push.mediapipe = int8: there is no evaluation whose images its ranges could be measured on. Evaluate the "
            "model, or set push.mediapipe to float32 or float16."
        )
    trained = load_trained(saved_model)
    config = trained.config  # the converter knows no bfloat16
    float32 = config.model_copy(update={"train": config.train.model_copy(update={"precision": "float32"})})
    detector = with_config(trained, float32).detector
    return convert_to_mediapipe(
        detector,
        trained.categories,
        delegate="cpu",
        precision=precision,
        calibration=(lambda: input_batches(images, detector=detector, batch_size=1)) if precision == "int8" else None,
        description=f"Object detector, {trained.exported_from or config.model.name}.",
    )
