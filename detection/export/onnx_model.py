"""Conversion of detectors to ONNX files."""

from typing import Any

from detection.inference.formats.serving_module import ServingModule
from schemas.errors import CocoflowError
from schemas.program import require_module

OPSET = 18  # ONNX 1.13 of 2022, supported by all vendors' runtimes


def convert_to_onnx(module: ServingModule) -> bytes:
    """Converts a detector to an ONNX file with only standard ops of opset 18.

    Args:
        module: detector with any or a fixed batch size.

    Returns:
        The file: from `images`, float32 [B, H, W, 3], as in `ServingModule.fitted_function`, to
        the same outputs by name.

    Raises:
        ConfigError: tf2onnx is not installed.
        CocoflowError: ONNX has no op for an op of the detector.
    """
    require_module("tf2onnx")
    import onnx
    import tf2onnx

    function = module.fitted_function("loop")  # tf2onnx loses the shapes in branches
    model, _ = tf2onnx.convert.from_function(function, input_signature=(), opset=OPSET)
    _separate_passed_inputs(model.graph)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise CocoflowError(
            f"the detector cannot be converted to ONNX: {str(error).strip().splitlines()[0]}. Export it without "
            "non-maximum suppression (--no-nms), or as a SavedModel."
        ) from error
    return bytes(model.SerializeToString())


def _separate_passed_inputs(graph: Any) -> None:
    """Puts an Identity behind each input that the body of a loop passes on: OpenVINO refuses it as an output."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _separate_passed_inputs(attribute.g)
                _copy_passed_inputs(attribute.g)


def _copy_passed_inputs(body: Any) -> None:
    import onnx

    inputs = {value.name for value in body.input}
    for number, value in enumerate(body.output):
        if value.name in inputs:
            name = f"{value.name}__passed_on_{number}"
            body.node.append(onnx.helper.make_node("Identity", [value.name], [name], name=name))
            value.name = name
