"""Score curves: one increasing function per class that maps a detector's scores to calibrated probabilities."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter
from scipy.optimize import minimize
from scipy.special import expit

from detection.storage.files import is_file
from detection.storage.json_files import parse_file
from detection.storage.paths import join
from schemas.artifacts import EXTRA_FILES, SCORE_CURVES_JSON

SCORE_CURVES_FILE = join(EXTRA_FILES, SCORE_CURVES_JSON)
# Logit of a score of 1; negated, of a score of 0.  As in MediaPipe's `score_calibration_calculator.cc`, whose
# logarithm of 0 is log(1e-16 / 2).
MAX_LOGIT = float(np.log(2e16))
MIN_SAMPLES = 10  # min true positives, and min false positives, of a curve
_SLOPES = (0.1, 10.0)  # beyond these, different scores would become equal in float32

FittedOn = Literal["category", "all categories", "nothing"]

_ALL: FittedOn = "all categories"

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoreCurve:
    """Platt's curve on logits: calibrated = 1 / (1 + exp(-(slope * logit(score) + offset))).

    The order of a class's scores is unchanged, and so is its AP.

    slope: > 0.
    offset: any number.
    fitted_on: detections used in the fit; `nothing`: the curve is the identity.
    true_positives: number of true positives of the class.
    false_positives: number of false positives of the class.
    """

    slope: Annotated[float, Field(gt=0.0)]
    offset: float
    fitted_on: FittedOn
    true_positives: int
    false_positives: int


@dataclass(frozen=True)
class ScoreCurves:
    """The score curves of a model and their measurements.

    curves: in the order of the network's classes.
    split: name of the split of the fit.
    images: number of its images.
    iou: IoU threshold of a true positive.
    error_before: expected calibration error of the scores.
    error_after: the same after calibration, cross-fitted.
    """

    curves: tuple[ScoreCurve, ...]
    split: str
    images: int
    iou: float
    error_before: float
    error_after: float

    def as_bytes(self) -> bytes:
        """Returns the file's content."""
        content = {"calibrated_score": "1 / (1 + exp(-(slope * log(score / (1 - score)) + offset)))", **asdict(self)}
        return (json.dumps(content, indent=2) + "\n").encode()


_FORMAT = TypeAdapter(ScoreCurves)


def calibrate_scores(
    curves: Sequence[ScoreCurve], scores: npt.ArrayLike, classes: npt.ArrayLike
) -> npt.NDArray[np.float32]:
    """Applies the curves and keeps the order of the detections.

    Args:
        curves: in the order of the network's classes.
        scores: [...], 0 to 1.
        classes: integers [...], contiguous class index.

    Returns:
        float32 [...], 0 to 1.
    """
    slopes, offsets = (
        np.take([getattr(curve, name) for curve in curves], np.asarray(classes, np.int64))
        for name in ("slope", "offset")
    )
    calibrated: npt.NDArray[np.float32] = expit(slopes * _logits(scores) + offsets).astype(np.float32)
    return calibrated


def fit_curves(
    scores: npt.ArrayLike, classes: npt.ArrayLike, matched: npt.ArrayLike, *, num_classes: int
) -> list[ScoreCurve]:
    """Fits a curve for each class by maximum likelihood, with regularised targets.

    A class with fewer than `MIN_SAMPLES` true or false positives gets the curve of all detections, or the identity
    if these are too few.  Sources: Platt, "Probabilistic Outputs for Support Vector Machines and Comparisons
    to Regularized Likelihood Methods", 1999, section 2.2; on logits, for detections: Küppers et al., "Multivariate
    Confidence Calibration for Object Detection", 2020.

    Args:
        scores: [N], 0 to 1.
        classes: integers [N], contiguous class index.
        matched: bool [N], True for true positives, False for false positives.
        num_classes: number of classes.

    Returns:
        The curves in the order of the classes.
    """
    logits, classes, matched = _logits(scores), np.asarray(classes), np.asarray(matched, bool)
    common, fitted_on = _fit(logits, matched), _ALL
    if common is None:
        common, fitted_on = (1.0, 0.0), "nothing"
    curves = []
    for number in range(num_classes):
        own = classes == number
        counts = int(matched[own].sum()), int((~matched[own]).sum())
        fitted = _fit(logits[own], matched[own])
        if fitted is None:
            curves.append(ScoreCurve(*common, fitted_on, *counts))
        else:
            curves.append(ScoreCurve(*fitted, "category", *counts))
    return curves


def _fit(logits: FloatArray, matched: npt.NDArray[np.bool_]) -> tuple[float, float] | None:
    """Returns slope and offset; None: too few samples."""
    positives, negatives = int(matched.sum()), int((~matched).sum())
    if min(positives, negatives) < MIN_SAMPLES:
        return None
    targets = np.where(matched, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def cross_entropy(parameters: FloatArray) -> tuple[float, FloatArray]:
        margins = parameters[0] * logits + parameters[1]
        errors = expit(margins) - targets
        gradient = np.array([errors @ logits, errors.sum()]) / len(logits)
        return float((np.logaddexp(0.0, margins) - targets * margins).mean()), gradient

    found = minimize(
        cross_entropy,
        (1.0, 0.0),
        jac=True,
        method="L-BFGS-B",
        bounds=[_SLOPES, (None, None)],
        options={"ftol": 1e-15, "gtol": 1e-8},
    )
    slope, offset = found.x.tolist()
    return slope, offset


def _logits(scores: npt.ArrayLike) -> FloatArray:
    values = np.asarray(scores, np.float64)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(values) - np.log1p(-values), -MAX_LOGIT, MAX_LOGIT)


def read_score_curves(model: str | Path) -> ScoreCurves | None:
    """Reads the score curves of an exported model.

    Args:
        model: folder of the model, local or remote.

    Returns:
        None: the model's scores are not calibrated.

    Raises:
        DataError: the file is damaged.
    """
    path = join(model, SCORE_CURVES_FILE)
    if not is_file(path):
        return None
    return parse_file(_FORMAT, path, what="score curves", remedy="Export or copy the model again.")
