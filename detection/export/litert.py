"""Conversion of detectors to LiteRT (TensorFlow Lite) files with only built-in ops."""

import functools
import itertools
import multiprocessing
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.export.mediapipe.litert_model import pack_model, unpack_model
from detection.images.decode import decode_rgb
from detection.inference.formats.serving_module import ServingModule
from detection.input_pipeline.evaluation_records import parse_record
from detection.input_pipeline.network_input import fit_pixels
from detection.input_pipeline.record_reader import RecordReader
from detection.models.detector import Detector
from detection.types import EncodedImage
from schemas.errors import CocoflowError

Precision = Literal["float32", "float16", "int8"]

_REASON = 400  # characters of the converter's message
_GRAPH_FIELDS = (
    "condSubgraphIndex",
    "bodySubgraphIndex",
    "thenSubgraphIndex",
    "elseSubgraphIndex",
    "initSubgraphIndex",
)


def convert_to_litert(
    module: ServingModule,
    *,
    precision: Precision,
    calibration: Iterable[npt.NDArray[np.uint8]] = (),
    custom_ops: bool = False,
) -> bytes:
    """Converts a detector to a LiteRT file.

    float16 stores the weights in half the bytes; the interpreter computes in float32 on hardware
    without float16.  int8 computes the normalization and the network in 8-bit integers;
    post-processing stays in float32, as 8 bits are too coarse for box corners.

    Args:
        module: detector with a fixed batch size.
        precision: of the network.
        calibration: for int8: at least one batch [B, H, W, 3] of inputs of the file, which determine the ranges of
            the activations.
        custom_ops: allow ops that are not built in.

    Returns:
        The file.  Its signature `serving_default` takes `images`, float32, or uint8 for int8, as
        `ServingModule.fitted_function` does.

    Raises:
        CocoflowError: LiteRT has no built-in op for an op of the detector.
    """
    if precision != "int8":
        return convert([module.fitted_function("op").get_concrete_function()], precision, custom_ops=custom_ops)
    return convert(module.fitted_stages("op"), precision, calibration, custom_ops=custom_ops)


def convert(
    stages: Sequence[Any],
    precision: Precision = "float32",
    calibration: Iterable[npt.NDArray[np.uint8]] = (),
    *,
    custom_ops: bool = False,
) -> bytes:
    """Converts functions in a separate process: the converter of TensorFlow 2.20 and newer does not free its memory.

    Args:
        stages: concrete functions; each takes the outputs of the previous one by name.
        precision: as for `convert_to_litert`; int8 applies to the first stage, which takes uint8.
        calibration: for int8: inputs of the first stage.
        custom_ops: allow ops that are not built in.

    Raises:
        CocoflowError: an op cannot be converted; see `convert_to_litert`.
    """
    names = ["serving_default", *(f"stage_{number}" for number in range(1, len(stages)))]
    with tempfile.TemporaryDirectory(prefix="cocoflow-litert-") as folder:
        # Tracks only the variables: `ServingModule` would trace its signatures, too.
        module = tf.Module()
        module.weights = [variable for stage in stages for variable in stage.variables]
        tf.saved_model.save(module, folder, signatures=dict(zip(names, stages, strict=True)))
        for number, batch in enumerate(calibration):
            images = batch.copy()
            # A black and a white pixel, so that the 8-bit input range is always 0 to 255.
            images[:, 0, 0], images[:, 0, 1] = 0, 255
            np.save(Path(folder, f"{number:09}.npy"), images)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
            try:
                return pool.submit(_convert_saved_model, folder, names, precision, custom_ops).result()
            except BrokenProcessPool:
                raise CocoflowError(
                    "the conversion process of LiteRT was killed. Free memory, or export a smaller model."
                ) from None


def _convert_saved_model(folder: str, stages: Sequence[str], precision: Precision, custom_ops: bool) -> bytes:
    """Converts signatures of a SavedModel and joins them into one model; `folder` also has the calibration images."""
    tf.config.set_visible_devices([], "GPU")  # their memory belongs to the parent process

    def inputs() -> Iterable[list[npt.NDArray[np.float32]]]:
        for path in sorted(Path(folder).glob("*.npy")):
            yield [np.load(path).astype(np.float32)]

    converted = []
    # One by one: only the first is quantized, and the converter's calibration does not support custom ops and loops.
    for stage in stages:
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[stage])
        # Without this, Keras' exporter uses TensorFlow ops, which most interpreters do not have.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        converter.allow_custom_ops = custom_ops
        if precision == "float16":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        if precision == "int8" and stage == stages[0]:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = inputs
            converter.inference_input_type = tf.uint8
        converted.append(_run(converter))
    return _chain(converted) if len(converted) > 1 else converted[0]


def _run(converter: Any) -> bytes:
    try:
        return bytes(converter.convert())
    except Exception as error:  # the converter's exception class is not public
        if type(error).__name__ != "ConverterError":
            raise
        lines = [line.strip() for line in str(error).splitlines() if "Ops:" in line] or str(error).splitlines()[:1]
        raise CocoflowError(
            f"the detector cannot be converted to LiteRT with only built-in ops: {'; '.join(lines)[:_REASON]}. "
            "Export it without non-maximum suppression (--no-nms), or as a SavedModel."
        ) from error


def _chain(models: Sequence[bytes]) -> bytes:
    """Joins models into one; each takes the outputs of the previous one by their signature names.

    Args:
        models: files with one signature each.
    """
    joined, *others = map(unpack_model, models)
    main, (signature,) = joined.subgraphs[0], joined.signatureDefs
    for model in others:
        _append(joined, model, {one.name: one.tensorIndex for one in signature.outputs})
        (own,) = model.signatureDefs
        main.outputs = model.subgraphs[0].outputs
        signature.outputs = own.outputs
    _rename_duplicates(main.tensors)
    return pack_model(joined)


def _rename_duplicates(tensors: Sequence[Any]) -> None:
    """Makes the names of a graph's tensors unique: runtimes such as OpenVINO look them up by name."""
    seen: set[bytes] = set()
    for number, tensor in enumerate(tensors):
        if tensor.name in seen:
            tensor.name += f"_{number}".encode()
        seen.add(tensor.name)


def _append(joined: Any, model: Any, sources: dict[bytes, int]) -> None:
    """Appends a model to `joined` and renumbers its indices.

    Args:
        joined: model, changed in place.
        model: model, changed in place.
        sources: tensors of `joined` by the names of the model's inputs.
    """
    main, own = joined.subgraphs[0], model.subgraphs[0]
    (signature,) = model.signatureDefs
    codes, buffers, graphs = len(joined.operatorCodes), len(joined.buffers), len(joined.subgraphs) - 1
    inputs = {one.tensorIndex: sources[one.name] for one in signature.inputs}
    first = len(main.tensors)
    places = {index: inputs.get(index, first + index) for index in range(len(own.tensors))} | {-1: -1}
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.buffer += buffers
        for operator in graph.operators:
            operator.opcodeIndex += codes
            for field in _GRAPH_FIELDS:
                if hasattr(operator.builtinOptions, field):
                    setattr(operator.builtinOptions, field, getattr(operator.builtinOptions, field) + graphs)
    for operator in own.operators:
        operator.inputs = [places[index] for index in operator.inputs]
        operator.outputs = [places[index] for index in operator.outputs]
    own.outputs = [places[index] for index in own.outputs]
    for one in signature.outputs:
        one.tensorIndex = places[one.tensorIndex]
    main.tensors += own.tensors
    main.operators += own.operators
    joined.operatorCodes += model.operatorCodes
    joined.buffers += model.buffers
    joined.subgraphs += model.subgraphs[1:]


def evenly_spaced_images(shards: Sequence[str], count: int) -> Iterator[EncodedImage]:
    """Returns an iterator over at most `count` images of a data set, evenly spaced among the records.

    Raises:
        DataError: no records; while iterating: a record that cannot be read.
    """
    reader = RecordReader(shards)
    chosen = np.unique(np.linspace(0, len(reader) - 1, min(count, len(reader))).astype(np.int64)).tolist()
    return (parse_record(reader.read(number)).image for number in chosen)


def input_batches(images: Iterable[bytes], *, detector: Detector, batch_size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Yields the inputs of a LiteRT file, uint8 [B, H, W, 3]; the last image is repeated to fill a batch.

    Args:
        images: encoded images.
        detector: provides the input size and the padding color.
        batch_size: B.
    """
    fit = functools.partial(
        fit_pixels, image_size=detector.image_size, resizing=detector.resizing, padding=detector.pixel_mean
    )
    remaining = iter(images)
    while batch := list(itertools.islice(remaining, batch_size)):
        pixels = [fit(decode_rgb(tf.constant(encoded)))[0] for encoded in batch]
        pixels += pixels[-1:] * (batch_size - len(pixels))
        yield np.rint(np.stack(pixels)).astype(np.uint8)
