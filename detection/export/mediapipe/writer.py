"""Adds MediaPipe's metadata to a LiteRT file."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from detection.export.mediapipe import metadata_schema as schema
from detection.export.mediapipe.associated_files import (
    CALIBRATION_FILE,
    LABELS_FILE,
    append_files,
    format_calibration,
    format_labels,
)
from detection.export.mediapipe.flatbuffer_tables import encode
from detection.export.mediapipe.litert_model import set_metadata
from detection.export.mediapipe.metadata import (
    CATEGORY,
    LOCATION,
    SCORE,
    DetectorMetadata,
    ScoreTransformation,
    require_labels,
)
from detection.export.mediapipe.reader import read_metadata

_WHERE = "the exported model"
_INPUT = "image"
_DESCRIPTIONS = {
    _INPUT: "Image, RGB, stretched to the size of the input.",
    LOCATION: "Boxes: ymin, xmin, ymax, xmax as fractions of the input.",
    CATEGORY: "Classes of the boxes: 0-based lines of the label file.",
    SCORE: "Scores of the boxes, best first.",
    "number of detections": "Number of valid boxes.",
}
_RAW_DESCRIPTIONS = {LOCATION: "Encoded boxes, one per anchor.", SCORE: "Logits of the classes, one row per anchor."}


def add_metadata(model: bytes, metadata: DetectorMetadata, *, outputs: Sequence[str] | None = None) -> bytes:
    """Adds metadata to a LiteRT file, or replaces it, so that MediaPipe Tasks' ObjectDetector loads the file.

    Args:
        model: LiteRT file with one graph, one input [1, H, W, 3], float32 or uint8, and the outputs of
            `metadata.outputs`.
        metadata: metadata of the detector.
        outputs: names of the outputs in the file's signature, or of their tensors, in the order of
            `metadata.outputs`; None: the file already has this order.

    Returns:
        The file, with labels and score calibration in an appended zip archive.  The graph is unchanged.

    Raises:
        DataError: a label that is invalid in a label file, or the model does not match the metadata.
        ValueError: `outputs` are not the names of all outputs.
    """
    require_labels(metadata.labels)
    files = {LABELS_FILE: format_labels(metadata.labels)}
    if metadata.calibration is not None:
        files[CALIBRATION_FILE] = format_calibration(metadata.calibration.curves)
    content = append_files(set_metadata(model, encode(schema.METADATA, _model(metadata)), outputs=outputs), files)
    read_metadata(content, _WHERE)
    return content


def _model(metadata: DetectorMetadata) -> Mapping[str, Any]:
    raw = metadata.anchors_yxhw is not None
    graph: dict[str, Any] = {
        "input_tensor_metadata": [_input(metadata)],
        "output_tensor_metadata": [_output(name, metadata) for name in metadata.outputs],
    }
    if metadata.anchors_yxhw is not None:
        options = encode(schema.DETECTOR_METADATA, _raw_options(metadata.anchors_yxhw, len(metadata.labels)))
        graph["custom_metadata"] = [{"name": schema.DETECTOR_METADATA_NAME, "data": options}]
    return {
        "name": metadata.name,
        "description": metadata.description,
        "version": metadata.version,
        "subgraph_metadata": [graph],
        "min_parser_version": schema.MIN_PARSER_VERSION_CUSTOM if raw else schema.MIN_PARSER_VERSION,
    }


def _input(metadata: DetectorMetadata) -> Mapping[str, Any]:
    units = []
    if metadata.normalization is not None:
        mean, std = metadata.normalization
        units.append({"options": ("NormalizationOptions", {"mean": [mean], "std": [std]})})
    return {
        "name": _INPUT,
        "description": _DESCRIPTIONS[_INPUT],
        "content": {"content_properties": ("ImageProperties", {"color_space": schema.RGB})},
        "process_units": units,
    }


def _output(name: str, metadata: DetectorMetadata) -> Mapping[str, Any]:
    raw = metadata.anchors_yxhw is not None
    output: dict[str, Any] = {
        "name": name,
        "description": (_RAW_DESCRIPTIONS if raw else _DESCRIPTIONS)[name],
        "content": {"content_properties": ("FeatureProperties", {})},
    }
    if name == LOCATION:
        box = {"index": schema.BOX_INDEX, "type": schema.BOUNDARIES, "coordinate_type": schema.RATIO}
        output["content"] = {"content_properties": ("BoundingBoxProperties", box)}
    if name == (SCORE if raw else CATEGORY):
        kind = schema.TENSOR_AXIS_LABELS if raw else schema.TENSOR_VALUE_LABELS
        output["associated_files"] = [_file(LABELS_FILE, "Names of the classes.", kind)]
    if name == SCORE and metadata.calibration is not None:
        output["associated_files"] = [
            *output.get("associated_files", ()),
            _file(CALIBRATION_FILE, "Score calibration of the classes.", schema.TENSOR_AXIS_SCORE_CALIBRATION),
        ]
        transformation = get_args(ScoreTransformation).index(metadata.calibration.transformation)
        calibration = {"score_transformation": transformation, "default_score": metadata.calibration.default_score}
        output["process_units"] = [{"options": ("ScoreCalibrationOptions", calibration)}]
    return output


def _file(name: str, description: str, kind: int) -> Mapping[str, Any]:
    return {"name": name, "description": description, "type": kind}


def _raw_options(anchors_yxhw: npt.NDArray[np.float32], classes: int) -> Mapping[str, Any]:
    anchors = [
        {"x_center": x, "y_center": y, "width": width, "height": height}
        for y, x, height, width in anchors_yxhw.astype(np.float32).tolist()
    ]
    return {
        "ssd_anchors_options": {"fixed_anchors_schema": {"anchors": anchors}},
        "tensors_decoding_options": schema.decoding_options(classes=classes, boxes=len(anchors)),
    }
