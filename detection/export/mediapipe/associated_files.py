"""Files inside a LiteRT file: an appended zip archive with the labels and the score calibration."""

import io
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from detection.export.mediapipe.metadata import ScoreCurve

LABELS_FILE = "labels.txt"
CALIBRATION_FILE = "score_calibration.txt"

# Exceptions of `zipfile` for bytes that are not an archive, or use unsupported features.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
_TIME = (1980, 1, 1, 0, 0, 0)  # constant, so that equal files have equal bytes
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class AssociatedFileError(Exception):
    """A file that is missing or invalid; the message is the reason."""


def append_files(model: bytes, files: Mapping[str, bytes]) -> bytes:
    """Appends files to a model without appended files.

    Args:
        model: flatbuffer of the model.
        files: contents by name.
    """
    content = io.BytesIO(model)
    with zipfile.ZipFile(content, "a") as archive:
        for name, data in files.items():
            # Stored: MediaPipe refuses compressed files.
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_STORED)
    return content.getvalue()


def remove_files(content: bytes) -> bytes:
    """Removes the appended files from a model."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return content[: min((file.header_offset for file in archive.infolist()), default=archive.start_dir)]
    except _ZIP_ERRORS:
        return content


def read_file(content: bytes, name: str) -> bytes:
    """Reads a file that is appended to an untrusted model.

    Raises:
        AssociatedFileError: the file is missing, damaged or compressed.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if names.count(name) != 1:
                raise AssociatedFileError(f"{name!r} is {names.count(name)} times in the archive at its end")
            info = archive.getinfo(name)
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise AssociatedFileError(f"{name!r} is compressed or encrypted, which MediaPipe does not support")
            if info.file_size != info.compress_size:
                raise AssociatedFileError(f"{name!r} has two sizes in the archive at its end")
            return archive.read(info)
    except _ZIP_ERRORS as error:
        raise AssociatedFileError(f"{name!r} cannot be read from the archive at its end ({error})") from None


def format_labels(labels: Sequence[str]) -> bytes:
    """Returns the content of a label file.

    Args:
        labels: names accepted by `require_labels`.
    """
    return "".join(f"{label}\n" for label in labels).encode()


def parse_labels(content: bytes) -> tuple[str, ...]:
    """Reads a label file as MediaPipe does.

    Raises:
        AssociatedFileError: no lines, an empty line, or not UTF-8.
    """
    labels = tuple(line.removesuffix("\r") for line in _lines(content))
    if not labels:
        raise AssociatedFileError("the label file is empty")
    if "" in labels:
        raise AssociatedFileError(f"line {labels.index('') + 1} of the label file is empty")
    return labels


def format_calibration(curves: Sequence[ScoreCurve | None]) -> bytes:
    """Returns the content of a score calibration file; float32 reads the numbers back exactly."""
    lines = (",".join(str(np.float32(number)) for number in curve or () if number is not None) for curve in curves)
    return "".join(f"{line}\n" for line in lines).encode()


def parse_calibration(content: bytes, classes: int) -> tuple[ScoreCurve | None, ...]:
    """Reads a score calibration file.

    Args:
        content: content of the file.
        classes: number of classes.

    Raises:
        AssociatedFileError: another number of lines, or a line that is not a curve.
    """
    lines = _lines(content)
    if len(lines) != classes:
        raise AssociatedFileError(f"the score calibration has {len(lines)} lines for {classes} classes")
    return tuple(_parse_curve(line, number) for number, line in enumerate(lines))


def _parse_curve(line: str, number: int) -> ScoreCurve | None:
    if not line:
        return None
    words = [word.strip() for word in line.split(",")]
    if len(words) not in (3, 4) or not all(map(_NUMBER.fullmatch, words)):
        raise AssociatedFileError(
            f"line {number + 1} of the score calibration is not `scale,slope,offset` or `scale,slope,offset,min_score`"
        )
    with np.errstate(over="ignore"):
        numbers = np.array(words, np.float64).astype(np.float32)
    if numbers[0] < 0 or not np.isfinite(numbers).all():
        raise AssociatedFileError(f"line {number + 1} of the score calibration is not finite, or has a negative scale")
    return ScoreCurve(*numbers.tolist())


def _lines(content: bytes) -> list[str]:
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise AssociatedFileError("a text file in the archive at its end is not UTF-8") from None
    return lines[:-1] if lines[-1] == "" else lines
