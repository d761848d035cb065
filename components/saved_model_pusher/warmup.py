"""Warm-up requests: what TF Serving sends to a version when it loads it, before the first client does.

TF Serving reads `assets.extra/tf_serving_warmup_requests`, a TFRecord file of `PredictionLog`
protos.  A request that fails makes the version fail, so it has the batch size that the
signature takes.
"""

from collections.abc import Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from detection.storage.paths import join
from detection.storage.reading import read_bytes
from detection.storage.tfrecord import framed
from schemas import serving
from schemas.artifacts import SAVED_MODEL_FILE
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
