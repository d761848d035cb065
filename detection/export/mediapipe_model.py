"""Graphs for MediaPipe Tasks' ObjectDetector, for phone hardware.

MediaPipe stretches an image to the input size and runs the model on one image at a time.  It supports two kinds of
models: those with non-maximum suppression and four float32 outputs, and those that return the boxes of all anchors,
which MediaPipe decodes and suppresses itself.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.export.litert import Precision, convert_to_litert
from detection.export.mediapipe import metadata
from detection.export.mediapipe.metadata import DetectorMetadata, require_labels
from detection.export.mediapipe.writer import add_metadata
from detection.inference.formats.file_runtimes import Delegate, labelled_categories
from detection.inference.formats.score_curves import ScoreCurve, ScoreCurves
from detection.inference.formats.serving_module import ServingModule
from detection.models.detector import Detector, NmsGraph
from detection.models.heads.postprocess import BoxPostprocess
from detection.models.necks.resample import nearest_by_op
from detection.ops.boxes import centre_and_size, clip_yxyx
from schemas import serving
from schemas.errors import ConfigError

_OUTPUTS: dict[Delegate, tuple[str, ...]] = {  # signature names, in the order of the file
    "cpu": (serving.BOXES, serving.CLASSES, serving.SCORES, serving.COUNT),
    "gpu": (serving.BOX_DELTAS, serving.CLASS_LOGITS),
    "coral": (serving.BOXES, serving.CLASSES, serving.SCORES, serving.COUNT),
}

_MAX_LOG_SIZE = 10.0  # as in `decode_yxyx`


class MediaPipeModule(ServingModule):
    """A detector with MediaPipe's outputs; class indices count only the named categories, from 0.

    cpu: `detection_boxes` [1, N, 4], `detection_classes` [1, N], `detection_scores` [1, N] and
        `num_detections` [1], all float32, with only built-in ops.
    gpu: `box_deltas` float32 [1, A, 4] and `class_logits` [1, A, C], without non-maximum suppression, which
        GPUs cannot run.
    coral: the outputs of `cpu`, by the op `TFLite_Detection_PostProcess`, which Coral's compiler supports.

    Args:
        detector: as for `ServingModule`.
        categories: as for `ServingModule`.
        delegate: hardware.

    """

    def __init__(self, detector: Detector, categories: Sequence[Mapping[str, Any]], delegate: Delegate) -> None:
        self._named = [at for at, _ in labelled_categories(categories)]
        places = {at: number for number, at in enumerate(self._named)}
        classes = [{**category, "id": places.get(at, 0)} for at, category in enumerate(categories)]
        super().__init__(detector, classes, batch_size=1, od_api_outputs=True)
        self._delegate = delegate

    def _encode(self, inputs: tf.Tensor) -> Any:
        with nearest_by_op() if self._delegate == "gpu" else contextlib.nullcontext():
            return super()._encode(inputs)

    def _postprocess(self, outputs: Any, batch_of: tf.Tensor, nms_graph: NmsGraph) -> dict[str, tf.Tensor]:
        if self._delegate == "cpu":
            found = super()._postprocess(outputs, batch_of, nms_graph)
            return {name: found[name] for name in _OUTPUTS["cpu"]}  # without masks
        deltas, logits = self._detector.anchor_outputs(outputs)
        if len(self._named) < logits.shape[2]:
            logits = tf.gather(logits, self._named, axis=2)
        if self._delegate == "gpu":
            return {serving.BOX_DELTAS: deltas, serving.CLASS_LOGITS: logits}
        return _suppress_by_custom_op(deltas, tf.sigmoid(logits), self.anchors(), self._detector.config.postprocess)

    def anchors(self) -> npt.NDArray[np.float32]:
        """Returns the anchors, float32 [A, 4]: (y center, x center, height, width) as fractions of the input."""
        height, width = self._detector.image_size
        corners = self._detector.anchors / np.array([height, width, height, width], np.float32)
        return np.concatenate(centre_and_size(corners), axis=1).astype(np.float32)


def convert_to_mediapipe(
    detector: Detector,
    categories: Sequence[Mapping[str, Any]],
    *,
    delegate: Delegate,
    precision: Precision,
    calibration: Iterable[npt.NDArray[np.uint8]] = (),
    curves: ScoreCurves | None = None,
    description: str = "",
) -> bytes:
    """Converts a detector to a file that MediaPipe Tasks' ObjectDetector loads: a LiteRT model with metadata.

    Args:
        detector: detector trained with stretched images.
        categories: as for `ServingModule`.
        delegate: hardware.
        precision: as for `convert_to_litert`.
        calibration: as for `convert_to_litert`, in batches of one image.
        curves: score curves of the categories, applied by MediaPipe; not for the GPU.
        description: description of the model.

    Returns:
        The file.  Its input is [1, H, W, 3], float32, or uint8 for int8, with values 0 to 255.

    Raises:
        ConfigError: MediaPipe does not support the detector, or it has no anchors for a GPU or Coral.
        DataError: the name of a category is invalid in a label file.
        CocoflowError: an op cannot be converted; see `convert_to_litert`.
    """
    labelled = labelled_categories(categories)
    labels = tuple(label for _, label in labelled)
    require_labels(labels, [categories[at]["id"] for at, _ in labelled])
    require_mediapipe(detector, delegate, what="a file for MediaPipe")
    module = MediaPipeModule(detector, categories, delegate)
    described = DetectorMetadata(
        name=detector.name,
        description=description,
        labels=labels,
        normalization=None if precision == "int8" else (0.0, 1.0),  # the graph normalizes
        anchors_yxhw=module.anchors() if delegate == "gpu" else None,
        calibration=None if curves is None else score_calibration([curves.curves[at] for at, _ in labelled]),
    )
    content = convert_to_litert(module, precision=precision, calibration=calibration, custom_ops=delegate == "coral")
    return add_metadata(content, described, outputs=_OUTPUTS[delegate])


def score_calibration(curves: Sequence[ScoreCurve]) -> metadata.ScoreCalibration:
    """Returns the curves in MediaPipe's format."""
    own = tuple(metadata.ScoreCurve(scale=1.0, slope=curve.slope, offset=curve.offset) for curve in curves)
    return metadata.ScoreCalibration(curves=own, transformation="inverse_logistic")


def require_mediapipe(detector: Detector, delegate: Delegate, *, what: str) -> None:
    """Requires a detector that MediaPipe runs as it was trained.

    Args:
        detector: the detector.
        delegate: hardware.
        what: flag or key in the message.

    Raises:
        ConfigError: images keep their aspect ratio, or the graph does not support the detector's suppression.
    """
    options, mode = detector.config.postprocess, detector.resizing.mode
    if mode != "stretch":
        raise ConfigError(
            f"{what} with model.resize.mode = {mode}: MediaPipe stretches images to the input. Train with "
            "--set model.resize.mode=stretch, as the configuration `phone` does. For a trained model, pass it to "
            "`export`, which measures the loss on stretched --sample-images."
        )
    if not detector.capabilities.suppresses:
        if delegate != "cpu":
            raise ConfigError(f"--delegate {delegate}: {detector.name} has no anchors, whose boxes it could suppress.")
        return
    if options.nms == "linear" and delegate != "gpu":
        raise ConfigError(
            f"{what} with model.postprocess.nms = linear: LiteRT has no built-in op for linear soft suppression, and "
            "MediaPipe does not support graphs with loops. Add --set model.postprocess.nms=hard, or gaussian, and "
            "evaluate it."
        )
    if delegate == "coral" and (options.nms != "hard" or options.class_agnostic or options.one_class_per_anchor):
        raise ConfigError(
            "--delegate coral: its op TFLite_Detection_PostProcess suppresses hard, within each class, all classes of "
            "an anchor. Add --set model.postprocess.nms=hard --set model.postprocess.class_agnostic=false --set "
            "model.postprocess.one_class_per_anchor=false, and evaluate the file."
        )
    if delegate == "coral" and options.iou_threshold == 0.0:
        raise ConfigError(
            "--delegate coral: its op does not support model.postprocess.iou_threshold = 0. Add --set "
            "model.postprocess.iou_threshold=0.001, or another value."
        )


def _suppress_by_custom_op(
    deltas: tf.Tensor, scores: tf.Tensor, anchors: npt.NDArray[np.float32], options: BoxPostprocess
) -> dict[str, tf.Tensor]:
    """Decodes and suppresses boxes with the op `TFLite_Detection_PostProcess`, for which TensorFlow has no kernel.

    Its boxes may extend beyond the image, which MediaPipe would correct by moving them, so they are clipped here.

    Args:
        deltas: float32 [1, A, 4].
        scores: float32 [1, A, C], probabilities.
        anchors: float32 [A, 4], (y center, x center, height, width), fractions of the input.
        options: options of post-processing.
    """
    slots = options.max_detections
    integers = {
        "max_detections": slots,
        "max_classes_per_detection": 1,
        "detections_per_class": options.max_detections_per_class or slots,
        "num_classes": scores.shape[2],
    }
    floats = {
        "nms_score_threshold": options.score_threshold,
        "nms_iou_threshold": options.iou_threshold,
        "y_scale": 1.0,
        "x_scale": 1.0,
        "h_scale": 1.0,
        "w_scale": 1.0,
    }
    attributes = ['name: "TFLite_Detection_PostProcess" attr { key: "use_regular_nms" value { b: true } }']
    attributes += [f'attr {{ key: "{key}" value {{ i: {value} }} }}' for key, value in integers.items()]
    attributes += [f'attr {{ key: "{key}" value {{ f: {value} }} }}' for key, value in floats.items()]

    @tf.function(experimental_implements=" ".join(attributes), autograph=False)
    def custom_op(box_encodings: tf.Tensor, class_predictions: tf.Tensor, anchors: tf.Tensor) -> Any:
        return tf.zeros([1, slots, 4]), tf.zeros([1, slots]), tf.zeros([1, slots]), tf.zeros([1])

    limited = tf.concat([deltas[..., :2], tf.minimum(deltas[..., 2:], _MAX_LOG_SIZE)], axis=-1)
    boxes, classes, found, count = custom_op(limited, scores, tf.constant(anchors))
    return {
        serving.BOXES: clip_yxyx(boxes, 1.0, 1.0),
        serving.CLASSES: classes,
        serving.SCORES: found,
        serving.COUNT: count,
    }
