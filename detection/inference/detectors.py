"""Opens detectors of all kinds: SavedModels, LiteRT and ONNX files, checkpoints and imported models."""

from pathlib import Path

from detection.inference.formats.model_files import FileDetector, has_model_file, model_folder, read_description
from detection.inference.formats.saved_model import (
    SavedModelDetector,
    SignatureDetector,
    has_saved_model,
    require_saved_model,
    signature_iou_types,
    without_nms,
)
from detection.inference.formats.serving_module import ServingModule
from detection.inference.restore import TrainedDetector, load_trained
from detection.weights.locate import locate_weights
from schemas.errors import DataError
from schemas.metrics import IOU_TYPES, IouType


def open_detector(model: str | Path, *, batch_size: int) -> SignatureDetector:
    """Loads a detector.

    Args:
        model: SavedModel folder; folder or file of a LiteRT or ONNX export; or an argument of
            `load_trained`, which gives the detections of its exported SavedModel.
        batch_size: images per call, unless the model was exported with a fixed one.

    Raises:
        DataError: the model is missing or does not return detections.
        ConfigError: the runtime of ONNX is not installed.
    """
    folder = model_folder(model)
    if has_saved_model(folder):
        return SavedModelDetector(folder=folder, batch_size=batch_size)
    if has_model_file(folder):
        return FileDetector(folder=folder, batch_size=batch_size)
    return open_trained(_trained(model), batch_size=batch_size)


def open_trained(trained: TrainedDetector, *, batch_size: int) -> SignatureDetector:
    """Returns a trained detector with the detections of its exported SavedModel.

    Args:
        trained: result of `load_trained`.
        batch_size: images per call.
    """
    return SignatureDetector(ServingModule(trained.detector, trained.categories).serve_encoded, batch_size=batch_size)


def model_iou_types(model: str | Path) -> tuple[IouType, ...]:
    """Returns the IoU types supported by the outputs of a model: boxes, masks and keypoints.

    Args:
        model: path, as for `open_detector`.

    Raises:
        DataError: the model is missing or does not return detections.
    """
    folder = model_folder(model)
    if has_saved_model(folder):
        return signature_iou_types(folder)
    description = read_description(folder)
    if description is None:
        return _trained(model).detector.iou_types
    if not description.nms:
        raise without_nms(model)
    has = {"bbox": True, "segm": description.masks, "keypoints": description.keypoints}
    return tuple(iou_type for iou_type in IOU_TYPES if has[iou_type])


def _trained(model: str | Path) -> TrainedDetector:
    try:
        locate_weights(model)
    except DataError:
        require_saved_model(model)  # raises the error
    return load_trained(model)
