"""Reads MediaPipe's metadata from a LiteRT file, and checks that MediaPipe Tasks' ObjectDetector can run it."""

import math
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from detection.export.mediapipe import metadata_schema as schema
from detection.export.mediapipe.associated_files import AssociatedFileError, parse_calibration, parse_labels, read_file
from detection.export.mediapipe.flatbuffer_tables import FlatbufferError, Reader, Table
from detection.export.mediapipe.litert_model import LitertModel, Tensor, read_model
from detection.export.mediapipe.metadata import (
    CATEGORY,
    COUNT,
    DETECTION_OUTPUTS,
    LOCATION,
    RAW_OUTPUTS,
    SCORE,
    DetectorMetadata,
    ScoreCalibration,
    ScoreTransformation,
)
from schemas.errors import DataError
from schemas.quoting import one_line, quoted

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,2}")
_REMEDY = "Export the model again with --format mediapipe."
_INPUT_TYPES = ("float32", "uint8")
_OUTPUT_TYPES = ("float32", "uint8")


class _MetadataError(Exception):
    """Invalid metadata; the message is the reason."""


class _Output(NamedTuple):
    """An output of the model and its table in the metadata."""

    described: Table
    tensor: Tensor


class DetectorFile(NamedTuple):
    """A LiteRT file that MediaPipe's ObjectDetector can run.

    model: tensors of the model.
    output_names: MediaPipe's names of the outputs, in the order of the file.
    metadata: metadata of the detector.
    """

    model: LitertModel
    output_names: tuple[str, ...]
    metadata: DetectorMetadata


def read_metadata(content: bytes, where: str) -> DetectorMetadata:
    """Returns only the metadata; see `read_detector_file`."""
    return read_detector_file(content, where).metadata


def read_detector_file(content: bytes, where: str) -> DetectorFile:
    """Reads tensors and metadata of a detector from an untrusted file.

    Checks MediaPipe's requirements, and those that it needs but does not check: the names of the outputs, without
    which it crashes or confuses them, the order of box coordinates, and equal numbers of labels, calibration lines
    and classes, and of anchors and boxes.

    Args:
        content: content of the file.
        where: name of the file in error messages.

    Raises:
        DataError: not a LiteRT file, no metadata, or metadata that is invalid, incomplete or damaged.
    """
    model = read_model(content, where)
    if model.metadata is None:
        raise DataError(f"{one_line(where)}: has no metadata for MediaPipe. {_REMEDY}")
    try:
        return _read(model, model.metadata, content)
    except (_MetadataError, FlatbufferError, AssociatedFileError) as error:
        raise DataError(f"{one_line(where)}: wrong metadata for MediaPipe: {one_line(error)}. {_REMEDY}") from None


def _read(model: LitertModel, metadata: bytes, content: bytes) -> DetectorFile:
    root = Reader(metadata, schema.METADATA).root()
    _check_version(root["min_parser_version"])
    graphs = root["subgraph_metadata"] or []
    if len(graphs) != 1:
        raise _MetadataError(f"it describes {len(graphs)} graphs, but the model has 1")
    (graph,) = graphs
    normalization = _normalization(graph["input_tensor_metadata"] or [], model.inputs)
    outputs = _outputs(graph["output_tensor_metadata"] or [], model.outputs)
    raw = CATEGORY not in outputs
    _check_boxes(outputs[LOCATION])
    labels = _labels(outputs[SCORE] if raw else outputs[CATEGORY], content, raw=raw)
    calibration = _calibration(outputs[SCORE], content, len(labels))
    if raw and calibration is not None:
        raise _MetadataError("it has a score calibration, which MediaPipe does not apply to raw boxes")
    found = DetectorMetadata(
        name=root["name"] or "",
        description=root["description"] or "",
        version=root["version"],
        labels=labels,
        normalization=normalization,
        calibration=calibration,
        anchors_yxhw=_anchors(graph["custom_metadata"] or [], outputs[SCORE].tensor, len(labels)) if raw else None,
    )
    return DetectorFile(model, tuple(outputs), found)


def _check_version(version: str | None) -> None:
    if version is None:
        return
    numbers = tuple(map(int, version.split("."))) if _VERSION.fullmatch(version) else (sys.maxsize,)
    if numbers > schema.PARSER_VERSION:
        known = ".".join(map(str, schema.PARSER_VERSION))
        raise _MetadataError(f"it needs version {quoted(version)} of MediaPipe's parser, which is {known}")


def _normalization(described: Sequence[Table], inputs: Sequence[Tensor]) -> tuple[float, float] | None:
    """Returns (mean, std) of a float32 input; None: the input is uint8."""
    if len(inputs) != 1 or len(described) != 1:
        raise _MetadataError(f"the model has {len(inputs)} inputs, of which {len(described)} are described, not 1")
    (tensor,), (entry,) = inputs, described
    if tensor.dtype not in _INPUT_TYPES or len(tensor.shape) != 4 or not _is_image(tensor.shape):
        raise _MetadataError(
            f"the input is {tensor.dtype} {list(tensor.shape)}, not one image [1, H, W, 3] of float32 or uint8"
        )
    content = _union(entry["content"], "content_properties")
    if content is not None and (content[0] != "ImageProperties" or content[1]["color_space"] != schema.RGB):
        raise _MetadataError("the input is not described as an RGB image")
    if tensor.dtype == "uint8":
        return None
    options = _find_process_unit(entry, "NormalizationOptions")
    if options is None:
        raise _MetadataError("the input is float32, but its normalization is missing")
    means, stds = options["mean"] or [], options["std"] or []
    if len(means) != len(stds) or len(means) not in (1, 3) or len({*means}) > 1 or len({*stds}) > 1:
        raise _MetadataError(
            f"the normalization has means {quoted(means)} and standard deviations {quoted(stds)}; MediaPipe takes one "
            "of each"
        )
    mean, std = means[0], stds[0]
    if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
        raise _MetadataError(f"the normalization by mean {mean} and standard deviation {std} is not finite")
    return mean, std


def _is_image(shape: Sequence[int]) -> bool:
    batch, height, width, channels = shape
    return (batch, channels) == (1, 3) and height > 0 and width > 0


def _outputs(described: Sequence[Table], outputs: Sequence[Tensor]) -> dict[str, _Output]:
    """Returns the outputs by MediaPipe's names."""
    if len(described) != len(outputs):
        raise _MetadataError(f"the model has {len(outputs)} outputs, of which {len(described)} are described")
    names = [entry["name"] for entry in described]
    if None in names:
        raise _MetadataError(f"output {names.index(None)} has no name, which crashes MediaPipe")
    if sorted(names) not in (sorted(DETECTION_OUTPUTS), sorted(RAW_OUTPUTS)):
        raise _MetadataError(
            f"the outputs are named {quoted(names)}, not {', '.join(DETECTION_OUTPUTS)}, or {' and '.join(RAW_OUTPUTS)}"
        )
    if len({tensor.dtype for tensor in outputs}) > 1 or outputs[0].dtype not in _OUTPUT_TYPES:
        raise _MetadataError(f"the outputs are {', '.join(tensor.dtype for tensor in outputs)}, not all float32")
    found = {name: _Output(entry, tensor) for name, entry, tensor in zip(names, described, outputs, strict=True)}
    shapes = {name: output.tensor.shape for name, output in found.items()}
    boxes = shapes[LOCATION][1] if len(shapes[LOCATION]) == 3 else 0
    expected = {LOCATION: (1, boxes, 4), CATEGORY: (1, boxes), SCORE: (1, boxes), COUNT: (1,)}
    if len(found) == len(RAW_OUTPUTS):
        classes = shapes[SCORE][2] if len(shapes[SCORE]) == 3 else 0
        expected = {LOCATION: (1, boxes, 4), SCORE: (1, boxes, classes)}
    for name, shape in expected.items():
        if shapes[name] != shape or 0 in shape:
            raise _MetadataError(f"the output {name!r} has the shape {list(shapes[name])}")
    return found


def _check_boxes(output: _Output) -> None:
    content = _union(output.described["content"], "content_properties")
    if content is None or content[0] != "BoundingBoxProperties":
        raise _MetadataError(f"the output {LOCATION!r} is not described as boxes")
    box = content[1]
    if (box["type"], box["coordinate_type"]) != (schema.BOUNDARIES, schema.RATIO):
        raise _MetadataError("the boxes are not described as boundaries in fractions of the image")
    if box["index"] != schema.BOX_INDEX:
        raise _MetadataError(
            f"the order of the coordinates is {quoted(box['index'])}, not {schema.BOX_INDEX} (ymin, xmin, ymax, xmax)"
        )


def _labels(output: _Output, content: bytes, *, raw: bool) -> tuple[str, ...]:
    name = _find_file(output, schema.TENSOR_AXIS_LABELS if raw else schema.TENSOR_VALUE_LABELS)
    if name is None:
        raise _MetadataError(f"the output {output.described['name']!r} has no label file")
    return parse_labels(read_file(content, name))


def _calibration(output: _Output, content: bytes, classes: int) -> ScoreCalibration | None:
    options = _find_process_unit(output.described, "ScoreCalibrationOptions")
    name = _find_file(output, schema.TENSOR_AXIS_SCORE_CALIBRATION)
    if options is None and name is None:
        return None
    if options is None or name is None:
        raise _MetadataError(f"the score calibration has no {'options' if options is None else 'file'}")
    transformations = get_args(ScoreTransformation)
    if not 0 <= options["score_transformation"] < len(transformations):
        raise _MetadataError(f"the score calibration has an unknown transformation {options['score_transformation']}")
    if not math.isfinite(options["default_score"]):
        raise _MetadataError(f"the score calibration has the default score {options['default_score']}")
    return ScoreCalibration(
        curves=parse_calibration(read_file(content, name), classes),
        transformation=transformations[options["score_transformation"]],
        default_score=options["default_score"],
    )


def _anchors(custom: Sequence[Table], logits: Tensor, classes: int) -> npt.NDArray[np.float32]:
    """Returns the anchors of raw boxes, [A, 4]."""
    data = [entry["data"] for entry in custom if entry["name"] == schema.DETECTOR_METADATA_NAME]
    if len(data) != 1 or data[0] is None:
        raise _MetadataError("the anchors of the raw boxes are missing")
    root = Reader(data[0], schema.DETECTOR_METADATA).root()
    fixed = (root["ssd_anchors_options"] or {}).get("fixed_anchors_schema") or {}
    anchors = [
        [anchor[field] for field in ("y_center", "x_center", "height", "width")]
        for anchor in fixed.get("anchors") or ()
    ]
    array = np.array(anchors, np.float32).reshape(-1, 4)
    if logits.shape != (1, len(array), classes):
        raise _MetadataError(
            f"there are {len(array)} anchors and {classes} labels for scores of shape {list(logits.shape)}"
        )
    if not np.isfinite(array).all() or not (array[:, 2:] > 0).all():
        raise _MetadataError("an anchor is not finite, or has no area")
    options = root["tensors_decoding_options"] or {}
    for field, value in schema.decoding_options(classes=classes, boxes=len(array)).items():
        if options.get(field) != value:
            raise _MetadataError(f"{field} of the raw boxes is {options.get(field)}, not {value}")
    return array


def _union(table: Table | None, field: str) -> tuple[str, Table] | None:
    return None if table is None else table[field]


def _find_process_unit(entry: Table, name: str) -> Table | None:
    """Returns the process unit of a type; None: no such unit."""
    options = [unit["options"] for unit in entry["process_units"] or ()]
    found: list[Table] = [union[1] for union in options if union is not None and union[0] == name]
    if len(found) > 1:
        raise _MetadataError(f"{entry['name']!r} has {name} {len(found)} times")
    return found[0] if found else None


def _find_file(output: _Output, kind: int) -> str | None:
    """Returns the name of the output's first file of a type, as MediaPipe selects it; None: no such file."""
    files = output.described["associated_files"] or ()
    return next((file["name"] for file in files if file["type"] == kind and file["name"] is not None), None)
