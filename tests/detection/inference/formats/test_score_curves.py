"""Score curves against scikit-learn, against MediaPipe's formula, and as increasing functions."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from detection.export.mediapipe.associated_files import format_calibration
from detection.export.mediapipe_model import score_calibration
from detection.inference.formats.score_curves import (
    MIN_SAMPLES,
    SCORE_CURVES_FILE,
    ScoreCurve,
    ScoreCurves,
    calibrate_scores,
    fit_curves,
    read_score_curves,
)
from schemas.errors import DataError

CURVES = ScoreCurves(
    curves=(
        ScoreCurve(0.7, -0.31, "category", 30, 40),
        ScoreCurve(1.0 / 3.0, 1.2345678e-5, "all categories", 1, 2),
        ScoreCurve(1.0, 0.0, "nothing", 0, 0),
    ),
    split="eval",
    images=12,
    iou=0.5,
    error_before=0.25,
    error_after=0.125,
)


def sample(
    count: int, *, slope: float, offset: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:  # scores and matches
    """Detections that are right with the probability that a curve makes of their score."""
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 2, count)
    scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    return scores, random.random(count) < 1 / (1 + np.exp(-(slope * logits + offset)))


@pytest.mark.parametrize(("slope", "offset"), [(0.5, -0.7), (1.0, 0.0), (2.5, 1.3)])
def test_the_fit_is_logistic_regression_with_platts_targets(slope: float, offset: float) -> None:
    scores, matched = sample(400, slope=slope, offset=offset)
    (curve,) = fit_curves(scores, np.zeros(400, int), matched, num_classes=1)
    positives, negatives = matched.sum(), (~matched).sum()
    target = np.where(matched, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    logits = np.log(scores / (1.0 - scores.astype(np.float64)))[:, None]
    reference = LogisticRegression(penalty=None, tol=1e-10, max_iter=1000)
    reference.fit(
        np.concatenate([logits, logits]), np.repeat([1, 0], 400), sample_weight=np.concatenate([target, 1 - target])
    )
    assert curve.slope == pytest.approx(reference.coef_[0, 0], rel=1e-4)
    assert curve.offset == pytest.approx(reference.intercept_[0], abs=1e-4)
    assert (curve.fitted_on, curve.true_positives, curve.false_positives) == ("category", positives, negatives)
    assert curve.slope == pytest.approx(slope, rel=0.4)


def test_a_class_with_few_samples_gets_the_curve_of_all() -> None:
    scores, matched = sample(300, slope=0.5, offset=0.0)
    many, few = np.flatnonzero(matched), np.flatnonzero(~matched)
    classes = np.zeros(300, int)
    classes[many[: MIN_SAMPLES - 1]] = classes[few[:50]] = 2
    classes[many[50 : 50 + MIN_SAMPLES]] = classes[few[50 : 50 + MIN_SAMPLES]] = 3
    curves = fit_curves(scores, classes, matched, num_classes=4)
    (every,) = fit_curves(scores, np.zeros(300, int), matched, num_classes=1)
    assert [curve.fitted_on for curve in curves] == ["category", "all categories", "all categories", "category"]
    assert [(curve.true_positives, curve.false_positives) for curve in curves[1:]] == [
        (0, 0),
        (MIN_SAMPLES - 1, 50),
        (MIN_SAMPLES, MIN_SAMPLES),
    ]
    for curve in curves[1:3]:
        assert (curve.slope, curve.offset) == (every.slope, every.offset)


@pytest.mark.parametrize("matched", [[], [True] * 50, [False] * 50])
def test_without_samples_scores_stay(matched: list[bool]) -> None:
    scores = np.linspace(0.01, 0.99, len(matched))
    curves = fit_curves(scores, np.zeros(len(matched), int), np.array(matched), num_classes=2)
    assert {curve.fitted_on for curve in curves} == {"nothing"}
    values = np.array([0.0, 1e-12, 0.3, 0.999, 1.0])
    np.testing.assert_allclose(calibrate_scores(curves, values, [0, 1, 0, 1, 0]), values, rtol=1e-6, atol=1e-15)


def test_scores_in_reverse_order_still_get_an_increasing_curve() -> None:
    scores, matched = sample(400, slope=1.0, offset=0.0)
    (curve,) = fit_curves(scores, np.zeros(400, int), ~matched, num_classes=1)
    assert curve.slope == 0.1
    calibrated = calibrate_scores([curve], scores, np.zeros(400, int))
    assert calibrated.mean() == pytest.approx((~matched).mean(), abs=0.02)


@given(
    st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=25, max_size=60),
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=20),
)
def test_every_fitted_curve_is_increasing(samples: list[tuple[float, bool]], scores: list[float]) -> None:
    given_scores, matched = zip(*samples, strict=True)
    (curve,) = fit_curves(given_scores, np.zeros(len(samples), int), matched, num_classes=1)
    ordered = np.sort(np.array(scores, np.float32))
    calibrated = calibrate_scores([curve], ordered, np.zeros(len(scores), int))
    assert curve.slope > 0
    assert ((calibrated >= 0) & (calibrated <= 1)).all()
    assert (np.diff(calibrated) >= 0).all()
    apart = (np.diff(ordered) > 1e-3) & (calibrated[1:] < 0.999) & (calibrated[:-1] > 0.001)
    assert (np.diff(calibrated)[apart] > 0).all()


def mediapipe_score(line: str, score: float) -> float:
    """As `score_calibration_calculator.cc` computes it, with the transformation INVERSE_LOGISTIC."""

    def clamped_log(value: float, threshold: float = 1e-16) -> float:
        if value < threshold:
            return 2 * math.log(threshold) - math.log(2 * threshold - value)
        return math.log(value)

    scale, slope, offset = (np.float32(text) for text in line.split(","))
    margin = (clamped_log(score) - clamped_log(1 - score)) * float(slope) + float(offset)
    return float(scale) / (1 + math.exp(-margin))


def test_lines_for_mediapipe_give_the_same_scores() -> None:
    lines = format_calibration(score_calibration(CURVES.curves).curves).decode().splitlines()
    assert len(lines) == len(CURVES.curves)
    scores = np.array([0.0, 1e-9, 0.05, 0.5, 0.97, 1 - 2**-24, 1.0], np.float32)
    for number, line in enumerate(lines):
        expected = [mediapipe_score(line, float(score)) for score in scores]
        found = calibrate_scores(CURVES.curves, scores, np.full(len(scores), number))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / SCORE_CURVES_FILE
    path.parent.mkdir()
    assert read_score_curves(tmp_path) is None
    path.write_bytes(CURVES.as_bytes())
    assert read_score_curves(tmp_path) == CURVES
    content = json.loads(path.read_text())
    for key, value in (("slope", -1.0), ("slope", None), ("offset", math.inf), ("fitted_on", "x")):
        spoilt = {**content, "curves": [{**content["curves"][0], key: value}]}
        path.write_text(json.dumps(spoilt))
        with pytest.raises(DataError, match=r"score_curves\.json: not score curves of this version: .*Export or copy"):
            read_score_curves(tmp_path)
    path.write_text("[]")
    with pytest.raises(DataError, match="not score curves of this version"):
        read_score_curves(tmp_path)
