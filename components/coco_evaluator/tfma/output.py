"""An evaluation in the files that TensorFlow Model Analysis reads."""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from components.coco_evaluator.tfma.keys import model_names, slice_metrics
from components.coco_evaluator.tfma.slice_figures import SliceFigures
from components.coco_evaluator.tfma.slice_keys import SliceKey
from detection.storage.atomic import write_bytes, write_text


def write_slices(
    folder: str | Path,
    slices: Mapping[SliceKey, Mapping[str, SliceFigures]],
    *,
    config: Any,
    validation: Any | None,
    models: Mapping[str, str],
    data: str,
) -> None:
    """Writes what `tfma.load_eval_result(folder)` and `tfma.load_validation_result(folder)` read.

    Args:
        folder: exists.
        slices: each slice's figures by the models' part, `candidate` and maybe
            `baseline`; what is written of them is `tfma_keys.slice_metrics`.
        config: `tfma.EvalConfig` that was honoured, see `eval_config.complete`.
        validation: TFMA's `ValidationResult`; None: no threshold was asked for, and
            there is no such file.
        models: where each model lies, by its part.
        data: where the examples lie.

    Raises:
        DataError: a file cannot be written.
    """
    # Twenty seconds, and only needed here.
    import tensorflow_model_analysis as tfma
    from google.protobuf import json_format
    from tensorflow_model_analysis.proto import config_pb2
    from tensorflow_model_analysis.writers.metrics_plots_and_validations_writer import convert_slice_metrics_to_proto

    names = model_names(config)
    records = [
        convert_slice_metrics_to_proto((key, slice_metrics(found, names)), add_metrics_callbacks=None)
        for key, found in slices.items()
    ]
    write_bytes(Path(folder, f"{tfma.METRICS_KEY}-00000-of-00001.tfrecord"), _tfrecord(records))
    if validation is not None:
        write_bytes(Path(folder, f"{tfma.VALIDATIONS_KEY}.tfrecord"), _tfrecord([validation]))
    run = config_pb2.EvalRun(
        eval_config=config,
        version=tfma.version.VERSION,
        data_location=data,
        model_locations={names[part]: place for part, place in models.items()},
    )
    write_text(Path(folder, "eval_config.json"), json_format.MessageToJson(run))


def _tfrecord(messages: Iterable[Any]) -> bytes:
    """A TFRecord file of protocol buffer messages."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records")
        with tf.io.TFRecordWriter(str(path)) as writer:
            for message in messages:
                writer.write(message.SerializeToString())
        return path.read_bytes()
