"""Figures in the files that TensorFlow Model Analysis reads."""

import tempfile
from pathlib import Path

import tensorflow as tf

from detection.atomic_files import write_bytes, write_text
from detection.coco import CocoMetrics
from schemas.serving import ENCODED_SIGNATURE


def write_tfma(folder: str | Path, metrics: CocoMetrics, *, model: str, data: str) -> None:
    """Writes what `tfma.load_eval_result(folder)` reads.

    One slice, all images: the figures by name, and `AP` and `AP50` of each category
    under the sub key `class_id`, which is the data set's category id.

    Args:
        folder: exists.
        metrics: the figures.
        model: where the model lies.
        data: where the examples lie.

    Raises:
        DataError: a file cannot be written.
    """
    # Twenty seconds, and only needed here.
    import tensorflow_model_analysis as tfma
    from google.protobuf import json_format
    from tensorflow_model_analysis.proto import config_pb2
    from tensorflow_model_analysis.writers.metrics_plots_and_validations_writer import convert_slice_metrics_to_proto

    values = {tfma.metrics.MetricKey(name=name): value for name, value in metrics.figures.items()}
    for category in metrics.per_category:
        sub_key = tfma.metrics.SubKey(class_id=category["id"])
        for name in ("AP", "AP50"):
            values[tfma.metrics.MetricKey(name=name, sub_key=sub_key)] = category[name]
    overall = ()
    record = convert_slice_metrics_to_proto((overall, values), add_metrics_callbacks=None).SerializeToString()
    write_bytes(Path(folder, f"{tfma.METRICS_KEY}-00000-of-00001.tfrecord"), _tfrecord(record))
    run = config_pb2.EvalRun(
        eval_config=tfma.EvalConfig(
            model_specs=[tfma.ModelSpec(signature_name=ENCODED_SIGNATURE)], slicing_specs=[tfma.SlicingSpec()]
        ),
        version=tfma.version.VERSION,
        data_location=data,
        model_locations={"": model},
    )
    write_text(Path(folder, "eval_config.json"), json_format.MessageToJson(run))


def _tfrecord(record: bytes) -> bytes:
    """A TFRecord file with one record."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "one")
        with tf.io.TFRecordWriter(str(path)) as writer:
            writer.write(record)
        return path.read_bytes()
