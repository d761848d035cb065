"""Files that a push adds to a model: warm-up requests, score thresholds, and a file for MediaPipe Tasks."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from google.protobuf.message import DecodeError

from detection.analysis.analysis_file import Analysis, OperatingPoint
from detection.inference.restore import is_described, read_model_categories
from detection.inference.score_thresholds import CategoryThreshold, ScoreThresholds, Threshold
from detection.storage.files import read_bytes
from detection.storage.paths import join
from detection.storage.tfrecord import framed
from schemas import serving
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.config.config import PhonePrecision
from schemas.errors import DataError


def warmup_records(saved_model: str | Path, images: Sequence[bytes]) -> bytes:
    """Returns the content of the file, one request per image.

    Args:
        saved_model: folder of the model, local or remote.
        images: encoded images.

    Raises:
        DataError: the model cannot be read.
    """
    import tensorflow as tf
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

    batch_size = _batch_size(saved_model) or 1
    records = []
    for image in images:
        request = predict_pb2.PredictRequest(model_spec=model_pb2.ModelSpec(signature_name=serving.ENCODED_SIGNATURE))
        request.inputs[serving.IMAGES].CopyFrom(tf.make_tensor_proto([image] * batch_size, tf.string))
        log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
        records.append(framed(log.SerializeToString(deterministic=True)))
    return b"".join(records)


def _batch_size(saved_model: str | Path) -> int | None:
    """The number of images that `serving_default` takes; None: any."""
    from tensorflow.core.protobuf import saved_model_pb2

    path = join(saved_model, SAVED_MODEL_FILE)
    try:
        content = saved_model_pb2.SavedModel.FromString(read_bytes(path))
        shape = content.meta_graphs[0].signature_def[serving.ENCODED_SIGNATURE].inputs[serving.IMAGES].tensor_shape
    except (DecodeError, IndexError) as error:
        raise DataError(f"{path}: no SavedModel ({error}). Train and export the model again.") from None
    size = shape.dim[0].size if shape.dim else -1
    return size if size > 0 else None


def score_thresholds(analysis: Analysis, model: str | Path) -> ScoreThresholds:
    """Returns the score thresholds of the highest F1.

    Args:
        analysis: analysis of the model's detections.
        model: the model, whose categories get a threshold.
    """
    rows = {(category.id, category.name): category.best for category in analysis.categories}
    known = read_model_categories(model) if is_described(model) else None
    # An analysis without categories (use_cats false) has a row of another name.
    names = list(rows) if known is None else [(one["id"], str(one.get("name", one["id"]))) for one in known]
    return ScoreThresholds(
        iou_type=analysis.iou_type,
        iou=analysis.iou,
        images=analysis.sample.images,
        overall=_threshold(analysis.operating_point),
        categories=[
            CategoryThreshold(id=id_, name=name, **asdict(_threshold(rows.get((id_, name))))) for id_, name in names
        ],
    )


def _threshold(point: OperatingPoint | None) -> Threshold:
    return Threshold() if point is None else Threshold(point.score, point.precision, point.recall, point.f1)


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
    from detection.export.litert import input_batches
    from detection.export.mediapipe_model import convert_to_mediapipe
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
        calibration=input_batches(images, detector=detector, batch_size=1),
        description=f"Object detector, {trained.exported_from or config.model.name}.",
    )
