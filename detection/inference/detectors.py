"""Opens any model that detects: SavedModels, LiteRT and ONNX files, checkpoints and imported models."""

from pathlib import Path

from detection.inference.export.serving_module import ServingModule
from detection.inference.model_files import FileDetector, model_folder, read_description
from detection.inference.restore import load_trained
from detection.inference.results import lacks_output
from detection.inference.saved_model import (
    SavedModelDetector,
    SignatureDetector,
    has_saved_model,
    require_saved_model,
    without_nms,
)
from detection.weights.locate import locate_weights
from schemas.errors import DataError


def open_detector(model: str | Path, *, batch_size: int) -> SignatureDetector:
    """Loads a model to detect objects with.

    Args:
        model: SavedModel folder; folder or file of a LiteRT or ONNX export; or what `load_trained`
            takes, whose detections are those of its exported SavedModel.
        batch_size: images per call, unless the model was exported with a fixed one.

    Raises:
        DataError: no model, or a model that gives no detections.
        ConfigError: the runtime of ONNX is not installed.
    """
    folder = model_folder(model)
    if has_saved_model(folder):
        return SavedModelDetector(folder=folder, batch_size=batch_size)
    if read_description(folder) is not None:
        return FileDetector(folder=folder, batch_size=batch_size)
    require_model(model)
    trained = load_trained(model)
    module = ServingModule(trained.detector, trained.categories)
    return SignatureDetector(module.serve_encoded, batch_size=batch_size)


def require_model(model: str | Path, *, iou_type: str = "bbox") -> None:
    """Requires a model with the output that an IoU type compares, without loading it.

    Args:
        model: see `open_detector`.
        iou_type: `bbox`, `segm` or `keypoints`.

    Raises:
        DataError: there is no model, or it is known to lack the output.
    """
    folder = model_folder(model)
    if has_saved_model(folder):
        require_saved_model(folder, iou_type=iou_type)
        return
    description = read_description(folder)
    if description is None:
        try:
            locate_weights(model)
        except DataError:
            require_saved_model(folder)  # says what is missing
        return
    if not description.nms:
        raise without_nms(model)
    if iou_type != "bbox":
        raise lacks_output(iou_type, where=str(model))
