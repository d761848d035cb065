"""Metadata of a detector in a LiteRT file for MediaPipe Tasks."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.artifacts import LABELS_JSON
from schemas.errors import DataError
from schemas.quoting import quoted

ScoreTransformation = Literal["identity", "log", "inverse_logistic"]

# MediaPipe's names of the outputs.
LOCATION = "location"  # [1, N, 4]: ymin, xmin, ymax, xmax, fractions of the input; raw: box deltas [1, A, 4]
CATEGORY = "category"  # [1, N]: 0-based lines of the label file
SCORE = "score"  # [1, N]; raw: logits [1, A, C]
COUNT = "number of detections"  # [1]
DETECTION_OUTPUTS = (LOCATION, CATEGORY, SCORE, COUNT)
RAW_OUTPUTS = (LOCATION, SCORE)

_IN_NO_LABEL = {"\n": "a line break", "\r": "a carriage return", "\0": "a NUL character"}


class ScoreCurve(NamedTuple):
    """Calibrated score of one class: scale / (1 + exp(-(slope * t(score) + offset))).

    scale: scale, at least 0.
    slope: factor of the transformed score.
    offset: offset of the transformed score.
    min_score: scores up to this one become the default score; None: no scores do.
    """

    scale: float
    slope: float
    offset: float
    min_score: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreCalibration:
    """Score calibration applied by MediaPipe; all numbers are finite.

    Attributes:
        curves: one per class; None: every score of the class becomes `default_score`.
        transformation: t of the curves: score, log(score), or log(score) - log(1 - score).
        default_score: score of detections without a calibrated score.
    """

    curves: tuple[ScoreCurve | None, ...]
    transformation: ScoreTransformation = "identity"
    default_score: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectorMetadata:
    """Metadata of a detector: all that MediaPipe knows about the file except types and shapes of its tensors.

    Attributes:
        name: name of the model.
        description: description of the model.
        labels: name of each class, in the order of the classes; see `require_labels`.
        normalization: (mean, std), for a float32 input: MediaPipe computes (pixel - mean) / std of 0..255 pixels;
            None: the input is uint8.
        version: version of the model; None: not stated.
        calibration: calibration of the scores; None: scores are not calibrated.  Only without `anchors_yxhw`.
        anchors_yxhw: float32 [A, 4], (y center, x center, height, width) as fractions of the input, of a model with
            the outputs `RAW_OUTPUTS`: MediaPipe decodes and suppresses its boxes.  None: the outputs are
            `DETECTION_OUTPUTS`.
    """

    name: str
    description: str
    labels: tuple[str, ...]
    normalization: tuple[float, float] | None
    version: str | None = None
    calibration: ScoreCalibration | None = None
    anchors_yxhw: npt.NDArray[np.float32] | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """MediaPipe's names of the outputs, in the order of the file."""
        return DETECTION_OUTPUTS if self.anchors_yxhw is None else RAW_OUTPUTS


def require_labels(labels: Sequence[str], ids: Sequence[int] | None = None) -> None:
    """Requires names that MediaPipe's label file (one line per class in UTF-8) supports and that users can see.

    MediaPipe returns the name of a detection's class, not its index: equal names are one class to users.

    Args:
        labels: names of the classes.
        ids: category ids for the message; None: use class indices.

    Raises:
        DataError: no classes, or a name that is empty or has a line break, a NUL or a lone surrogate.
    """
    if not labels:
        raise DataError(
            "a model without classes has no labels for MediaPipe. Export a detector with at least one class."
        )
    for index, label in enumerate(labels):
        if reason := _label_issue(label):
            which = f"class {index}" if ids is None else f"category {ids[index]}"
            raise DataError(
                f"{which}: the name {quoted(label)} {reason}. Rename the category in the data set's annotations, or in "
                f"{LABELS_JSON} beside the model."
            )


def _label_issue(label: str) -> str | None:
    if not label:
        return "is empty, but MediaPipe returns only the name of a detection's class"
    if any("\ud800" <= character <= "\udfff" for character in label):
        return "has a lone surrogate, which UTF-8 cannot encode"
    for character, name in _IN_NO_LABEL.items():
        if character in label:
            return f"has {name}, but MediaPipe's label file has one line per class"
    return None
