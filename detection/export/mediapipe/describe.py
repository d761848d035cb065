"""Describes a LiteRT file with MediaPipe's metadata as text."""

from collections.abc import Sequence

from detection.export.mediapipe.litert_model import Tensor
from detection.export.mediapipe.metadata import DetectorMetadata, ScoreCalibration
from detection.export.mediapipe.reader import read_detector_file
from schemas.quoting import LENGTH, one_line

_SHOWN = 10  # max labels
_COLUMN = 13  # characters


def describe(content: bytes, where: str) -> str:
    """Describes a file that passes the checks of `read_detector_file`.

    Args:
        content: content of the file.
        where: name of the file.

    Returns:
        One line per property, without control characters.

    Raises:
        DataError: the file is invalid; see `read_detector_file`.
    """
    model, names, metadata = read_detector_file(content, where)
    (image,) = model.inputs
    rows = [
        ("file", f"{where}, {len(content):,} bytes"),
        ("name", metadata.name),
        ("description", metadata.description),
        ("version", metadata.version or ""),
        ("kind", _kind(metadata, model.custom_ops)),
        ("input", f"{_type(image)}, RGB, {_values(metadata.normalization)}"),
        *(("output", f"{name}: {_type(tensor)}") for name, tensor in zip(names, model.outputs, strict=True)),
        ("labels", _labels(metadata.labels)),
        ("calibration", _calibration(metadata.calibration)),
    ]
    return "\n".join(f"{title:{_COLUMN}}{one_line(text)}" for title, text in rows if text)


def _kind(metadata: DetectorMetadata, custom_ops: Sequence[str]) -> str:
    kind = "object detector for MediaPipe Tasks; "
    if metadata.anchors_yxhw is not None:
        kind += f"raw boxes and scores of {len(metadata.anchors_yxhw)} anchors, which MediaPipe decodes and suppresses"
    else:
        kind += "non-maximum suppression in the file"
    return kind + (f"; custom ops: {', '.join(custom_ops)}" if custom_ops else "; only built-in ops")


def _type(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _values(normalization: tuple[float, float] | None) -> str:
    if normalization is None:
        return "0 to 255"
    mean, std = normalization
    return "0 to 255, normalized by the model" if (mean, std) == (0, 1) else f"(pixel - {mean:g}) / {std:g}"


def _labels(labels: Sequence[str]) -> str:
    shown = [label if len(label) <= LENGTH else f"{label[:LENGTH]}..." for label in labels[:_SHOWN]]
    return f"{len(labels)}: {', '.join(shown)}{', ...' if len(labels) > _SHOWN else ''}"


def _calibration(calibration: ScoreCalibration | None) -> str:
    if calibration is None:
        return "none"
    curves = [curve for curve in calibration.curves if curve is not None]
    text = f"{len(curves)} curves, transformation {calibration.transformation}"
    if len(curves) < len(calibration.curves) or any(curve.min_score is not None for curve in curves):
        text += f", default score {calibration.default_score:g}"
    return text
