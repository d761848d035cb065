"""Runs models in LiteRT, ONNX and MediaPipe files: functions from pixels to outputs by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.export.mediapipe.metadata import DetectorMetadata
from detection.export.mediapipe.reader import read_metadata
from detection.inference.formats.score_curves import ScoreCurves, calibrate_scores
from schemas import serving
from schemas.errors import ConfigError, DataError
from schemas.program import require_module
from schemas.quoting import printable

FileFormat = Literal["litert", "onnx", "mediapipe"]
Delegate = Literal["cpu", "gpu", "coral"]
Array = npt.NDArray[Any]
Network = Callable[[Array], Mapping[str, Array]]  # [B, H, W, 3] in the size and dtype of the file
Loaded = tuple[Network, list[int | None]]  # with the shape of its input; None: any size

_REASON = 300  # characters of an error message of the runtimes
# MediaPipe's own suppression: its threshold (as of mediapipe 1.2.3), and our number of boxes.
_RAW_IOU_THRESHOLD, _RAW_DETECTIONS = 0.3, 100


def load_network(
    file_format: FileFormat,
    content: bytes,
    *,
    where: str,
    categories: Sequence[Mapping[str, Any]],
    curves: ScoreCurves | None,
) -> Loaded:
    """Loads a model; its outputs are those of a SavedModel except `valid`.

    Args:
        file_format: kind of the file.
        content: content of the file.
        where: path in error messages.
        categories: categories of the data set, in the order of the network's classes; only for MediaPipe's files.
        curves: calibration of the scores, applied by MediaPipe; only for its files.

    Raises:
        DataError: the file cannot be read, or its metadata does not match.
        ConfigError: the runtime of ONNX is not installed.
    """
    try:
        if file_format == "mediapipe":
            metadata = read_metadata(content, where)
            _require_matching(metadata, where, categories, curves)
            return _mediapipe(content, metadata, categories, curves)
        return _onnx(content) if file_format == "onnx" else _litert(content)
    except (ConfigError, DataError):
        raise
    except Exception as error:  # the base class of ONNX Runtime's exceptions
        raise damaged_file(where, error) from error


def damaged_file(path: str, error: Exception) -> DataError:
    """Returns the error for a file that its runtime cannot load or run."""
    reason = (str(error).strip().splitlines() or [""])[0][:_REASON]
    return DataError(f"{path}: the model cannot be run: {printable(reason)}. Export or copy it again.")


def _litert(content: bytes) -> Loaded:
    from ai_edge_litert.interpreter import Interpreter

    # One thread: Beam runs several workers, whose threads would compete.
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    run = interpreter.get_signature_runner()
    shape = run.get_input_details()[serving.IMAGES]["shape"].tolist()
    return (lambda pixels: dict(run(**{serving.IMAGES: pixels}))), shape


def _onnx(content: bytes) -> Loaded:
    require_module("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    # Dynamic sizes have names.
    shape = [side if isinstance(side, int) else None for side in session.get_inputs()[0].shape]
    return (lambda pixels: dict(zip(names, session.run(names, {serving.IMAGES: pixels}), strict=True))), shape


def _require_matching(
    metadata: DetectorMetadata, where: str, categories: Sequence[Mapping[str, Any]], curves: ScoreCurves | None
) -> None:
    """Requires metadata that agrees with the files beside the model."""
    labels = tuple(label for _, label in labelled_categories(categories))
    if metadata.labels != labels or (metadata.calibration is None) != (curves is None):
        what = "labels are not the categories" if metadata.labels != labels else "score calibration is not that"
        raise DataError(f"{where}: its {what} beside it. Export or copy the model again.")


def _mediapipe(
    content: bytes, metadata: DetectorMetadata, categories: Sequence[Mapping[str, Any]], curves: ScoreCurves | None
) -> Loaded:
    """Runs a file for MediaPipe; classes become category ids."""
    (run, shape), classes_of = _litert(content), np.array([at for at, _ in labelled_categories(categories)])
    ids = np.array([category["id"] for category in categories], np.int64)

    def network(pixels: Array) -> Mapping[str, Array]:
        outputs = run(pixels)
        if metadata.anchors_yxhw is not None:
            deltas, logits = outputs[serving.BOX_DELTAS][0], outputs[serving.CLASS_LOGITS][0]
            outputs = _suppress(deltas, logits, metadata.anchors_yxhw)
        boxes, scores, count = outputs[serving.BOXES], outputs[serving.SCORES], outputs[serving.COUNT].astype(np.int32)
        classes = classes_of[np.clip(outputs[serving.CLASSES].astype(np.int64), 0, len(classes_of) - 1)]
        if curves is not None:
            valid = np.arange(scores.shape[1]) < count[:, np.newaxis]
            scores = np.where(valid, calibrate_scores(curves.curves, scores, classes), 0.0).astype(np.float32)
            order = np.argsort(-scores, axis=1, kind="stable")
            boxes = np.take_along_axis(boxes, order[..., np.newaxis], axis=1)
            scores, classes = (np.take_along_axis(values, order, axis=1) for values in (scores, classes))
        return {serving.BOXES: boxes, serving.SCORES: scores, serving.CLASSES: ids[classes], serving.COUNT: count}

    return network, shape


def labelled_categories(categories: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Returns (class of the network, label) of each class of a file for MediaPipe: the named categories."""
    names = [category.get("name", str(category["id"])) for category in categories]
    return [(at, name) for at, name in enumerate(names) if name is not None]


def _suppress(deltas: Array, logits: Array, anchors: Array) -> dict[str, Array]:
    """Decodes and suppresses boxes as MediaPipe does: the best class of each anchor, then all classes together.

    Args:
        deltas: float32 [A, 4], (ty, tx, th, tw).
        logits: float32 [A, C].
        anchors: float32 [A, 4], (y center, x center, height, width), fractions of the input.
    """
    centers = deltas[:, :2] * anchors[:, 2:] + anchors[:, :2]
    halves = np.exp(deltas[:, 2:]) * anchors[:, 2:] / 2.0
    boxes = np.concatenate([centers - halves, centers + halves], axis=1)
    scores = 1.0 / (1.0 + np.exp(-logits.max(axis=1)))
    picked = tf.image.non_max_suppression(boxes, scores, _RAW_DETECTIONS, iou_threshold=_RAW_IOU_THRESHOLD).numpy()
    empty = _RAW_DETECTIONS - len(picked)
    return {
        serving.BOXES: np.pad(boxes[picked], [(0, empty), (0, 0)])[np.newaxis],
        serving.SCORES: np.pad(scores[picked], (0, empty))[np.newaxis],
        serving.CLASSES: np.pad(logits[picked].argmax(axis=1), (0, empty))[np.newaxis],
        serving.COUNT: np.array([len(picked)]),
    }
